"""The shelf of a loader's data set and pipeline: opened before an epoch, and kept for the next ones."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform

import PIL

import csd_engine
from csd_engine.cache.shelf import CacheCounts, Shelf
from csd_engine.cache.shelves import Shelves
from csd_engine.errors import CacheRefused
from csd_engine.machine.sizes import size_text
from csd_engine.machine.versions import libjpeg
from csd_engine.prepare.cached_batch import SampleCache
from csd_engine.service.spool import free_bytes
from csd_engine.transforms.prefix import CachePoint, cache_point
from ddlp.cache_directory import samples_directory
from ddlp.caching.measuring import pixels_pay
from ddlp.caching.settings import Cache
from ddlp.errors import DDLPError
from ddlp.planning.cache_point import ASSUMED_EPOCHS
from ddlp.translate.portable import Portable

__all__ = ["LoaderCache"]

_SHARE = 5  # "auto" takes a fifth of the free space


class LoaderCache:
    """A loader's cache. It is opened before the first epoch that can use it, and kept.

    Args:
        setting: the loader's ``cache=``, not False.

    Attributes:
        pid: of the process that has made it: forks need one of their own.
        warnings: what went wrong, in lines for the user that nobody has shown yet.
    """

    def __init__(self, setting: str | Cache) -> None:
        self.setting, self.pid = setting, os.getpid()
        self.warnings: list[str] = []
        self._open: SampleCache | None = None
        self._directory = ""
        self._why_not = ""
        self._auto_pays: dict[str, tuple[bool, str]] = {}  # what `pixels_pay` said, by the shelf's key

    def for_epoch(self, portable: Portable) -> SampleCache | None:
        """Return the cut and the shelf for an epoch; None: nothing can be kept, or "auto" finds that it does not pay.

        Raises DDLPError if the given directory can't be used.
        """
        point, self._why_not = point_of(portable)
        if point is None:
            self.close()
            return None
        key = _key(portable, point)
        if self._open is not None and self._open.shelf.key == key:
            self._open.shelf.begin()
            return self._open
        self.close()
        try:
            place = self._place(portable, point, key)
            self._open = None if place is None else self._opened(place, portable, point, key)
        except CacheRefused as error:
            if self.setting != "auto":
                raise DDLPError(f"cache={self.setting!r}: {error}") from error
            self._why_not = str(error)
        return self._open

    def _opened(self, place: Cache, portable: Portable, point: CachePoint, key: str) -> SampleCache:
        shelves = Shelves(place.directory, place.bytes)
        about = {
            "data set": ", ".join(part.name for part in portable.dataset.parts),
            "first": next(iter(portable.dataset.some_places()), ""),
            "samples": portable.dataset.starts[-1],
            "point": str(point),
            "pillow": PIL.__version__,
        }
        shelf = Shelf(shelves, key, about, portable.dataset.starts[-1], point.shape[2], self.warnings.append)
        self._directory = shelves.path
        return SampleCache(point, shelf)

    def _place(self, portable: Portable, point: CachePoint, key: str) -> Cache | None:
        """Return the directory and its quota; None: "auto" takes none, and `_why_not` says why."""
        if isinstance(self.setting, Cache):
            return self.setting
        directory = samples_directory()
        if directory is None:
            self._why_not = "this user has no home, and so no cache directory"
            return None
        place = _auto_place(os.fspath(directory))
        if not point.fixed:
            if key not in self._auto_pays:
                self._auto_pays[key] = pixels_pay(portable, point, place.bytes)
            found, self._why_not = self._auto_pays[key]
            if not found:
                return None
        self.warnings.append(
            f"cache='auto' may keep {size_text(place.bytes)} in {place.directory}, 20 % of the free space at most"
        )
        return place

    @property
    def counts(self) -> CacheCounts | None:
        """What the last epoch's shelf did; None: there is none."""
        return None if self._open is None else self._open.shelf.counts

    @property
    def line(self) -> str:
        """What is kept and where, in one line; or why nothing is."""
        if self._open is None:
            return f"nothing is kept: {self._why_not}" if self._why_not else "nothing is kept yet"
        trouble = self._open.shelf.trouble
        return f"{self._open.point}, in {self._directory}" + (f"; it {trouble}" if trouble else "")

    def take_warnings(self) -> list[str]:
        """Return the warnings, which are forgotten then."""
        found, self.warnings[:] = list(self.warnings), []
        return found

    def close(self) -> None:
        """Give up the shelf. Another epoch may open one again."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.shelf.close()


def point_of(portable: Portable) -> tuple[CachePoint | None, str]:
    """Return where a loader's pipeline is cut; None and why, if nothing can be kept."""
    sizes = {part.size for part in portable.dataset.parts}
    if portable.dataset.reader().places([0] if portable.dataset.starts[-1] else []) is None:
        return None, "the samples are no files, and arrays are in memory already"
    point = cache_point(portable.pipeline, sizes.pop() if len(sizes) == 1 else None)
    if point is None and portable.pipeline.user_operators:
        return None, "the pipeline has operators of your own, which may ask for the file's metadata"
    return point, "" if point is not None else "decode='fast' decodes each image at a size that depends on the random crop"


def _key(portable: Portable, point: CachePoint) -> str:
    """Return the key of a shelf, 32 hex digits: the data set, the operators, and what decides about their bits.

    A few samples stand for the data set, since each entry of a shelf names its own file.
    """
    places = [os.path.abspath(place) for place in portable.dataset.some_places()]
    names = [part.name for part in portable.dataset.parts]
    decoders = (csd_engine.__version__, PIL.__version__, libjpeg(), platform.machine())
    told = repr((names, portable.dataset.starts, places, point.before.digest, point.shape, decoders))
    return hashlib.blake2b(told.encode(errors="surrogateescape"), digest_size=16, person=b"ddlp shelf").hexdigest()


def _auto_place(directory: str) -> Cache:
    """Return where ``cache="auto"`` keeps samples, and how many bytes: a fifth of what is free without its own files."""
    held = 0
    with contextlib.suppress(CacheRefused, OSError):
        if os.path.isdir(directory):
            held = sum(one.bytes for one in Shelves(directory, 0).summaries())
    above = directory
    while not os.path.exists(above):
        above = os.path.dirname(above)
    return Cache(directory, (free_bytes(above) + held) // _SHARE)


def cache_line(setting: bool | str | Cache, portable: Portable) -> str | None:
    """Return what a loader would keep, in one line, or why it would keep nothing; None: it is not asked to."""
    if isinstance(setting, bool):
        return None
    point, why_not = point_of(portable)
    if point is None:
        return f"nothing is kept: {why_not}"
    shape = "uint8, each image of its own size" if not point.fixed else f"uint8 {point.shape}"
    if isinstance(setting, Cache):
        return f"{point}, {shape}, in {os.fspath(setting.directory)}, {size_text(setting.bytes)} at most"
    when = "" if point.fixed else f", if measuring before the first epoch shows that it saves time in {ASSUMED_EPOCHS} epochs"
    return f"{point}, {shape}, in the user's cache directory, at most 20 % of its free space{when}"
