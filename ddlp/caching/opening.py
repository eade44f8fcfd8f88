"""The shelf of a loader's data set and pipeline: opened before an epoch, and kept for the next ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

import PIL

from csd_engine.cache.shelf import CacheCounts, Shelf
from csd_engine.cache.shelves import Shelves
from csd_engine.errors import CacheRefused
from csd_engine.machine.sizes import free_bytes, size_text
from csd_engine.prepare.cached_batch import Kept, SampleCache, channels_of, shelf_key
from ddlp.caching.cache_point import ASSUMED_EPOCHS, OFF
from ddlp.caching.choosing import Points, choose, points_of
from ddlp.caching.settings import Cache
from ddlp.errors import DDLPError
from ddlp.process.cache_directory import samples_directory
from ddlp.process.user_warnings import advise_user
from ddlp.translate.marked import Marked
from ddlp.translate.portable import Portable
from ddlp.translate.transforms import names_of

__all__ = ["NO_HOME", "LoaderCache", "auto_line", "cache_line", "place_of", "point_line"]

NO_HOME = "this user has no home, and so no cache directory"

_SHARE = 5  # "auto" takes a fifth of the free space


class LoaderCache:
    """A loader's cache. It is opened before the first epoch that can use it, and kept.

    Args:
        setting: the loader's ``cache=``, not False.
        slow: whether the host is too slow for training. If it is not, and nobody wants samples kept in any case, no more are.

    Attributes:
        pid: of the process that has made it: forks need one of their own.
        warnings: what went wrong, in lines for the user that nobody has shown yet.
    """

    def __init__(self, setting: str | Cache, slow: Callable[[], bool]) -> None:
        self.setting, self.pid, self._slow = setting, os.getpid(), slow
        self.warnings: list[str] = []
        self._open: SampleCache | None = None
        self._directory = ""
        self._why_not = ""
        self._chosen: dict[str, tuple[str, str]] = {}  # what `choose` said, by what there was to choose from
        self._key = ""  # of what the open shelf was chosen from

    def for_epoch(self, portable: Portable, workers: int) -> SampleCache | None:
        """Return what is kept and its shelf, for an epoch; None: nothing can be kept, or "auto" finds that it does not pay.

        ``workers``: threads that make samples. Raises DDLPError if the given directory can't be used.
        """
        points, self._why_not = points_of(portable, _keeps(self.setting))
        if not points:
            self.close()
            return None
        key = _key(portable, points.values())
        if self._open is not None and self._key == key:
            self._open.shelf.begin()
            return self._open
        self.close()
        try:
            self._open, self._key = self._opened(portable, points, key, workers), key
        except CacheRefused as error:
            if self.setting != "auto":
                raise DDLPError(f"cache={self.setting!r}: {error}") from error
            self._why_not = str(error)
        return self._open

    def _opened(self, portable: Portable, points: Points, key: str, workers: int) -> SampleCache | None:
        """Choose what to keep, and open its shelf; None: nothing, and `_why_not` says why. Raises CacheRefused."""
        place = place_of(self.setting)
        if place is None:
            self._why_not = NO_HOME
            return None
        if key not in self._chosen:
            self._chosen[key] = choose(portable, points, place.bytes, _epochs(self.setting), workers)
        name, self._why_not = self._chosen[key]
        if name == OFF:
            return None
        if self.setting == "auto":
            advise_user(f"ddlp: {auto_line(place)}")
        point, shelves, samples = points[name], Shelves(place.directory, place.bytes), portable.dataset.starts[-1]
        about = {
            "data set": ", ".join(part.name for part in portable.dataset.parts),
            "first": next(iter(portable.dataset.some_places()), ""),
            "samples": samples,
            "point": str(point),
            "pillow": PIL.__version__,
        }
        shelf = Shelf(shelves, _key(portable, (point,)), about, samples, channels_of(point), self.warnings.append)
        if _epochs(self.setting) is not None:
            shelf.wanted = self._slow
        self._directory = shelves.path
        return SampleCache(point, shelf)

    @property
    def counts(self) -> CacheCounts | None:
        """What the last epoch's shelf did; None: there is none."""
        return None if self._open is None else self._open.shelf.counts

    @property
    def line(self) -> str:
        """What is kept and where, in one line; or why nothing is."""
        if self._open is None:
            return f"nothing is kept: {self._why_not}" if self._why_not else "nothing is kept yet"
        shelf = self._open.shelf
        rests = "" if shelf.wanted() else "; no more is kept, since training does not wait for its data"
        return f"{self._open}, in {self._directory}" + (f"; it {shelf.trouble}" if shelf.trouble else rests)

    def take_warnings(self) -> list[str]:
        """Return the warnings, which are forgotten then."""
        warnings, self.warnings[:] = list(self.warnings), []
        return warnings

    def close(self) -> None:
        """Give up the shelf. Another epoch may open one again."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.shelf.close()


def _key(portable: Portable, points: Iterable[Kept]) -> str:
    """Return the key of a shelf for a loader's data set."""
    dataset = portable.dataset
    return shelf_key(([part.name for part in dataset.parts], dataset.starts, dataset.some_absolute_places()), points)


