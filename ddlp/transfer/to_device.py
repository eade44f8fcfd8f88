"""The last step of a batch, in the training thread: it is moved to the device, and the user's batch_transform runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from ddlp.process.user_warnings import warn_user

__all__ = ["MoveAndTransform", "can_pin", "each_tensor", "move", "pinned_for", "pins"]

# A larger copy from memory that is not page-locked may wait for all training steps that are queued before it.
_PAGEABLE_BYTES = 64 << 10
_WITHOUT_TENSORS = (str, bytes, bytearray, memoryview, int, float, type(None))


def can_pin() -> bool:
    """Return whether torch page-locks memory here. Versions before 2.6 look for themselves."""
    return not hasattr(torch, "accelerator") or torch.accelerator.is_available()


def pins(loader: DataLoader) -> bool:
    """Return whether a loader's batches can be page-locked. Where they can't, torch's own warning comes at the user's line."""
    if not loader.pin_memory:
        return False
    if can_pin():
        return True
    warn_user(
        "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used."
    )
    return False


def pinned_for(loader: DataLoader) -> str | None:
    """Return the kind of device for which torch page-locks a loader's batches; None: it does not, or torch is before 2.6."""
    if not pins(loader) or not hasattr(torch, "accelerator"):
        return None
    kind = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    return None if kind == "mps" else kind


class MoveAndTransform:
    """Called with each batch; its result is delivered. ``device`` None leaves the batch where it is."""

    def __init__(self, device: torch.device | None, batch_transform: Callable[[Any], Any] | None) -> None:
        self._device = device
        self.batch_transform = batch_transform

    def __call__(self, batch: Any) -> Any:
        if self._device is not None:
            batch = move(batch, self._device)
        return batch if self.batch_transform is None else self.batch_transform(batch)


def move(batch: Any, device: torch.device) -> Any:
    """A batch of any shape with its tensors on a device.

    This is how accelerate and Lightning move batches. An object with a ``to`` of its own is moved by it (a BatchEncoding, a
    PackedSequence, a graph). The parts of mappings and sequences are moved one by one. Anything else stays as it is, unless
    torch.utils._pytree knows its type.
    """
    if isinstance(batch, torch.Tensor):
        if device.type == "cuda" and batch.layout is torch.strided and batch.device.type == "cpu":
            if batch.nbytes > _PAGEABLE_BYTES and not batch.is_pinned():
                batch = batch.pin_memory()
        return batch.to(device, non_blocking=True)
    if isinstance(batch, _WITHOUT_TENSORS):
        return batch
    if callable(getattr(type(batch), "to", None)):  # of its type: a named tuple may have a field of that name
        try:
            return batch.to(device, non_blocking=True)
        except TypeError:  # it takes nothing but the device
            return batch.to(device)
    return _each_part(batch, lambda part: move(part, device))


def each_tensor(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch of any shape, in new containers, with ``change`` applied to each of its tensors. Unknown objects stay."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    return batch if isinstance(batch, _WITHOUT_TENSORS) else _each_part(batch, lambda part: each_tensor(part, change))


def _each_part(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, Mapping):
        return _alike(batch, {name: change(value) for name, value in batch.items()})
    if isinstance(batch, Sequence):
        return _alike(batch, [change(part) for part in batch])
    # A type that is registered with torch.utils._pytree, or an unknown one, which stays as it is.
    return tree_map_only(torch.Tensor, change, batch)


def _alike(batch: Any, parts: Any) -> Any:
    """Return the parts in a container like the batch's, as torch's pin_memory does; in a plain one if that can't be made."""
    try:
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*parts)
        if isinstance(batch, MutableMapping):  # a copy keeps what else it holds
            clone = copy.copy(batch)
            clone.update(parts)
            return clone
        if isinstance(batch, MutableSequence):
            sequence = copy.copy(batch)
            for k, part in enumerate(parts):
                sequence[k] = part
            return sequence
        return type(batch)(parts)
    except TypeError:
        return parts
