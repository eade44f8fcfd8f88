"""``backend="dali"``: NVIDIA DALI decodes, resizes and flips the host's batches, on CPUs or on a GPU.

DALI is given each sample's encoded bytes, and the numbers that the keyed generator drew for it, as external sources. They come
batch by batch, as the ledger's claims come. DALI draws and reads nothing itself. Each of the host's workers has one pipeline of
one thread, so DALI has as many threads as the loader has workers. A pipeline of many threads would wait for its slowest sample
after each operator, and for Python between two batches.

ddlp's own epilogue does ToTensor, Normalize and masks, as it does for a device's bytes. So the only remaining difference comes
from the resize. DALI's crop_mirror_normalize divides in another order (30 % of its numbers have torchvision's bits), and it is
slower: it takes 375 us of processor time for an image of 224x224, and the epilogue with the kernel takes 160 us.

On a GPU ("mixed": the CPU does a part of the decoding) a run's images are in memory that DALI uses again. They are copied from
there into the batch's own memory, on the stream of the GPU transfer. The worker waits for the copy; the training thread does
not wait.
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

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.data.base import Reader, at_hand
from csd_engine.data.image_files import MAX_FILE_BYTES, content, is_above_limit, open_image
from csd_engine.data.readahead import ReadAhead
from csd_engine.data.safe_open import OpenFile
from csd_engine.kernels import kernel
from csd_engine.kernels.library import Job
from csd_engine.transforms.compiled import compile_plan
from ddlp.errors import DDLPError
from ddlp.sampling.epoch_plan import Item
from ddlp.sources.base import EpochSink, PreparedBatch, Resources, Unwanted
from ddlp.sources.host.native import Rows, get_ready, no_boxes, prepare_batch, prepare_item
from ddlp.transfer.device_stream import NoRoom
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.translate.dali import Stages

__all__ = ["DaliHost", "Graphs", "require_dali"]

SAMPLES = 32  # in one run at most; a batch has any number of samples
PIXELS = 16 << 20  # decoded in one run, about; that is 48 MB, which DALI keeps
_EXACT = ("RGB", "L")  # Pillow's modes of the JPEG and PNG files that DALI decodes to the same pixels


def require_dali() -> None:
    """Import DALI. If it is missing or does not load, raise ImportError with a message that tells what to install."""
    try:
        import nvidia.dali.fn  # noqa: F401
    except Exception as error:  # a package that does not load is treated as a missing one
        raise ImportError(
            f"backend='dali' needs NVIDIA DALI, which can't be imported here ({type(error).__name__}: {error}). "
            "Install it, `pip install ddlp[dali]` (no GPU needed), or leave backend= out."
        ) from error


@dataclass(frozen=True)
class _Sample:
    """The input of DALI for one sample, and the sample's row in the batch."""

    row: int
    encoded: np.ndarray
    job: Job
    pixels: int