def place_of(setting: str | Cache) -> Cache | None:
    """Return the directory of a loader's ``cache=``, and its quota; None: "auto" finds none, for `NO_HOME`."""
    if isinstance(setting, Cache):
        return setting
    directory = samples_directory()
    return None if directory is None else _auto_place(os.fspath(directory))


def auto_line(place: Cache) -> str:
    """Return what the user is told about the place that "auto" has found."""
    return f"cache='auto' may keep {size_text(place.bytes)} in {place.directory}, 20 % of the free space at most"


def _auto_place(directory: str) -> Cache:
    """Return where ``cache="auto"`` keeps samples, and how many bytes: a fifth of what is free without its own files."""
    held = 0
    with contextlib.suppress(CacheRefused, OSError):
        if os.path.isdir(directory):
            held = sum(shelf.bytes for shelf in Shelves(directory, 0).summaries())
    above = directory
    while not os.path.exists(above):
        above = os.path.dirname(above)
    return Cache(directory, (free_bytes(above) + held) // _SHARE)


def cache_line(setting: bool | str | Cache, portable: Portable) -> str | None:
    """Return what a loader would keep, in one line, or why it would keep nothing; None: it is not asked to."""
    if isinstance(setting, bool):
        return None
    points, why_not = points_of(portable, _keeps(setting))
    if not points:
        return f"nothing is kept: {why_not}"
    description = " or ".join(_described(point) for point in points.values())
    if portable.point is not None:
        description += ", where CachePoint() stands"
    if isinstance(setting, Cache):
        where = f"in {os.fspath(setting.directory)}, {size_text(setting.bytes)} at most"
    else:
        where = "in the user's cache directory, at most 20 % of its free space"
    epochs = _epochs(setting)
    when = f", if measuring before the first epoch shows that it saves time in {epochs} epochs"
    sure = epochs is None or ("prefix" in points and "files" not in points)
    waits = "" if epochs is None else "; more is kept only while training waits for its data"
    return f"{description}, {where}{'' if sure else when}{waits}"


def point_line(setting: bool | str | Cache, marked: Marked) -> str | None:
    """Do as `cache_line` where the user's own steps stand before a CachePoint."""
    if isinstance(setting, bool):
        return None
    frozen = marked.point.frozen_epochs
    where = f"in {os.fspath(setting.directory)}" if isinstance(setting, Cache) else "in the user's cache directory"
    line = f"what reaches CachePoint(), after {marked}, {where}; then {' -> '.join(names_of(marked.behind)) or 'nothing'} runs"
    return line + ("" if frozen is None else f"; its random outcome is kept for {frozen} epochs")


def _keeps(setting: str | Cache) -> str:
    return setting.keeps if isinstance(setting, Cache) else "auto"


def _epochs(setting: str | Cache) -> int | None:
    """Return in how many epochs a cache must save time; None: it is wanted in any case."""
    return setting.epochs if isinstance(setting, Cache) else ASSUMED_EPOCHS


def _described(point: Kept) -> str:
    if isinstance(point, str):
        return point
    return f"{point}, uint8 {point.shape}" if point.fixed else f"{point}, uint8, each image of its own size"
