"""Worker processes keep the memory of a batch's temporary tensors for the next batch."""

from __future__ import annotations

import platform
import resource
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from ddlp import DDLPLoader
from tests.ddlp.dropin.small_sets import numbered

BYTES = 50 << 20  # more than glibc keeps by itself
PAGES = BYTES // resource.getpagesize()


class Own(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(1), index


def faults(samples: list[Any]) -> torch.Tensor:
    """The page faults of a worker for each of some temporary tensors, one after the other."""
    seen = []
    for _ in range(41):
        seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        torch.ones(BYTES // 4)
    return torch.tensor(seen).diff()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("own", [False, True])
def test_temporary_tensors_are_made_in_the_memory_of_those_before(paths, own):
    dataset: Any = Own() if own else numbered(paths[:4], T.Compose([T.Resize((8, 8)), T.ToTensor()]))
    torchs, ours = (next(iter(kind(dataset, 4, num_workers=1, collate_fn=faults))) for kind in (DataLoader, DDLPLoader))
    assert (torchs > PAGES / 2).all()  # else this test sees nothing
    assert (ours > PAGES / 2).sum() < 20  # the allocator may find its way through some of them, until the heap has room
