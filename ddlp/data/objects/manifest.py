"""The list of a data set's objects: which there are, how large, of which class. It is made from a listing or an index file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from csd_engine.data.objects.stored import Stored

__all__ = ["Manifest", "parse_index"]

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's IMG_EXTENSIONS
_LINE = re.compile(r"([0-9]{1,15}) (.+)")


@dataclass(frozen=True)
class Manifest:
    """The images of a data set, in the order of an ImageFolder with the same files: by class, directory and name.

    Attributes:
        objects: one for each sample.
        targets: the number of each one's class.
        classes: sorted.
    """

    objects: list[Stored]
    targets: list[int]
    classes: list[str]

    @classmethod
    def of(cls, listed: Iterable[Stored]) -> Manifest:
        """Make one of all objects below a URL, in any order. What is no image, or lies in no directory, is left out."""
        rows = []
        for stored in listed:
            directory, _, name = stored.key.rpartition("/")
            label, _, inner = directory.partition("/")
            if label and name.lower().endswith(IMAGES):
                rows.append((label, inner, name, stored))
        rows.sort(key=lambda row: row[:3])
        classes = sorted({label for label, *_ in rows})
        number = {label: k for k, label in enumerate(classes)}
        return cls([stored for *_, stored in rows], [number[label] for label, *_ in rows], classes)

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Stored:
        return self.objects[index]

    def where(self, index: int) -> str:
        """See `csd_engine.data.objects.stored.Listing.where`."""
        return self.objects[index].key

    def fingerprint(self) -> str:
        """Return 32 hex digits that tell what the samples' numbers mean. They depend on keys, sizes and ETags alone."""
        digest = hashlib.blake2b(digest_size=16, person=b"ddlp objects")
        for stored in self.objects:
            digest.update(f"{stored.size} {stored.tag}\0{stored.key}\0".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def parse_index(content: bytes, name: str) -> list[Stored]:
    r"""Read an index file: UTF-8, a line ``SIZE PATH`` for each file, as ``find . -type f -printf '%s %P\n'`` writes them.

    Args:
        content: of the file.
        name: of the file, for messages.

    Raises:
        ValueError: names the line and what it has.
    """
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8: {error.reason} at byte {error.start}. Write it again.") from None
    objects: dict[str, Stored] = {}
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not line:
            continue
        matched = _LINE.fullmatch(line)
        if not matched:
            raise _wrong(name, number, line, "it is not SIZE PATH, as 'find . -type f -printf \"%s %P\\n\"' writes it")
        key = matched[2]
        if any(part in ("", ".", "..") for part in key.split("/")) or not key.isprintable():
            raise _wrong(name, number, line, "its path leads elsewhere, or has an empty part or a control character")
        if key in objects:
            raise _wrong(name, number, line, "its path has come before")
        objects[key] = Stored(key, int(matched[1]), "")
    return list(objects.values())


def _wrong(name: str, number: int, line: str, why: str) -> ValueError:
    return ValueError(f"{name}, line {number}, {line[:80]!r}: {why}. Write the index again.")
