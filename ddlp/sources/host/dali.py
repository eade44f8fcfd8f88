"""``backend="dali"``: the host's batches decoded, resized and flipped by NVIDIA DALI, on CPUs or on a GPU.

DALI is given each sample's encoded bytes and the numbers that the keyed generator drew for it, as external sources, batch by
batch as the ledger's claims come; it draws and reads nothing itself. One pipeline of one thread for each of the host's
workers, so that DALI has as many threads as the loader has workers: a pipeline of many threads would wait for its slowest
sample after each operator, and for Python between two batches.

ToTensor, Normalize and masks are left to ddlp's own epilogue, which finishes a device's bytes as well, so that what is left
of a difference is the resize's. DALI's crop_mirror_normalize divides in another order (30 % of its numbers are torchvision's
bits), and it is slower: 375 us of processor time an image of 224x224, 160 us for the epilogue with the kernel.

On a GPU ("mixed": the CPU has a part in the decoding) a run's images lie in memory that DALI uses again. They are copied from
there into the batch's own, on the landing's lane, and the worker waits for that: the training thread waits for nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from csd_engine.data.base import Reader
from csd_engine.data.image_files import MAX_FILE_BYTES, content, open_image
from csd_engine.data.readahead import ReadAhead
from csd_engine.data.safe_open import OpenFile
from csd_engine.kernels import kernel
from csd_engine.kernels.library import Job
from csd_engine.keyed import Keyed
from csd_engine.transforms.compiled import compile_plan
from ddlp.errors import DDLPError
from ddlp.sampling.epoch_plan import Item
from ddlp.sources.base import EpochSink, EpochSpec, PreparedBatch, Unwanted
from ddlp.sources.host.native import Rows, no_boxes, prepare_batch, prepare_item
from ddlp.transfer.device_stream import NoRoom
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.translate.dali import Stages

__all__ = ["DaliHost", "Graphs", "require_dali"]

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


def define(pipeline: Any, stages: Stages, on_gpu: bool) -> list[str]:
    """The steps of a DALI pipeline that is not built yet. Returns the names of its inputs beside "encoded"."""
    from nvidia.dali import fn, types

    names: list[str] = []

    def numbers(name: str, kind: Any = types.INT32, ndim: int = 1) -> Any:
        names.append(name)
        return fn.external_source(name=name, dtype=kind, ndim=ndim)

    kernels = {"bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC}
    with pipeline:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        window = {"start": numbers("start"), "shape": numbers("shape"), "axis_names": "HW"}
        how = {"output_type": types.RGB, "adjust_orientation": False}  # as Pillow
        if on_gpu:
            # Not image_slice: nvImageCodec 0.9 fails at regions, or ends the process, by GPU (its issue 55); a GPU's own
            # decoder makes whole images anyway. Colours as the CPU upsamples them; threads of many pipelines not on one core.
            images = fn.decoders.image(encoded, device="mixed", jpeg_fancy_upsampling=True, affine=False, **how)
            images = fn.slice(images, **window)
        else:
            images = fn.decoders.image_slice(encoded, **window, **how)
        if stages.resample is not None:
            size = numbers("size", types.FLOAT)
            images = fn.resize(images, size=size, interp_type=kernels[stages.resample], antialias=True, dtype=types.UINT8)
        if stages.part:
            images = fn.slice(images, start=numbers("part_start"), shape=numbers("part_shape"), axis_names="HW")
        flips = {"horizontal": stages.mirrored, "vertical": stages.upside_down}
        if any(flips.values()):
            given = {name: numbers(name, ndim=0) if wanted else 0 for name, wanted in flips.items()}
            images = fn.flip(images, **given)
        pipeline.set_outputs(images)
    return names


class Graph:
    """A DALI pipeline for up to `SAMPLES` samples, on the CPU or (``gpu``: its number) on a GPU. For one thread at a time."""

    def __init__(self, stages: Stages, gpu: int | None = None, threads: int = 1) -> None:
        from nvidia.dali import Pipeline

        # Neither asynchronous nor pipelined: a worker gives the samples of one run and waits for them. Then a run's images
        # are there when it returns, on a GPU too.
        self._pipeline = Pipeline(
            SAMPLES, threads, device_id=gpu, exec_async=False, exec_pipelined=False, prefetch_queue_depth=1
        )
        self._numbers = define(self._pipeline, stages, gpu is not None)
        self._pipeline.build()

    def run(self, samples: list[_Sample], take: Callable[[list[int], Any], None]) -> None:
        """Make these samples; ``take`` is given their rows and DALI's list of uint8 (height, width, 3), valid during that call.

        Raises RuntimeError where DALI can't; the graph is of no use any more then.
        """
        self._pipeline.feed_input("encoded", [sample.encoded for sample in samples])
        for name in self._numbers:
            kind, of = _OF_JOB[name]
            self._pipeline.feed_input(name, [np.array(of(sample.job), kind) for sample in samples])
        (images,) = self._pipeline.run()
        take([sample.row for sample in samples], images)


_OF_JOB: dict[str, tuple[Any, Callable[[Job], Any]]] = {
    "start": (np.int32, lambda job: (job.top, job.left)),
    "shape": (np.int32, lambda job: (job.height, job.width)),
    "size": (np.float32, lambda job: (job.full_height, job.full_width)),
    "part_start": (np.int32, lambda job: (job.out_top, job.out_left)),
    "part_shape": (np.int32, lambda job: (job.out_height, job.out_width)),
    "horizontal": (np.int32, lambda job: job.flip_horizontal),
    "vertical": (np.int32, lambda job: job.flip_vertical),
}


class Graphs:
    """DALI's pipelines: as many as work at once. Any thread may borrow one.

    On the CPU they are of one epoch; on a GPU of all, since building and ending one may wait for whatever it does.

    Args:
        stages: what they do.
        landing: where their batches are delivered, and, if that is a GPU, made; None: in the host's memory, by the CPU.

    Raises:
        DDLPError: DALI can't work on that GPU, as the first pipeline shows, which is built at once.
    """

    def __init__(self, stages: Stages, gpu_transfer: GpuTransfer | None = None) -> None:
        self.gpu_transfer = gpu_transfer
        on_gpu = gpu_transfer is not None and gpu_transfer.stream.device.type == "cuda"
        self.distance = stages.distance(on_gpu)
        self.stages, self.gpu = stages, gpu_transfer.stream.device.index if on_gpu and gpu_transfer is not None else None
        self._idle: deque[Graph] = deque()
        if on_gpu:
            try:
                self._idle.append(Graph(stages, self.gpu))
            except RuntimeError as error:
                raise DDLPError(
                    f"backend='dali': DALI can't decode on GPU {self.gpu} ({_reason(error)}). Take backend='dali_cpu', which "
                    "decodes on the CPU, or a DALI that fits the driver (docs/dali.md)."
                ) from error

    def run(self, samples: list[_Sample], take: Callable[[list[int], Any], None]) -> None:
        """As `Graph.run`, by one that is idle, or a new one."""
        try:
            graph = self._idle.pop()
        except IndexError:
            graph = Graph(self.stages, self.gpu)
        graph.run(samples, take)
        self._idle.append(graph)

    def epoch_ended(self) -> None:
        """End DALI's threads, on the CPU. Called when that epoch asks for nothing any more."""
        if self.gpu is None:
            self._idle.clear()


