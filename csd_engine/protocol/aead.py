"""AES-256-GCM and ChaCha20-Poly1305, by the libcrypto that Python's own `ssl` has loaded.

Python's `ssl` and `hashlib` offer no cipher by itself, but link a library that has one. `ctypes` calls its EVP functions, which
OpenSSL 1.1, OpenSSL 3 and LibreSSL share. A cipher counts only if it gives the known answers of its specification here.
"""

from __future__ import annotations

import functools
import importlib
import os
import platform
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple, Union

try:
    import ctypes
except (ImportError, MemoryError):  # a Python without libffi, or a sandbox in which it gets no memory to run code in
    ctypes = None  # type: ignore[assignment]

__all__ = ["AES", "CHACHA", "CIPHERS", "KEY_BYTES", "TAG_BYTES", "Aead", "NotAuthentic", "ciphers"]

KEY_BYTES = 32
TAG_BYTES = 16
_NONCE_BYTES = 12
_GET_TAG, _SET_TAG = 0x10, 0x11  # EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG
_MOST_BYTES = (1 << 31) - 1  # of one call: EVP counts in C's int

AES, CHACHA = "aes-256-gcm", "chacha20-poly1305"
CIPHERS = {AES: "EVP_aes_256_gcm", CHACHA: "EVP_chacha20_poly1305"}
"""The ciphers by name, and libcrypto's function that returns each."""

Writable = Union[bytearray, memoryview]
Buffer = Union[bytes, Writable]


class NotAuthentic(Exception):
    """Bytes are not those that the other side has sealed with this key, in this place."""


class _Known(NamedTuple):
    key: bytes
    nonce: bytes
    aad: bytes
    text: bytes
    sealed: bytes
    tag: bytes


_SUNSCREEN = (
    b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it."
)
# AES: McGrew and Viega, "The Galois/Counter Mode of Operation (GCM)", test case 16. ChaCha: RFC 8439, section 2.8.2.
KNOWN: Dict[str, _Known] = {
    AES: _Known(
        bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2),
        bytes.fromhex("cafebabefacedbaddecaf888"),
        bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2"),
        bytes.fromhex(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
            "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
        ),
        bytes.fromhex(
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
            "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        ),
        bytes.fromhex("76fc6ece0f4e1768cddf8853bb2d551b"),
    ),
    CHACHA: _Known(
        bytes(range(0x80, 0xA0)),
        bytes.fromhex("070000004041424344454647"),
        bytes.fromhex("50515253c0c1c2c3c4c5c6c7"),
        _SUNSCREEN,
        bytes.fromhex(
            "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6"
            "3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36"
            "92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
            "3ff4def08e4b7a9de576d26586cec64b6116"
        ),
        bytes.fromhex("1ae10b594f09e26a7e902ecbd0600691"),
    ),
}


# -- the library


def _libraries() -> Iterator[str]:
    """Yield what may lead to libcrypto, best first: a symbol is looked for in a library and in those that it needs."""
    for name in ("_hashlib", "_ssl"):
        try:
            path = getattr(importlib.import_module(name), "__file__", None)
        except ImportError:
            continue
        if path:
            yield path
    if sys.platform.startswith("linux"):  # elsewhere a name without a version may end the process
        yield from ("libcrypto.so.3", "libcrypto.so.1.1")


def _declare(library: Any) -> Any:
    """Tell ctypes the functions' arguments. Raises AttributeError where one is missing."""
    context = buffer = ctypes.c_void_p
    number, counted = ctypes.c_int, ctypes.POINTER(ctypes.c_int)
    for name in CIPHERS.values():
        getattr(library, name).restype = ctypes.c_void_p
    library.EVP_CIPHER_CTX_new.restype = context
    library.EVP_CIPHER_CTX_free.restype = None
    library.EVP_CIPHER_CTX_free.argtypes = [context]
    library.EVP_CIPHER_CTX_ctrl.argtypes = [context, number, number, buffer]
    library.EVP_CipherInit_ex.argtypes = [context, buffer, buffer, buffer, buffer, number]
    library.EVP_CipherUpdate.argtypes = [context, buffer, counted, buffer, number]
    library.EVP_CipherFinal_ex.argtypes = [context, buffer, counted]
    return library


@functools.lru_cache(maxsize=None)
def _library() -> Optional[Any]:
    for path in _libraries():
        try:
            return _declare(ctypes.CDLL(path))
        except (OSError, AttributeError):  # no such library, or one without a function; also without ctypes
            continue
    return None


def _has_aes(cpuinfo: Optional[bytes] = None) -> bool:
    """Return whether the processor has instructions for AES. `cpuinfo`: the content of /proc/cpuinfo."""
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_bytes()
        except OSError:  # not Linux
            return platform.machine() in ("arm64", "x86_64")
    lines = [line for line in cpuinfo.splitlines() if line.lower().startswith((b"flags", b"features"))]
    return bool(lines) and all(b"aes" in line.partition(b":")[2].split() for line in lines)


