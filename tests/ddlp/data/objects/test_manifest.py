"""Which objects are samples, in which order; index files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from csd_engine.data.objects.stored import Stored, same_tag
from ddlp.data.objects.manifest import Manifest, parse_index

KEYS = [
    "dog/9.jpg", "dog/10.JPEG", "cat/b/1.png", "cat/b.jpg", "cat/a/z.webp", "cat/a-b/1.jpg", "cat/a/b/c.jpg", "Cow/ü 1.jpg",
    "readme.txt", "0.jpg", "cat/notes.txt", "empty/", "cat/a0.bmp",
]  # fmt: skip


def stored(keys: list[str]) -> list[Stored]:
    return [Stored(key, len(key), f'"{key}"') for key in keys]


def test_samples_and_classes_are_those_of_an_image_folder(tmp_path):
    for key in KEYS:
        if not key.endswith("/"):
            path = tmp_path / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    theirs = ImageFolder(str(tmp_path))
    for seed in range(5):
        keys = random.Random(seed).sample(KEYS, len(KEYS))
        ours = Manifest.of(stored(keys))
        assert ours.classes == theirs.classes and ours.targets == theirs.targets
        assert [one.key for one in ours.objects] == [Path(path).relative_to(tmp_path).as_posix() for path, _ in theirs.samples]


def test_the_fingerprint_tells_what_the_numbers_mean():
    first = Manifest.of(stored(KEYS)).fingerprint()
    assert first == Manifest.of(stored(KEYS[::-1])).fingerprint() and len(first) == 32
    changed = stored(KEYS)
    for other in (Stored("dog/9.jpg", 10, changed[0].tag), Stored("dog/9.jpg", 9, "x"), Stored("dog/8.jpg", 9, changed[0].tag)):
        assert Manifest.of([other, *changed[1:]]).fingerprint() != first


def test_tags():
    assert same_tag('"a"', '"a"') and same_tag("a", '"a"') and same_tag('W/"a"', '"a"') and same_tag("", '"a"')
    assert not same_tag('"a"', '"b"')


def test_an_index():
    text = b"12 cat/1.jpg\r\n\n0 dog/a b \xc3\xbc.jpg\n7 x.jpg"
    assert parse_index(text, "i") == [Stored("cat/1.jpg", 12, ""), Stored("dog/a b ü.jpg", 0, ""), Stored("x.jpg", 7, "")]
    assert parse_index(b"", "i") == []


@pytest.mark.parametrize(
    "line",
    ["cat/1.jpg", "x cat/1.jpg", "-1 cat/1.jpg", "12", "12 ", "12 /cat/1.jpg", "12 ../1.jpg", "12 a/../b.jpg", "12 a//b.jpg",
     "12 ./a.jpg", "12 a/\x001.jpg", "12 a/\x1b[1m.jpg", "1" * 16 + " a/1.jpg", "12 cat/0.jpg", "\u0661 cat/1.jpg"],
)  # fmt: skip
def test_a_damaged_index_is_told_with_its_line(line):
    with pytest.raises(ValueError, match=r"^https://s/index.txt, line 2, .*Write the index again\.$") as caught:
        parse_index(f"3 cat/0.jpg\n{line}\n".encode(), "https://s/index.txt")
    assert str(caught.value).isprintable()


def test_an_index_that_is_no_text_is_told():
    with pytest.raises(ValueError, match="https://s/index.txt is not UTF-8: .* at byte 2"):
        parse_index(b"1 \xff", "https://s/index.txt")
