"""``backend="dali"``: the host's batches decoded, resized and flipped by NVIDIA DALI, on CPUs.

DALI is given each sample's encoded bytes and the numbers that the keyed generator drew for it, as external sources, batch by
batch as the ledger's claims come; it draws and reads nothing itself. One pipeline of one thread for each of the host's
workers, so that DALI has as many threads as the loader has workers: a pipeline of many threads would wait for its slowest
sample after each operator, and for Python between two batches.

ToTensor, Normalize and masks are left to ddlp's own epilogue, which finishes a device's bytes as well, so that what is left
of a difference is the resize's. DALI's crop_mirror_normalize divides in another order (30 % of its numbers are torchvision's
bits), and it is slower: 375 us of processor time an image of 224x224, 160 us for the epilogue with the kernel.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from csd_engine.datasets import Reader, content, open_image
from csd_engine.kernels import kernel
from csd_engine.kernels.library import Job
from csd_engine.keyed import Keyed
from csd_engine.readahead import ReadAhead
from csd_engine.regular import OpenFile
from csd_engine.transforms.compiled import compile_plan
from ddlp.plan import Item
from ddlp.sources.host import Pixels, Recipe, Rows, Unwanted, prepare_item
from ddlp.translate.dali import Stages

__all__ = ["DaliHost", "require_dali"]

SAMPLES = 32  # of one run; a batch has any number of them
PIXELS = 16 << 20  # decoded in one run, about: 48 MB, which DALI keeps
_EXACT = ("RGB", "L")  # Pillow's modes of the JPEG and PNG files that DALI decodes to the very same pixels


def require_dali() -> None:
    """Import DALI; ImportError that says what to install where it is not there, or does not load."""
    try:
        import nvidia.dali.fn  # noqa: F401
    except Exception as error:  # a package that is there and does not load is as good as none
        raise ImportError(
            f"backend='dali' needs NVIDIA DALI, which can't be imported here ({type(error).__name__}: {error}). "
            "Install it, `pip install ddlp[dali]` (no GPU needed), or leave backend= out."
        ) from error


@dataclass(frozen=True)
class _Sample:
    """What DALI gets of one sample, and the row of the batch that it becomes."""

    row: int
    encoded: np.ndarray
    job: Job
    pixels: int


class Graph:
    """A DALI pipeline for up to `SAMPLES` samples, without a GPU. For one thread at a time.

    Decoding on a GPU would be the same graph with a ``device_id`` and the decoder's ``device="mixed"`` (which upsamples colours
    as the CPU's only with ``jpeg_fancy_upsampling=True``).
    """

    def __init__(self, stages: Stages, threads: int = 1) -> None:
        from nvidia.dali import Pipeline, fn, types

        def numbers(name: str, kind: Any = types.INT32, ndim: int = 1) -> Any:
            self._numbers.append(name)
            return fn.external_source(name=name, dtype=kind, ndim=ndim)

        self._numbers: list[str] = []
        kernels = {"bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC}
        # Neither asynchronous nor pipelined: a worker gives the samples of one run and waits for them.
        self._pipeline = Pipeline(
            SAMPLES, threads, device_id=None, exec_async=False, exec_pipelined=False, prefetch_queue_depth=1
        )
        with self._pipeline:
            images = fn.decoders.image_slice(
                fn.external_source(name="encoded", dtype=types.UINT8, ndim=1),
                start=numbers("start"), shape=numbers("shape"), axis_names="HW", output_type=types.RGB,
                adjust_orientation=False,  # as Pillow
            )  # fmt: skip
            if stages.resample is not None:
                size = numbers("size", types.FLOAT)
                images = fn.resize(
                    images, size=size, interp_type=kernels[stages.resample], antialias=True, dtype=types.UINT8
                )
            if stages.part:
                images = fn.slice(images, start=numbers("part_start"), shape=numbers("part_shape"), axis_names="HW")
            flips = {"horizontal": stages.mirrored, "vertical": stages.upside_down}
            if any(flips.values()):
                given = {name: numbers(name, ndim=0) if wanted else 0 for name, wanted in flips.items()}
                images = fn.flip(images, **given)
            self._pipeline.set_outputs(images)
        self._pipeline.build()

    def run(self, samples: list[_Sample], put: Callable[[int, np.ndarray], None]) -> None:
        """Make these samples; ``put`` is given each one's row and pixels, uint8 (height, width, 3), valid during that call.

        Raises RuntimeError where DALI can't; nothing was put then, and the graph is of no use any more.
        """
        self._pipeline.feed_input("encoded", [sample.encoded for sample in samples])
        for name in self._numbers:
            kind, of = _OF_JOB[name]
            self._pipeline.feed_input(name, [np.array(of(sample.job), kind) for sample in samples])
        (images,) = self._pipeline.run()
        for k, sample in enumerate(samples):
            put(sample.row, np.asarray(images[k]))


_OF_JOB: dict[str, tuple[Any, Callable[[Job], Any]]] = {
    "start": (np.int32, lambda job: (job.top, job.left)),
    "shape": (np.int32, lambda job: (job.height, job.width)),
    "size": (np.float32, lambda job: (job.full_height, job.full_width)),
    "part_start": (np.int32, lambda job: (job.out_top, job.out_left)),
    "part_shape": (np.int32, lambda job: (job.out_height, job.out_width)),
    "horizontal": (np.int32, lambda job: job.flip_horizontal),
    "vertical": (np.int32, lambda job: job.flip_vertical),
}


class DaliHost:
    """Prepares an epoch's batches on the host; any number of threads may ask for one.

    Args:
        recipe: of the epoch.
        stages: what DALI does of its pipeline.
    """

    def __init__(self, recipe: Recipe, stages: Stages) -> None:
        self._recipe, self._stages = recipe, stages
        self._idle: deque[Graph] = deque()
        self._lock = threading.Lock()
        self._told = False
        self._by_dali = self._by_us = 0
        self._tell: Callable[[str], None] = lambda _: None
        self._remark: Callable[[str, str], None] = lambda *_: None

    def begin(
        self, tell: Callable[[str], None], remark: Callable[[str, str], None]
    ) -> Callable[[int, Callable[[], bool], bool], Pixels]:
        """Give `prepare`. ``tell`` warns the user, ``remark(who, text)`` sets a line of the report."""
        self._tell, self._remark = tell, remark
        self._remark("dali", self._stages.distance)
        return self.prepare

    def close(self) -> None:
        """End DALI's threads. Called when nobody asks for batches any more."""
        self._idle.clear()

    def prepare(self, position: int, wanted: Callable[[], bool], finished: bool = False) -> Pixels:
        """As `ddlp.sources.host.prepare_batch`, which makes what DALI can't."""
        recipe = self._recipe
        items = recipe.plan.items(position)
        rows = Rows(recipe, len(items), 1, finished)
        given: list[_Sample] = []
        ours: list[int] = []
        with ReadAhead(recipe.reader, (index for index, _ in items)) as reader:
            for row, item in enumerate(items):
                if not wanted():
                    raise Unwanted
                sample = self._take(reader, row, item, rows)
                if sample is None:
                    ours.append(row)
                else:
                    given.append(sample)
                last = row + 1 == len(items)
                if given and (last or len(given) == SAMPLES or sum(one.pixels for one in given) >= PIXELS):
                    ours += self._by_graph(position, given, rows)
                    given = []
        for row in ours:
            if not wanted():
                raise Unwanted
            part = slice(row, row + 1)
            made = rows.place(part)
            prepare_item(recipe, items[row], made[0], None if rows.boxes is None else rows.boxes[row])
            rows.done(part, made)
        self._count(len(items) - len(ours), len(ours))
        return rows.pixels()

    def _take(self, reader: Reader, row: int, item: Item, rows: Rows) -> _Sample | None:
        """The sample as DALI gets it; None: our own code makes it, and says what is wrong with it if it can't."""
        recipe = self._recipe
        index, occurrence = item
        with contextlib.suppress(Exception):  # what is raised here is raised again by our own code, in the proper words
            source = reader.open(index)
            if not isinstance(source, OpenFile):
                return None
            data = content(source)
            size = _size(source.path, data)
            if size is None or (Image.MAX_IMAGE_PIXELS is not None and size[0] * size[1] > Image.MAX_IMAGE_PIXELS):
                return None
            plan = recipe.pipeline.draw(size, Keyed(recipe.seed, recipe.epoch, index, occurrence))
            compiled = compile_plan(plan, size, recipe.pipeline)
            if compiled is None or compiled.rest or plan.shape != recipe.shape:  # it pads, say
                return None
            recipe.pipeline.place_boxes(plan, None if rows.boxes is None else rows.boxes[row])
            return _Sample(row, np.frombuffer(data, np.uint8), compiled.job, size[0] * size[1])
        return None

    def _by_graph(self, position: int, samples: list[_Sample], rows: Rows) -> list[int]:
        """Make the samples; the rows that are left to our own code: all of them where DALI fails for one."""
        with self._lock:
            graph = self._idle.pop() if self._idle else None
        try:
            graph = graph or Graph(self._stages)
            graph.run(samples, lambda row, pixels: rows.put(slice(row, row + 1), pixels[None]))
        except RuntimeError as error:
            with self._lock:
                first, self._told = not self._told, True
            if first:
                why = next((line for line in reversed(str(error).splitlines()) if "ailed" in line), "it does not say why")
                self._tell(f"DALI could not prepare samples of batch {position} ({why.strip()}); ddlp's own code does instead.")
            return [sample.row for sample in samples]
        self._idle.append(graph)
        return []

    def _count(self, by_dali: int, by_us: int) -> None:
        with self._lock:
            self._by_dali += by_dali
            self._by_us += by_us
            ours, all_of_them = self._by_us, self._by_dali + self._by_us
        if ours:
            text = f"{self._stages.distance}; {ours} of the host's {all_of_them} samples by ddlp's own code"
            self._remark("dali", text)


def _size(path: str, data: bytes) -> tuple[int, int] | None:
    """(width, height); None for files that DALI may decode to other pixels than Pillow: odd JPEGs, or neither JPEG nor PNG."""
    fast = kernel()
    size = None if fast is None else fast.context().take(data)  # it refuses what is odd about a JPEG
    if size is None:
        with open_image(path, data) as image:
            formats = ("JPEG", "PNG") if fast is None else ("PNG",)
            if image.format in formats and image.mode in _EXACT:
                size = image.size
    return size