def _works(name: str) -> bool:
    """Return whether the cipher gives the known answers here, and refuses another tag."""
    known = KNOWN[name]
    try:
        text, tag = bytearray(known.text), bytearray(TAG_BYTES)
        Aead(name, known.key, sealing=True).seal(known.nonce, known.aad, text, tag)
        opening = Aead(name, known.key, sealing=False)
        answers = (text, tag, _opened(opening, known, known.tag), _opened(opening, known, bytes(TAG_BYTES)))
        return answers == (known.sealed, known.tag, known.text, None)
    except OSError:
        return False


def _opened(opening: Aead, known: _Known, tag: bytes) -> Optional[bytearray]:
    """Return the known text, opened in two pieces; None if the tag is refused."""
    text = bytearray(known.sealed)
    opening.begin(known.nonce, known.aad)
    opening.run(memoryview(text)[:33])
    opening.run(memoryview(text)[33:])
    try:
        opening.opened(tag)
    except NotAuthentic:
        return None
    return text


@functools.lru_cache(maxsize=None)
def _working() -> Tuple[str, ...]:
    return tuple(name for name in ((AES, CHACHA) if _has_aes() else (CHACHA, AES)) if _works(name))


def ciphers() -> Tuple[str, ...]:
    """Return the ciphers that work here, the fastest first; none without a libcrypto.

    AES comes first where the processor has instructions for it, else ChaCha. DDLP_STREAM_CIPHER names the only one that is
    used; "curve" is none of them.
    """
    only = os.environ.get("DDLP_STREAM_CIPHER")
    return tuple(name for name in _working() if not only or name == only)


# -- the ciphers


def _address(buffer: Writable) -> int:
    """Return the address of a buffer that is written to. Raises TypeError if it is read-only, ValueError if it is empty."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class Aead:
    """One cipher with one key, for one direction. A nonce must not come twice while sealing. One thread at a time may use it.

    Args:
        name: one of `CIPHERS`.
        key: 32 bytes.
        sealing: whether it seals, or opens.

    Raises:
        OSError: libcrypto is missing, or refuses.
    """

    _context: Optional[int] = None  # libcrypto's

    def __init__(self, name: str, key: bytes, sealing: bool) -> None:
        library = _library()
        if library is None:
            raise OSError("there is no libcrypto here")
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes; it must have {KEY_BYTES}")
        self._library = library
        self._count = ctypes.c_int()
        self._context = library.EVP_CIPHER_CTX_new()
        if not self._context:
            raise OSError("libcrypto has no memory")
        cipher = getattr(library, CIPHERS[name])()
        self._check(library.EVP_CipherInit_ex(self._context, cipher, None, key, None, int(sealing)))

    def __del__(self) -> None:
        if self._context:
            self._library.EVP_CIPHER_CTX_free(self._context)

    @staticmethod
    def _check(result: int) -> None:
        if result != 1:
            raise OSError("libcrypto refused a call")

    def begin(self, nonce: bytes, aad: bytes) -> None:
        """Begin to seal or open. `run` follows for each piece, then the end by a tag.

        Args:
            nonce: 12 bytes, used once.
            aad: what else the tag shall vouch for.
        """
        if len(nonce) != _NONCE_BYTES:
            raise ValueError(f"a nonce of {len(nonce)} bytes; it must have {_NONCE_BYTES}")
        library, context = self._library, self._context
        self._check(library.EVP_CipherInit_ex(context, None, None, None, nonce, -1))
        if aad:
            self._check(library.EVP_CipherUpdate(context, None, ctypes.byref(self._count), aad, len(aad)))

    def run(self, piece: Writable) -> None:
        """Encrypt or decrypt the next bytes where they are. Only the end tells whether decrypted ones are the other side's."""
        if len(piece) > _MOST_BYTES:
            raise ValueError(f"a piece of {len(piece)} bytes; it must have less than 2 GiB")
        if len(piece):
            at = _address(piece)
            self._check(self._library.EVP_CipherUpdate(self._context, at, ctypes.byref(self._count), at, len(piece)))
            if self._count.value != len(piece):
                raise OSError("libcrypto kept bytes back")

    def seal(self, nonce: bytes, aad: bytes, piece: Writable, tag: Writable) -> None:
        """Encrypt these bytes where they are, and write their tag to `tag` (16 bytes). `nonce`, `aad`: as `begin`."""
        self.begin(nonce, aad)
        self.run(piece)
        library = self._library
        self._check(library.EVP_CipherFinal_ex(self._context, _address(tag), ctypes.byref(self._count)))
        self._check(library.EVP_CIPHER_CTX_ctrl(self._context, _GET_TAG, TAG_BYTES, _address(tag)))

    def opened(self, tag: Buffer) -> None:
        """End the opening. Raises NotAuthentic: the pieces since `begin` then hold garbage."""
        if len(tag) != TAG_BYTES:
            raise NotAuthentic
        library, scratch = self._library, bytearray(TAG_BYTES)
        self._check(library.EVP_CIPHER_CTX_ctrl(self._context, _SET_TAG, TAG_BYTES, bytes(tag)))
        if library.EVP_CipherFinal_ex(self._context, _address(scratch), ctypes.byref(self._count)) != 1:
            raise NotAuthentic
