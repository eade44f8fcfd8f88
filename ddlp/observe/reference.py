"""What a batch must be, made again in the slow and plain way: Pillow's operators, the user's own data set, the file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.batchfile.checksum import Checksum
from ddlp.sampling.keyed_generators import keyed_globals
from ddlp.sources.base import PreparedBatch, Resources
from ddlp.translate.leaf import DictSample

__all__ = ["Header", "checksum", "digest", "expected_images", "expected_targets", "own_target", "read_header"]


@dataclass(frozen=True)
class Header:
    """What a published batch file says of itself."""

    lease: int
    checksum: str
    whole: bool  # it has as many bytes as its tensors need
    marks: int = 0  # of rows that its writer may not have made


def read_header(path: Path) -> Header | None:
    """The header of a batch file, read as a safetensors file; None where this host does not see it."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            tensors = json.loads(file.read(length))
        about = tensors.pop("__metadata__")
        end = 8 + length + max(tensor["data_offsets"][1] for tensor in tensors.values())
        marks = tensors.get("bad_rows", {"shape": [0]})["shape"][0]
        return Header(int(about["lease"]), about["checksum"], path.stat().st_size == end, marks)
    except OSError:
        return None
    except (ValueError, KeyError, TypeError):
        return Header(-1, "", False)


def checksum(pixels: PreparedBatch, marks: int = 0) -> str:
    """The checksum that a batch file must have for these bytes. ``marks``: so many rows are marked as not bad."""
    running = Checksum()
    for tensor in (pixels.images, pixels.boxes):
        if tensor is not None:
            running.update(np.ascontiguousarray(tensor.cpu().numpy()).reshape(-1).view(np.uint8).data)
    running.update(bytes(marks))
    return running.hexdigest()


def digest(tensor: torch.Tensor) -> str:
    """The digest of a tensor's values, on any device."""
    values = tensor.detach().cpu().contiguous()
    return hashlib.blake2b(values.reshape(-1).view(torch.uint8).numpy().data, digest_size=16).hexdigest()


def expected_images(resources: Resources, position: int, rows: list[int], sources: list[int]) -> list[torch.Tensor]:
    """Some rows of a batch as the pipeline's reference (Pillow's operators, no kernel) and the epilogue make them.

    One tensor, or one for each view if a row holds several.

    ``sources``: whose images its samples have; another sample's in the place of a bad one.
    """
    epoch, portable, pipeline = resources.epoch, resources.epoch.portable, resources.epoch.portable.pipeline
    items, reader = resources.plan.image_items(position), portable.dataset.reader()
    images = np.empty((len(rows), *portable.shape), np.uint8)
    boxes = np.zeros((len(rows), pipeline.boxes, 4), np.int32) if pipeline.boxes else None
    for k, row in enumerate(rows):
        index, occurrence = items[row]
        with reader.image(sources[row % len(sources)]) as image:
            keyed = Keyed(epoch.seed, epoch.number, index, occurrence)
            pipeline.run(image, keyed, images[k], None if boxes is None else boxes[k])
    result = portable.epilogue(torch.from_numpy(images), None if boxes is None else torch.from_numpy(boxes))
    return portable.epilogue.views(result, 1)


def expected_targets(resources: Resources, position: int, sources: list[int]) -> list[Any]:
    """A batch's targets, one by one. ``sources``: as for `expected_images`."""
    epoch, targets = resources.epoch, []
    for (index, occurrence), source in zip(resources.plan.items(position), sources, strict=True):
        with keyed_globals(Keyed(epoch.seed, epoch.number, index, occurrence).u64()):
            targets.append(epoch.portable.dataset.target(source))
    return targets


def own_target(dataset: Any, index: int, keys: DictSample | None) -> Any:
    """The target that the user's data set itself gives for this index; the global random generators stay as they are."""
    with keyed_globals(0):
        return dataset[index][1] if keys is None else keys.split(dataset[index])[1]
