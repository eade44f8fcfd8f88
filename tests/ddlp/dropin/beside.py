"""What a loader gives, as values that compare with ==: to hold ddlp's beside DataLoader's."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from ddlp.epoch.iterator import EpochIterator

MOST_STEPS = 200  # an epoch that raises for ever ends here


def plain(thing: Any) -> Any:
    """Return a batch with all of its types, dtypes, shapes and values."""
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
    if isinstance(thing, torch.Tensor):
        content = thing.detach().as_subclass(torch.Tensor).contiguous()
        boxes = getattr(thing, "format", None), getattr(thing, "canvas_size", None)  # of torchvision's tv_tensors
        return kind, str(thing.dtype), str(thing.device), tuple(thing.shape), thing.requires_grad, *boxes, _bytes(content)
    if isinstance(thing, Image.Image):
        return kind, thing.mode, thing.size, thing.tobytes()
    if isinstance(thing, np.ndarray):
        return kind, str(thing.dtype), thing.shape, thing.tolist() if thing.dtype.hasobject else thing.tobytes()
    if isinstance(thing, np.generic):
        return kind, str(thing.dtype), thing.tobytes()
    if isinstance(thing, Mapping):
        return kind, [(plain(key), plain(value)) for key, value in thing.items()]
    if isinstance(thing, (list, tuple)):
        return kind, [plain(one) for one in thing]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return kind, [(field.name, plain(getattr(thing, field.name))) for field in dataclasses.fields(thing)]
    return kind, repr(thing)


def equal(ours: Iterable[Any], theirs: Iterable[Any]) -> None:
    """Check that there are as many batches, and that each has the other's types, dtypes, shapes and values."""
    mine, others = [plain(batch) for batch in ours], [plain(batch) for batch in theirs]
    assert len(mine) == len(others) > 0
    for number, (batch, other) in enumerate(zip(mine, others, strict=True)):
        assert batch == other, f"batch {number}"


def cut(loader: DataLoader) -> EpochIterator:
    """Return the epoch's iterator. It must be ddlp's own."""
    iterator = iter(loader)
    assert isinstance(iterator, EpochIterator)
    return iterator


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def generators() -> Any:
    """Return the states of the global generators of torch, numpy and random."""
    return torch.get_rng_state().tolist(), plain(list(np.random.get_state())), random.getstate()


def seed_all(seed: int) -> None:
    """Seed the global generators of torch, numpy and random."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def epoch(loader: DataLoader, most: int = MOST_STEPS) -> list[Any]:
    """Return what an epoch gives, in ``most`` steps at most: ("batch", what it is), or ("error", its type)."""
    steps: list[Any] = []
    try:
        iterator = iter(loader)
    except Exception as error:
        return [("error at iter()", type(error).__name__)]
    while len(steps) < most:
        try:
            steps.append(("batch", plain(next(iterator))))
        except StopIteration:
            return steps
        except Exception as error:
            steps.append(("error", type(error).__name__))
    return steps


def epochs(loader: DataLoader, number: int = 2, seed: int = 3) -> list[Any]:
    """Return what so many epochs give, and after each the states of the global generators. All begin with ``seed``."""
    seed_all(seed)
    return [(epoch(loader), generators()) for _ in range(number)]