class _OnHost(Rows):
    """A batch that DALI makes in the host's memory."""

    def take(self, rows: list[int], images: Any) -> None:
        """Of a run of DALI's."""
        for k, row in enumerate(rows):
            self.put(slice(row, row + 1), np.asarray(images[k])[None])


class _OnDevice:
    """A batch that DALI makes in a GPU's memory, with the face of `Rows`; what our own code makes is copied there."""

    def __init__(self, spec: EpochSpec, gpu_transfer: GpuTransfer, samples: int) -> None:
        self._gpu_transfer = gpu_transfer
        self.boxes = no_boxes(samples, spec.pipeline.boxes)
        self._made = np.empty((1, *spec.shape), np.uint8)
        with gpu_transfer.stream.work():
            self._images = torch.empty((samples, *spec.shape), dtype=torch.uint8, device=gpu_transfer.stream.device)

    def take(self, rows: list[int], images: Any) -> None:
        """Of a run of DALI's. Waits for the copies: it uses that memory again."""
        from nvidia.dali.plugin.pytorch import feed_ndarray

        ours = self._gpu_transfer.stream
        with ours.work():
            stream = torch.cuda.current_stream(ours.device) if ours.device.type == "cuda" else None
            try:
                for k, row in enumerate(rows):
                    feed_ndarray(images[k], self._images[row], cuda_stream=stream)
            finally:
                ours.event().wait()

    def place(self, part: slice) -> tuple[np.ndarray, np.ndarray | None]:
        """As `Rows`, for one sample."""
        return self._made, None if self.boxes is None else self.boxes[part]

    def done(self, part: slice) -> None:
        """As `Rows`. Waits for the copy: there are few, and their memory is used again."""
        with self._gpu_transfer.stream.work():
            self._images[part].copy_(torch.from_numpy(self._made))

    def pixels(self) -> PreparedBatch:
        """The batch, bytes on the device still: a quarter of what it takes when it is finished there, as its turn nears."""
        return PreparedBatch(self._images, None if self.boxes is None else torch.from_numpy(self.boxes))


