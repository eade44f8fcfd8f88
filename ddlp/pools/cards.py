"""`CardPool`: engines that anything may start, and that a shared directory tells of."""

from __future__ import annotations

import os
from collections.abc import Mapping

from csd_engine.errors import EngineError
from csd_engine.protocol.cards import open_cards
from ddlp.devices.device import Data, check_data
from ddlp.errors import DDLPError
from ddlp.pools.base import check_range, check_wanted
from ddlp.sources.engine.connections import EngineAt
from ddlp.sources.engine.device_link import carded_engines

__all__ = ["CardPool"]


class CardPool:
    """Engines that tell in a shared directory where they are, for ``DDLPLoader(pool=)``.

    ``pool="/shared/cards"`` means ``CardPool("/shared/cards")``. Anything may start the engines, on any computer that sees the
    directory and the images: ssh, srun, a Kubernetes Deployment. Each is started by ``python -m csd_engine --card
    /shared/cards``, and takes part in the epoch under way. This host leaves its public key there (docs/pools.md).

    Args:
        directory: it must belong to this user, and nobody else may write to it.
        data: "there": the engines see the data set's files. "carried": this host sends the files of each batch, as for
            `ddlp.Device`.
        min, max: if ``max`` is given, ``min`` to ``max`` of the engines are used: as many as training needs with
            ``strategy="auto"``, else ``max`` until `want` says another number. None: all that are there.

    Raises:
        ValueError: ``data`` is something else, or a number is out of range.
        DDLPError: the directory is missing, another user's, or others may write to it.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, data: Data = "there", min: int = 0, max: int | None = None
    ) -> None:
        check_data(data)
        if max is not None:
            check_range(min, max)
        self.directory, self._data = os.path.abspath(directory), data
        self.min, self.max, self._at_most = min, max, max
        try:
            open_cards(self.directory)
        except EngineError as error:
            raise _unfit(error) from None

    def want(self, engines: int) -> None:
        """Use so many of the engines at most. Others finish what they have, and are left alone. No engine is started or ended.

        Raises:
            ValueError: if it is less than 1, or beyond ``min`` and ``max`` if they are given.
        """
        check_wanted(engines, self.min, self.max)
        self._at_most = engines

    def engines(self) -> Mapping[str, EngineAt]:
        """Return the engines by their cards' names. Cards that were not renewed for a minute are removed.

        Raises:
            DDLPError: the directory can't be read, is another user's, or others may write to it; or this host's key can't be
                left there.
        """
        try:
            engines = list(carded_engines(self.directory, self._data).items())[: self._at_most]
        except EngineError as error:
            raise _unfit(error) from None
        except OSError as error:
            raise DDLPError(
                f"pool={self.directory!r}: the directory of cards can't be used now: {error}. This user must be able to read "
                "and write it."
            ) from None
        return dict(engines)

    def __repr__(self) -> str:
        number = "" if self.max is None else f"{self.min} to {self.max} of "
        return f"{number}the engines whose cards are in {self.directory}"


def _unfit(error: EngineError) -> DDLPError:
    return DDLPError(f"pool=: {error}")
