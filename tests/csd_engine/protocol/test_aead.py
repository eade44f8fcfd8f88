"""The ciphers of libcrypto: the answers of their specifications, what is refused, and which are offered."""

from __future__ import annotations

import gc
import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from csd_engine.protocol import aead
from csd_engine.protocol.aead import AES, CHACHA, CIPHERS, KNOWN, Aead, NotAuthentic


@pytest.fixture(params=sorted(CIPHERS))
def cipher(request: pytest.FixtureRequest) -> str:
    if request.param not in aead.ciphers():
        pytest.skip("this computer's libcrypto does not have it")
    return str(request.param)


@pytest.fixture
def afresh() -> Iterator[None]:
    """The library and the ciphers are looked for again, also after the test."""
    again()
    yield
    again()


def again() -> None:
    aead._library.cache_clear()
    aead._working.cache_clear()


def opens(opening: Aead, nonce: bytes, aad: bytes, pieces: list[Any], tag: bytes | bytearray) -> None:
    opening.begin(nonce, aad)
    for piece in pieces:
        opening.run(piece)
    opening.opened(tag)


# From other places than KNOWN's: McGrew and Viega's test cases 13 and 14; RFC 8439, appendix A.5.
ANSWERS = [
    (AES, "00" * 32, "00" * 12, "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
    (AES, "00" * 32, "00" * 12, "", "00" * 16, "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"),
    (
        CHACHA,
        "1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0",
        "000000000102030405060708",
        "f33388860000000000004e91",
        "496e7465726e65742d4472616674732061726520647261667420646f63756d656e74732076616c696420666f722061206d6178696d756d206f6620736978206d6f6e74"
        "687320616e64206d617920626520757064617465642c207265706c616365642c206f72206f62736f6c65746564206279206f7468657220646f63756d656e747320617420"
        "616e792074696d652e20497420697320696e617070726f70726961746520746f2075736520496e7465726e65742d447261667473206173207265666572656e6365206d61"
        "74657269616c206f7220746f2063697465207468656d206f74686572207468616e206173202fe2809c776f726b20696e2070726f67726573732e2fe2809d",
        "64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb24c6cfc18755d43eea09ee94e382d26b0bdb7b73c321b0100d4f03b7f355894cf332f830e"
        "710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c8559797a06ef4f0ef61c186324e2b3506383606907b6a7c02b0f9f6157b53c867e4b9166c767b804d46"
        "a59b5216cde7a4e99040c5a40433225ee282a1b0a06c523eaf4534d7f83fa1155b0047718cbc546a0d072b04b3564eea1b422273f548271a0bb2316053fa76991955ebd6"
        "3159434ecebb4e466dae5a1073a6727627097a1049e617d91d361094fa68f0ff77987130305beaba2eda04df997b714d6c6f2c29a6ad5cb4022b02709b",
        "eead9d67890cbb22392336fea1851f38",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "nonce", "aad", "text", "sealed", "tag"), ANSWERS)
def test_known_answers(name: str, key: str, nonce: str, aad: str, text: str, sealed: str, tag: str) -> None:
    body, found = bytearray.fromhex(text), bytearray(16)
    Aead(name, bytes.fromhex(key), sealing=True).seal(bytes.fromhex(nonce), bytes.fromhex(aad), body, found)
    assert (body.hex(), found.hex()) == (sealed, tag)
    opens(Aead(name, bytes.fromhex(key), sealing=False), bytes.fromhex(nonce), bytes.fromhex(aad), [body], found)
    assert body.hex() == text


def test_each_changed_bit_is_found_and_pieces_do_not_matter(cipher: str) -> None:
    known = KNOWN[cipher]
    opening = Aead(cipher, known.key, sealing=False)
    for part in ("sealed", "tag", "aad", "nonce"):
        for bit in range(8 * len(getattr(known, part))):
            changed = bytearray(getattr(known, part))
            changed[bit // 8] ^= 1 << bit % 8
            told = known._replace(**{part: bytes(changed)})
            with pytest.raises(NotAuthentic):
                opens(opening, told.nonce, told.aad, [bytearray(told.sealed)], told.tag)
    with pytest.raises(NotAuthentic):
        opens(opening, known.nonce, known.aad, [bytearray(known.sealed[:-1])], known.tag)
    for short in (b"", known.tag[:4]):  # OpenSSL itself takes a part of a tag
        with pytest.raises(NotAuthentic):
            opens(opening, known.nonce, known.aad, [bytearray(known.sealed)], short)
    text = bytearray(known.sealed)
    opens(opening, known.nonce, known.aad, [text[:0], memoryview(text)[:5], memoryview(text)[5:]], bytearray(known.tag))
    assert text == known.text


def test_what_is_no_key_or_nonce_is_refused(cipher: str) -> None:
    with pytest.raises(ValueError, match="key"):
        Aead(cipher, bytes(16), sealing=True)
    with pytest.raises(ValueError, match="nonce"):
        Aead(cipher, bytes(32), sealing=True).seal(bytes(8), b"", bytearray(1), bytearray(16))


def test_no_library_or_a_wrong_one_is_no_cipher(afresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert aead.ciphers()
    right = list(aead._libraries())
    for libraries in ([], ["libc.so.6", "/nonexistent/libcrypto.so"]):  # none, and one without the functions
        again()
        monkeypatch.setattr(aead, "_libraries", lambda libraries=libraries: iter(libraries))
        assert aead.ciphers() == ()
        with pytest.raises(OSError, match="no libcrypto"):
            Aead(AES, bytes(32), sealing=True)
    again()
    monkeypatch.setattr(aead, "_libraries", lambda: iter([*libraries, *right]))
    assert aead.ciphers(), "a right one after them serves"


@pytest.mark.parametrize(
    ("system", "hashlib", "tried"),
    [
        ("linux", "/h.so", ["/h.so", "/s.so", "libcrypto.so.3", "libcrypto.so.1.1"]),
        ("darwin", "/h.so", ["/h.so", "/s.so"]),  # there a name without a version may end the process
        ("linux", "", ["/s.so", "libcrypto.so.3", "libcrypto.so.1.1"]),  # it is a part of the interpreter
        ("linux", None, ["/s.so", "libcrypto.so.3", "libcrypto.so.1.1"]),
    ],
)
def test_it_is_looked_for_where_python_links_it(
    system: str, hashlib: str | None, tried: list[str], afresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def missing(path: str) -> None:
        found.append(path)
        raise OSError(path)

    for name, path in (("_hashlib", hashlib), ("_ssl", "/s.so")):
        module = ModuleType(name)
        if path:
            module.__file__ = path
        monkeypatch.setitem(sys.modules, name, module if path is not None else None)
    monkeypatch.setattr(aead.ctypes, "CDLL", missing)
    monkeypatch.setattr(sys, "platform", system)
    assert aead.ciphers() == () and found == tried


def test_a_python_without_ctypes_has_no_cipher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    spec = importlib.util.find_spec(aead.__name__)
    assert spec is not None and spec.loader is not None
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    assert without.ciphers() == ()
    with pytest.raises(OSError, match="no libcrypto"):
        without.Aead(AES, bytes(32), sealing=True)


def test_each_library_by_itself_serves(afresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    served = 0
    for library in list(aead._libraries()):
        again()
        monkeypatch.setattr(aead, "_libraries", lambda library=library: iter([library]))
        served += set(aead.ciphers()) == {AES, CHACHA}
    assert served


def test_a_cipher_that_computes_wrongly_is_none(afresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for field in ("sealed", "tag"):
        wrong = KNOWN[AES]._replace(**{field: bytes(len(getattr(KNOWN[AES], field)))})
        monkeypatch.setattr(aead, "KNOWN", {**KNOWN, AES: wrong})
        aead._working.cache_clear()
        assert aead.ciphers() == (CHACHA,)


def refuses(opening: Aead, tag: bytes) -> None:
    raise NotAuthentic


@pytest.mark.parametrize("opened", [refuses, lambda opening, tag: None], ids=["refuses all", "takes all"])
def test_a_cipher_that_cannot_tell_tags_apart_is_none(
    opened: Callable[[Aead, bytes], None], afresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Aead, "opened", opened)
    assert aead.ciphers() == ()


@pytest.mark.parametrize(
    ("function", "result", "said"),
    [
        ("EVP_CIPHER_CTX_new", None, "has no memory"),
        ("EVP_CipherInit_ex", 0, "refused a call"),
        ("EVP_CipherUpdate", 1, "kept bytes back"),
    ],
)
def test_where_libcrypto_refuses_there_is_no_cipher(
    function: str, result: int | None, said: str, afresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aead._library(), function, lambda *arguments: result)
    with pytest.raises(OSError, match=said):
        Aead(AES, bytes(32), sealing=True).seal(bytes(12), b"", bytearray(1), bytearray(16))
    assert aead.ciphers() == ()


def test_each_context_is_freed_once(cipher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = aead._library()
    new, free = library.EVP_CIPHER_CTX_new, library.EVP_CIPHER_CTX_free
    made, freed, failures = [], [], []
    monkeypatch.setattr(library, "EVP_CIPHER_CTX_new", lambda: made.append(new()) or made[-1])
    monkeypatch.setattr(library, "EVP_CIPHER_CTX_free", lambda context: freed.append(context) or free(context))
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    Aead(cipher, bytes(32), sealing=True)
    with pytest.raises(ValueError, match="key"):
        Aead(cipher, bytes(31), sealing=True)
    gc.collect()
    assert len(made) == 1 and freed == made and not failures


def test_a_piece_has_as_many_bytes_as_an_int_counts(cipher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert aead._MOST_BYTES == (1 << 31) - 1
    monkeypatch.setattr(aead, "_MOST_BYTES", 16)
    sealing = Aead(cipher, bytes(32), sealing=True)
    sealing.begin(bytes(12), b"")
    sealing.run(bytearray(16))
    with pytest.raises(ValueError, match="a piece of 17 bytes; it must have less than 2 GiB"):
        sealing.run(bytearray(17))


@pytest.mark.parametrize(
    ("told", "has"),
    [
        (b"flags\t\t: fpu sse2 aes avx\nflags\t\t: fpu aes", True),
        (b"flags : fpu vaes", False),
        (b"processor : 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\n", False),  # a Raspberry Pi 4
        (b"processor : 0\nFeatures\t: fp asimd evtstrm aes pmull\nmodel name : \xff\n", True),
        (b"Features : fp asimd aes pmull\nFeatures : fp asimd\n", False),
        (b"", False),
    ],
)
def test_the_first_cipher_is_what_the_processor_is_good_at(
    told: bytes, has: bool, afresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert aead._has_aes(told) is has
    monkeypatch.setattr(aead, "_has_aes", lambda: has)
    assert aead.ciphers() == ((AES, CHACHA) if has else (CHACHA, AES))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells what its processor has")
def test_linux_is_asked_what_its_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    has = aead._has_aes(Path("/proc/cpuinfo").read_bytes())
    monkeypatch.setattr(platform, "machine", lambda: "armv6l" if has else "x86_64")
    assert aead._has_aes() is has


@pytest.mark.parametrize(("machine", "has"), [("arm64", True), ("x86_64", True), ("armv6l", False)])
def test_elsewhere_the_kind_of_processor_tells(machine: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_bytes", missing)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert aead._has_aes() is has


def test_the_environment_names_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, left in (("curve", ()), (CHACHA, (CHACHA,)), ("", aead.ciphers())):
        monkeypatch.setenv("DDLP_STREAM_CIPHER", told)
        assert aead.ciphers() == left