class DaliHost:
    """Prepares an epoch's batches by DALI: a `ddlp.sources.base.HostSource`.

    Args:
        spec: of the epoch.
        graphs: DALI's pipelines, and where they deliver.
    """

    def __init__(self, spec: EpochSpec, graphs: Graphs) -> None:
        self._spec, self._graphs = spec, graphs
        spec.get_ready()
        self._lock = threading.Lock()
        self._told = False
        self._by_dali = self._by_us = 0
        self._sink: EpochSink | None = None

    def begin(self, sink: EpochSink) -> None:
        """Have the report say how far DALI's pixels are from torchvision's."""
        self._sink = sink
        sink.remark("dali", self._graphs.distance)

    def close(self) -> None:
        """Called when nobody asks for batches any more."""
        self._graphs.epoch_ended()

    def prepare(self, position: int, wanted: Callable[[], bool], finished: bool = False) -> PreparedBatch:
        """As `ddlp.sources.host.native.prepare_batch`, which makes what DALI can't."""
        spec = self._spec
        if not wanted():  # as there
            raise Unwanted
        items = spec.plan.items(position)
        gpu_transfer = self._graphs.gpu_transfer
        n = len(items)
        try:
            about = spec.epilogue, spec.shape, spec.pipeline.boxes, n, spec.pool, finished
            rows = _OnHost(*about) if gpu_transfer is None else _OnDevice(spec, gpu_transfer, n)
        except NoRoom:  # there; in the host's memory is some
            self._count(0, n)
            return prepare_batch(spec, position, wanted, finished)
        given: list[_Sample] = []
        ours: list[int] = []
        with ReadAhead(spec.reader, (index for index, _ in items)) as reader:
            for row, item in enumerate(items):
                if not wanted():
                    raise Unwanted
                sample = self._take(reader, row, item, rows.boxes)
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
            images, boxes = rows.place(part)
            prepare_item(spec, items[row], images[0], None if boxes is None else boxes[0])
            rows.done(part)
        self._count(len(items) - len(ours), len(ours))
        return rows.pixels()

    def _take(self, reader: Reader, row: int, item: Item, boxes: np.ndarray | None) -> _Sample | None:
        """The sample as DALI gets it; None: our own code makes it, and says what is wrong with it if it can't."""
        spec = self._spec
        index, occurrence = item
        with contextlib.suppress(Exception):  # what is raised here is raised again by our own code, in the proper words
            source = reader.open(index)
            if not isinstance(source, OpenFile):
                return None
            if source.size > MAX_FILE_BYTES:  # not to be read whole
                os.close(source.descriptor)
                return None
            data = content(source)
            size = _size(source.path, data)
            if size is None or (Image.MAX_IMAGE_PIXELS is not None and size[0] * size[1] > Image.MAX_IMAGE_PIXELS):
                return None
            plan = spec.pipeline.draw(size, Keyed(spec.seed, spec.epoch, index, occurrence))
            compiled = compile_plan(plan, size, spec.pipeline)
            if compiled is None or compiled.rest or plan.shape != spec.shape:  # it pads, say
                return None
            spec.pipeline.place_boxes(plan, None if boxes is None else boxes[row])
            return _Sample(row, np.frombuffer(data, np.uint8), compiled.job, size[0] * size[1])
        return None

    def _by_graph(self, position: int, samples: list[_Sample], rows: _OnHost | _OnDevice) -> list[int]:
        """Make the samples; the rows that are left to our own code: all of them where DALI fails for one."""
        try:
            self._graphs.run(samples, rows.take)
        except RuntimeError as error:
            with self._lock:
                first, self._told = not self._told, True
            if first:
                why = _reason(error)
                self._warn(f"DALI could not prepare samples of batch {position} ({why}); ddlp's own code does instead.")
            return [sample.row for sample in samples]
        return []

    def _warn(self, text: str) -> None:
        if self._sink is not None:
            self._sink.warn(text)

    def _count(self, by_dali: int, by_us: int) -> None:
        with self._lock:
            self._by_dali += by_dali
            self._by_us += by_us
            ours, all_of_them = self._by_us, self._by_dali + self._by_us
        if ours:
            text = f"{self._graphs.distance}; {ours} of the host's {all_of_them} samples by ddlp's own code"
            if self._sink is not None:
                self._sink.remark("dali", text)


def _reason(error: RuntimeError) -> str:
    """The line of DALI's message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "ailed" in line), lines[0] if lines else "it does not say why")


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
