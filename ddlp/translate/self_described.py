"""Checks that a data set that describes itself (``__ddlp__``) describes samples of the structure that its own code gives.

Otherwise the batches' type would change without a word, e.g. from a dict by the data set's code to a list by its description.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Number
from typing import Any

import numpy as np
import torch
from PIL import Image

from ddlp.errors import Untranslatable
from ddlp.sampling.keyed_generators import keyed_globals
from ddlp.translate.datasets import PortableSet

__all__ = ["other_structure", "structure"]

_TRIES = 3  # samples, until one of them can be made
_LONGEST = 200  # characters of a structure that a message shows


def structure(sample: Any) -> str:
    """A sample's structure in words, equal for two samples if default_collate makes batches of the same structure of them.

    Tuples and lists count as equal, and so do numbers and tensors without dimensions. Sizes and dtypes don't count.
    """
    if isinstance(sample, Mapping):
        pairs = sorted(sample.items(), key=lambda pair: repr(pair[0]))
        inner = ", ".join(f"{key!r}: {structure(value)}" for key, value in pairs)
        return f"{'' if type(sample) is dict else type(sample).__qualname__}{{{inner}}}"
    if isinstance(sample, (tuple, list)):
        inner = ", ".join(map(structure, sample))
        return f"{type(sample).__qualname__ if hasattr(sample, '_fields') else ''}({inner})"
    if isinstance(sample, (torch.Tensor, np.ndarray, Number, np.generic)) and not isinstance(sample, (np.str_, np.bytes_)):
        dimensions = getattr(sample, "ndim", 0)
        return f"tensor of {dimensions} dimensions" if dimensions else "number"
    if isinstance(sample, Image.Image):
        return "PIL image"  # for any format of file
    return "None" if sample is None else type(sample).__qualname__


def other_structure(portable: PortableSet) -> Callable[[], Untranslatable] | None:
    """Find the first data set that describes samples of another structure than it gives; return a maker of its error, or None.

    One sample is made both ways for each class of such data sets. The global generators are as before afterwards. The data
    set's own code runs on a shallow copy, so that workers don't inherit a file that it opens at the first sample. A sample that
    can't be made is skipped.
    """
    for dataset, described in {type(own): (own, described) for own, described in portable.described}.values():
        for index in range(min(_TRIES, len(dataset))):
            try:
                with keyed_globals(0):
                    own, ours = structure(_sample(copy.copy(dataset), index)), structure(_sample(described, index))
            except Exception:  # it raises again in its own batch, or its code does not exist at all
                continue
            if own != ours:
                return partial(
                    Untranslatable,
                    type(dataset).__qualname__,
                    f"its __ddlp__ describes samples of another structure, {ours[:_LONGEST]}, than its __getitem__ gives: "
                    f"{own[:_LONGEST]}",
                    (
                        "have __getitem__ return what __ddlp__ describes, (image, target), and turn each finished batch into "
                        "what the training wants with batch_transform=",
                        "leave __ddlp__ out",
                    ),
                )
            break
    return None


def _sample(dataset: Any, index: int) -> Any:
    """Get a sample as DataLoader does."""
    many = getattr(dataset, "__getitems__", None)
    return many([index])[0] if many else dataset[index]
