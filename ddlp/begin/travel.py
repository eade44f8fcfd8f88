"""`Travel`: whether ddlp's own code can make a loader's samples, on the host or on a device, and what the user is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader

from ddlp.config import LoaderConfig
from ddlp.errors import DDLPError, Untranslatable
from ddlp.process.platforms import OtherSystem, tell_once
from ddlp.process.user_warnings import advise_user, warn_user
from ddlp.translate.marked import CodeBeforePoint
from ddlp.translate.obstacles import has_images
from ddlp.translate.portable import Portable, portable
from ddlp.translate.self_described import other_structure

if TYPE_CHECKING:  # imported when they are needed: a user without devices loads nothing of what serves them
    from ddlp.pools.base import Pool
    from ddlp.sources.usercode.work import Work

__all__ = ["Travel", "pool_of", "runs_user_code"]


class Travel:
    """What was found about one loader's samples, and which warnings it has given."""

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._compared = False
        self._otherwise: Callable[[], Untranslatable] | None = None  # the data set's own samples are not as it describes them

    def first(self, text: str) -> bool:
        """Return whether the loader's user was not warned of this before, and note that this is done now."""
        first = text not in self._warned
        self._warned.add(text)
        return first

    def translated(self, loader: DataLoader, config: LoaderConfig) -> Portable:
        """Call `portable` with the loader's arguments."""
        cached = config.cache is not False
        return portable(loader, config.output_dtype, config.memory_format, config.decode, config.as_pil, config.cuts, cached)

    def as_described(self, translated: Portable) -> Portable:
        """Return ``translated``. Raises Untranslatable if the data set's own samples have another structure than it describes.

        One sample is compared, once for each loader.
        """
        if not self._compared:
            self._compared, self._otherwise = True, other_structure(translated.dataset)
        if self._otherwise is not None:
            raise self._otherwise()
        return translated

    def now(self, loader: DataLoader, config: LoaderConfig, compare: bool = True) -> Portable | None:
        """Return the parts that can travel, as the data set is now. None, with one warning, if torch's own workers prepare it.

        ``compare``: a sample may be made to check the result. If nothing can travel, it raises Untranslatable if the strategy
        needs a device, and ValueError if an argument needs a pipeline that ddlp runs itself.
        """
        try:
            translated = self.translated(loader, config)
            return self.as_described(translated) if compare else translated
        except Untranslatable as error:
            at_home = why_at_home(loader, config)
            if at_home and config.chosen.needs_device:
                raise
            _check_arguments(config, error)
            error.__traceback__ = None  # else the frames and the error form a cycle, which keeps the caller's iterator
            self._tell(loader, config, error, at_home, begins=compare)
            return None

    def _tell(
        self, loader: DataLoader, config: LoaderConfig, error: Untranslatable, at_home: str, *, begins: bool
    ) -> None:
        """Tell the user, once, why the host's workers prepare all batches. ``begins``: an epoch begins."""
        uses_device = config.chosen.uses_device
        if isinstance(error, OtherSystem):
            tell_once(error.operator)
        elif not at_home or (isinstance(error, CodeBeforePoint) and not uses_device):
            pass  # the pool prepares them too; or the user has asked for this by a CachePoint
        elif self._otherwise is not None and not uses_device:
            self._warned.add(str(error))
            advise_user(f"ddlp: the host prepares all batches: {error}")
        elif uses_device and self.first(str(error)):
            more = f" The pool takes no part in your code: {at_home}." if runs_user_code(config) else ""
            warn_user(f"ddlp: the host prepares all batches: {error}{more}")
        elif begins and not self._warned and has_images(loader.dataset):  # an epoch begins that could be faster
            self._warned.add(str(error))
            advise_user(
                "ddlp: torch's own workers prepare this loader's batches, which ddlp could do faster, for "
                f"{error.operator}: {error.why}. loader.explain() lists all that is in the way, and what to write instead."
            )

    def work_for_pool(self, loader: DataLoader, config: LoaderConfig) -> Work | None:
        """Return the user's code for the pool's nodes; None if the host prepares the epoch alone.

        Raises DDLPError if the code can't be pickled, and only the pool may prepare batches.
        """
        if why_at_home(loader, config):
            return None
        from ddlp.sources.usercode.work import pickled

        try:
            return pickled(loader)
        except DDLPError as error:
            if config.chosen.needs_device:
                raise
            if self.first(str(error)):
                warn_user(f"ddlp: the host prepares all batches, the pool takes no part in your code: {error}")
            return None


def _check_arguments(config: LoaderConfig, error: Untranslatable) -> None:
    """Raise ValueError if an argument needs a pipeline that ddlp runs itself. ``error``: why it runs none."""
    if config.changes_images or config.backend != "native":
        text = "output=, memory_format=, decode='fast' and backend='dali' need a pipeline that ddlp runs itself"
        raise ValueError(f"{text}: {error}") from error
    if config.on_error == "replace":
        raise ValueError(
            "on_error='replace' needs a pipeline that ddlp runs itself: in torch's own workers the data set's code "
            f"opens the images, and only that code can tell a bad image from a fault of its own: {error}"
        ) from error


def why_at_home(loader: DataLoader, config: LoaderConfig) -> str:
    """Return why the pool takes no part in user code, if that prepares the samples; "": it does."""
    if not runs_user_code(config):
        return "there is no pool with user_code=True"
    from ddlp.sources.usercode import host

    return host.why_at_home(loader)


def pool_of(config: LoaderConfig) -> Pool | None:
    """Return the pool that the loader was given; None: there is none. Raises as `ddlp.pools.offload.pool_of`."""
    if config.pool is None:
        return None
    from ddlp.pools.offload import pool_of

    return pool_of(config.pool)


def runs_user_code(config: LoaderConfig) -> bool:
    """Whether there is a pool whose nodes run the user's own code."""
    pool = pool_of(config)
    if pool is None:
        return False
    from ddlp.pools.base import nodes_of

    return nodes_of(pool) is not None