def define(pipeline: Any, stages: Stages, on_gpu: bool) -> list[str]:
    """Define the steps of a DALI pipeline that is not built yet. Returns the names of its inputs, except "encoded"."""
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
            # Not image_slice: nvImageCodec 0.9 fails at regions, or ends the process, depending on the GPU (its issue 55).
            # A GPU's own decoder makes whole images anyway. jpeg_fancy_upsampling: colours are upsampled as on the CPU.
            # affine=False: the threads of many pipelines do not all run on one core.
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
    """A DALI pipeline for up to `SAMPLES` samples, on the CPU, or on the GPU number ``gpu``. One thread uses it at a time."""

    def __init__(self, stages: Stages, gpu: int | None) -> None:
        from nvidia.dali import Pipeline

        # Neither asynchronous nor pipelined: a worker gives the samples of one run, and waits for them. So the images are
        # ready when `run` returns, on a GPU too.
        self._pipeline = Pipeline(
            SAMPLES, 1, device_id=gpu, exec_async=False, exec_pipelined=False, prefetch_queue_depth=1
        )
        self._numbers = define(self._pipeline, stages, gpu is not None)
        self._pipeline.build()

    def run(self, samples: list[_Sample], take: Callable[[list[int], Any], None]) -> None:
        """Make these samples. ``take`` is called with their rows and DALI's list of uint8 (height, width, 3) images.

        The images are valid during that call only. Raises RuntimeError if DALI fails; the graph can't be used again then.
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
    """DALI's pipelines, as many as work at once. Any thread may borrow one.

    On the CPU they are used for one epoch. On a GPU they are used for all epochs, since to build or end one may wait for all
    work of the GPU.

    Args:
        stages: the stages that they run.
        gpu_transfer: brings their batches to where they are delivered; if that is a GPU, they are made there. None: the CPU
            makes them in the host's memory.

    Raises:
        DDLPError: if DALI can't work on that GPU. The first pipeline is built at once, and shows that.
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
        """Do the same as `Graph.run`, with an idle pipeline or a new one."""
        try:
            graph = self._idle.pop()
        except IndexError:
            graph = Graph(self.stages, self.gpu)
        graph.run(samples, take)
        self._idle.append(graph)

    def epoch_ended(self) -> None:
        """End DALI's threads, if it works on the CPU. Called when the epoch does not ask for batches any more."""
        if self.gpu is None:
            self._idle.clear()


class _OnHost(Rows):
    """A batch that DALI makes in the host's memory."""

    def take(self, rows: list[int], images: Any) -> None:
        """Take the images of one run of DALI."""
        for k, row in enumerate(rows):
            self.put(slice(row, row + 1), np.asarray(images[k])[None])


class _OnDevice:
    """A batch that DALI makes in a GPU's memory, with the interface of `Rows`. Samples made by ddlp's code are copied there."""

    def __init__(self, resources: Resources, gpu_transfer: GpuTransfer, samples: int) -> None:
        self._gpu_transfer = gpu_transfer
        portable, device = resources.epoch.portable, gpu_transfer.stream.device
        self.boxes = no_boxes(samples, portable.pipeline.boxes)
        self._made = np.empty((1, *portable.shape), np.uint8)
        with gpu_transfer.stream.work():
            self._images = torch.empty((samples, *portable.shape), dtype=torch.uint8, device=device)

    def take(self, rows: list[int], images: Any) -> None:
        """Take the images of one run of DALI. Waits for the copies, since DALI uses their memory again."""
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
        """Do the same as `Rows.place`, for one sample."""
        return self._made, None if self.boxes is None else self.boxes[part]

    def done(self, part: slice) -> None:
        """Do the same as `Rows.done`. Waits for the copy, since its memory is used again. Such copies are few."""
        with self._gpu_transfer.stream.work():
            self._images[part].copy_(torch.from_numpy(self._made))

    def pixels(self) -> PreparedBatch:
        """Return the batch as bytes on the GPU. It is finished there shortly before its turn, and takes four times as much."""
        return PreparedBatch(self._images, None if self.boxes is None else torch.from_numpy(self.boxes))


