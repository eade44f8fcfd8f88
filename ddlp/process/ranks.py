"""Which rank of a training run this process is, as torch.distributed or torchrun says."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Ranks", "here"]


@dataclass(frozen=True)
class Ranks:
    """The place of this process among the ranks of its run, which are at least two.

    Attributes:
        run: 32 hex digits, the same in all ranks of the run. They change when torchrun starts the ranks again.
        rank, ranks: over all machines.
        local_rank, local_ranks: on this one.
    """

    run: str
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int


def _this_machine(address: str) -> bool:
    return address in ("localhost", "127.0.0.1", "::1", socket.gethostname())


def here(environment: Mapping[str, str] = os.environ) -> Ranks | None:
    """Return which rank this process is; None if it is the only one, or if that can't be known.

    The rank comes from torch.distributed if that is initialised, else from torchrun's environment. A run's name is made of what
    all its ranks have in common: the address at which the first rank listens, and torchrun's id and count of restarts. Without
    LOCAL_RANK and LOCAL_WORLD_SIZE (processes that torchrun did not start), all ranks count as ranks of this machine if the
    first one runs here.
    """
    distributed = sys.modules.get("torch.distributed")  # not imported: not initialised
    known = distributed is not None and distributed.is_available() and distributed.is_initialized()
    try:
        address, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
        if known:
            assert distributed is not None
            rank, ranks = distributed.get_rank(), distributed.get_world_size()
        else:
            rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        if "LOCAL_RANK" in environment or not (known and _this_machine(address)):
            local_rank, local_ranks = int(environment["LOCAL_RANK"]), int(environment["LOCAL_WORLD_SIZE"])
        else:
            local_rank, local_ranks = rank, ranks
    except (KeyError, ValueError):
        return None
    if not (0 <= local_rank < local_ranks <= ranks and 0 <= rank < ranks and ranks > 1):
        return None
    torchrun = (environment.get("TORCHELASTIC_RUN_ID", ""), environment.get("TORCHELASTIC_RESTART_COUNT", ""))
    digest = hashlib.blake2b("\0".join((address, port, *torchrun)).encode(), digest_size=16)
    return Ranks(digest.hexdigest(), rank, ranks, local_rank, local_ranks)
