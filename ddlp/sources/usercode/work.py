"""What a node is sent, and what it answers; and `Answers`, which makes batches in the node's process.

The user's data set and collate_fn go to the node as a pickle, once for each epoch in which they have changed. Then come tasks.
An answer is a batch as `tree` encodes it, or the reason why there is none.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
import re
import time
import warnings
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageFile

from ddlp import decode
from ddlp.errors import DDLPError
from ddlp.sampling.torch_loader import collates
from ddlp.sources.usercode.tree import Encoded, NotATree, encode
from ddlp.sources.workers.keyed_samples import KeyedSamples

__all__ = ["FAILED", "GONE", "MADE", "NO_TREE", "READY", "Answer", "Answers", "Work", "pickled"]

MADE, FAILED, NO_TREE = "made", "failed", "no tree"  # of tasks
READY, GONE = "ready", "gone"  # of the work that was sent; of a node that can answer no more


class _Pillow(NamedTuple):
    """What the user may have set in this process that decides which images Pillow takes. torch's workers inherit it.

    Attributes:
        most_pixels: Image.MAX_IMAGE_PIXELS.
        truncated: ImageFile.LOAD_TRUNCATED_IMAGES.
        filters: of warnings, those of Python's and Pillow's categories: (action, message, category, module, line).
    """

    most_pixels: int | None
    truncated: bool
    filters: tuple[tuple[str, str, type[Warning], str, int], ...]

    @classmethod
    def here(cls) -> _Pillow:
        """Return the settings of this process."""
        filters = tuple(
            (action, _pattern(message), kind, _pattern(module), line)
            for action, message, kind, module, line in warnings.filters
            if isinstance(kind, type) and kind.__module__ in ("builtins", Image.__name__)
        )
        return cls(Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, filters)

    def set(self) -> None:
        """Set them in this process."""
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = self.most_pixels, self.truncated
        warnings.resetwarnings()
        for action, message, kind, module, line in reversed(self.filters):
            warnings.filterwarnings(action, message, kind, module, line)  # type: ignore[arg-type]


def _pattern(of_filter: Any) -> str:
    """Return the regular expression of a filter's message or module; "" for none. Python's own filters name a module."""
    return "" if of_filter is None else getattr(of_filter, "pattern", None) or re.escape(str(of_filter)) + r"\Z"


class Work(NamedTuple):
    """The user's code of an epoch.

    Attributes:
        digest: of the content.
        content: a pickle of (data set, collate_fn, whether the loader makes batches, torch's default dtype, whether JPEGs are
            decoded late, `_Pillow`).
    """

    digest: str
    content: bytes


class Answer(NamedTuple):
    """A node's answer to a task.

    Attributes:
        task: its number.
        kind: `MADE`; `FAILED`, the user's code has raised an error; or `NO_TREE`, the batch can't be sent. `READY` and `GONE`
            are not about a task.
        text: why, if it was not made.
        batch: the batch, if it was made.
        busy_s: the seconds that it took.
    """

    task: int
    kind: str
    text: str
    batch: Encoded
    busy_s: float


def pickled(loader: Any) -> Work:
    """Return the work of an epoch that begins now. By cloudpickle, if that is installed: it takes lambdas and local classes.

    Raises:
        DDLPError: the data set or the collate_fn can't be pickled; the text says what to do.
    """
    try:
        pickler: Any = importlib.import_module("cloudpickle")
    except ImportError:
        pickler = pickle
    dataset, collate_fn = loader.dataset, loader.collate_fn
    given = dataset, collate_fn, collates(loader), torch.get_default_dtype(), loader.postpone_decoding, _Pillow.here()
    more = "" if pickler is not pickle else ". cloudpickle takes more than pickle: pip install cloudpickle"
    if more and "__main__" in (type(dataset).__module__, getattr(collate_fn, "__module__", "")):
        raise DDLPError(f"pickle can't take along code of the script itself{more}, or move it into a module")
    try:
        content = pickler.dumps(given, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise DDLPError(f"the data set or the collate_fn can't be pickled: {type(error).__name__}: {error}{more}") from error
    return Work(hashlib.blake2b(content, digest_size=16).hexdigest(), content)


class Answers:
    """What a node answers to each message: a pickle of a `Work`'s content, or of a task's number and its `KeyedBatch`.

    It is used in the node's process, in one thread.
    """

    def __init__(self) -> None:
        self._samples: KeyedSamples | None = None

    def __call__(self, message: bytes) -> Answer:
        """Return the answer. It raises nothing that the user's code raises."""
        asked = pickle.loads(message)
        began = time.monotonic()
        task, kind, text, encoded = 0, READY, "", Encoded(b"", [])
        try:
            if isinstance(asked, bytes):
                self._samples = None  # the memory of the data set before is free first
                self._samples = _loaded(asked)
            else:
                assert self._samples is not None
                task, batch = asked
                encoded, kind = encode(self._samples.fetch(batch)), MADE
        except NotATree as error:
            kind, text = NO_TREE, str(error)
        except Exception as error:
            kind, text = FAILED, f"{type(error).__name__}: {error}"
        return Answer(task, kind, text[:2000], encoded, time.monotonic() - began)


def _loaded(content: bytes) -> KeyedSamples:
    """Return what makes the batches of a `Work`, in this process, which is set as the host's is."""
    torch.set_num_threads(1)  # as in DataLoader's workers: sums of floats depend on the number of threads
    dataset, collate_fn, batched, dtype, postpone, pillow = pickle.loads(content)
    torch.set_default_dtype(dtype)
    pillow.set()
    if postpone:
        decode.install()
    else:
        decode.uninstall()
    return KeyedSamples(dataset, collate_fn, batched)