class DaliHost:
    """Prepares an epoch's batches with DALI. It is a `ddlp.sources.base.HostSource`.

    Args:
        resources: what lives in the epoch.
        graphs: DALI's pipelines. They also tell where batches are delivered.
    """

    def __init__(self, resources: Resources, graphs: Graphs) -> None:
        self._resources, self._graphs = resources, graphs
        get_ready(resources)
        self._lock = threading.Lock()
        self._warned = False
        self._by_dali = self._by_us = 0
        self._sink: EpochSink | None = None

    def begin(self, sink: EpochSink) -> None:
        """Have the report tell how far DALI's pixels are from torchvision's."""
        self._sink = sink
        sink.remark("dali", self._graphs.distance)

    def close(self) -> None:
        """End DALI's part. Called when nobody asks for batches any more."""
        self._graphs.epoch_ended()

    def prepare(self, position: int, wanted: Callable[[], bool]) -> PreparedBatch:
        """Do the same as `ddlp.sources.host.native.prepare_batch`. ddlp's own code makes the samples that DALI can't make."""
        resources = self._resources
        if not wanted():  # for the same reason as in prepare_batch
            raise Unwanted
        for request in resources.plan.wrong(position):
            raise resources.error_of(request)
        items = resources.plan.image_items(position)
        gpu_transfer = self._graphs.gpu_transfer
        n = len(items)
        try:
            rows = _OnHost(resources, n) if gpu_transfer is None else _OnDevice(resources, gpu_transfer, n)
        except NoRoom:  # there is no room on the GPU, but there is in the host's memory
            self._count(0, n)
            return prepare_batch(resources, position, wanted)
        given: list[_Sample] = []
        ours: list[int] = []
        order = [index for index, _ in items]
        with at_hand(resources.reader, order, wanted) as there, ReadAhead(there, order) as reader:
            for row, item in enumerate(items):
                if not wanted():
                    raise Unwanted
                sample = self._take(reader, row, item, rows.boxes)
                if sample is None:
                    ours.append(row)
                else:
                    given.append(sample)
                last = row + 1 == len(items)
                if given and (last or len(given) == SAMPLES or sum(sample.pixels for sample in given) >= PIXELS):
                    ours += self._by_graph(position, given, rows)
                    given = []
        for row in ours:
            if not wanted():
                raise Unwanted
            part = slice(row, row + 1)
            images, boxes = rows.place(part)
            prepare_item(resources, items[row], images[0], None if boxes is None else boxes[0])
            rows.done(part)
        self._count(len(items) - len(ours), len(ours))
        return rows.pixels()

    def _take(self, reader: Reader, row: int, item: Item, boxes: np.ndarray | None) -> _Sample | None:
        """Return DALI's input for a sample. None: ddlp's own code makes the sample, or raises the right error for it."""
        epoch, pipeline = self._resources.epoch, self._resources.epoch.portable.pipeline
        index, occurrence = item
        with contextlib.suppress(Exception):  # ddlp's own code raises the error again, with the proper text
            source = reader.open(index)
            if not isinstance(source, OpenFile):
                return None
            if source.size > MAX_FILE_BYTES or source.upright:  # too large to read whole; or it may have to be turned
                os.close(source.descriptor)
                return None
            data = content(source)
            size = _size(source.path, data)
            if size is None or is_above_limit(size[0] * size[1]):
                return None
            plan = pipeline.draw(size, Keyed(epoch.seed, epoch.number, index, occurrence))
            compiled = compile_plan(plan, size, pipeline)
            if compiled is None or compiled.rest or plan.shape != epoch.portable.shape:  # for example a plan that pads
                return None
            pipeline.place_boxes(plan, None if boxes is None else boxes[row])
            return _Sample(row, np.frombuffer(data, np.uint8), compiled.job, size[0] * size[1])
        return None

    def _by_graph(self, position: int, samples: list[_Sample], rows: _OnHost | _OnDevice) -> list[int]:
        """Make the samples. Returns the rows that ddlp's own code must make: all of them if DALI fails for one."""
        try:
            self._graphs.run(samples, rows.take)
        except RuntimeError as error:
            with self._lock:
                first, self._warned = not self._warned, True
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
    """Return the line of DALI's message that tells what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "ailed" in line), lines[0] if lines else "it does not say why")


def _size(path: str, data: bytes) -> tuple[int, int] | None:
    """Return (width, height). None for files that DALI may decode to other pixels than Pillow.

    Those are unusual JPEGs, and files that are neither JPEG nor PNG.
    """
    fast = kernel()
    size = None if fast is None else fast.context().take(data)  # it refuses unusual JPEGs
    if size is None:
        with open_image(path, data) as image:
            formats = ("JPEG", "PNG") if fast is None else ("PNG",)
            if image.format in formats and image.mode in _EXACT:
                size = image.size
    return size
