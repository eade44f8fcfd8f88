"""The user's own steps after the known operators. They run sample by sample on a prepared batch of bytes.

`OwnSteps` runs the steps and collates the samples. The loader's ``own_steps=`` and ``num_workers`` choose where it is called:

    in the training thread (``num_workers=0``), as DataLoader does
    in torch's own worker processes, one for each of the host's threads, with torch's guarantees
    in the host's threads, each with a copy of the steps: for steps that release the GIL and do not draw from a global
    generator, which only the user can know
"""

from __future__ import annotations

import contextlib
import copy
import operator
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch.utils.data import default_collate, get_worker_info
from torchvision import tv_tensors

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import named, noted
from ddlp.sampling.keyed_generators import states
from ddlp.sampling.own_generators import own_generators
from ddlp.sampling.sampler_order import default_device
from ddlp.sampling.torch_loader import collates
from ddlp.sources.base import PreparedBatch, Resources, StepRunner
from ddlp.sources.host.collate_errors import with_place
from ddlp.sources.workers.fetching import Maker
from ddlp.sources.workers.keyed_samples import KeyedBatch, KeyedSamples
from ddlp.sources.workers.processes import worker_processes
from ddlp.transfer.epilogue import Epilogue
from ddlp.translate.cut import Rest
from ddlp.translate.joint import Joint

__all__ = ["OwnSteps", "in_processes", "start"]

_TRIED = 8  # in threads, so many samples are watched for draws from the global generators


class Asked(NamedTuple):
    """A request for a batch: its bytes, and what the steps need to know of its samples. It may be sent to other processes.

    Attributes:
        images, boxes: the prepared batch's.
        targets: one for each sample, as the data set keeps them.
        parts: the number of the data set's part for each sample.
        items: (source index, occurrence) of each sample.
        places: the place of each sample, for messages.
        seed, epoch: with the items they give the keys of all draws.
        sizes: (width, height) of each sample's image file; empty unless targets follow their images.
    """

    images: torch.Tensor
    boxes: torch.Tensor | None
    targets: list[Any]
    parts: list[int]
    items: list[tuple[int, int]]
    places: list[str]
    seed: int
    epoch: int
    sizes: list[tuple[int, int]]

    @classmethod
    def of(cls, resources: Resources, position: int, batch: PreparedBatch) -> Asked:
        """Return the request for the batch at this position. A replaced sample draws as the bad one would have."""
        sources = batch.sources(resources.plan.sources(position)).tolist()
        located = [resources.epoch.portable.dataset.part(source) for source in sources]
        numbers = {id(part): number for number, part in enumerate(resources.epoch.portable.dataset.parts)}
        targets = [part.targets([index])[0] for part, index in located]
        parts, places = [numbers[id(part)] for part, _ in located], [resources.reader.where(source) for source in sources]
        sizes = [part.image_size(index) for part, index in located if part.transforms is not None]
        items, epoch = list(resources.plan.items(position)), resources.epoch
        return cls(batch.images, batch.boxes, targets, parts, items, places, epoch.seed, epoch.number, sizes)

    def at(self, place: int) -> str:
        """As `KeyedBatch.at`."""
        return "while it made a batch" if place < 0 else f"at sample {self.places[place]}"


class _Samples:
    """The samples of the current batch, by their place in it, as a data set whose transform is the user's steps.

    Args:
        rest: the steps, and what the first of them gets.
        collate: joins the samples.
        usual: they are joined as batches by torch's own default_collate.
    """

    def __init__(self, rest: Rest, collate: Callable[[Any], Any], usual: bool) -> None:
        self.views, self.target_transforms, self.gathered = rest.views, rest.target_transforms, rest.gathered
        self.tensor, self.crops, self.joint = rest.tensor, rest.crops, rest.joint
        self.collate, self._usual = collate, usual
        self._images: list[torch.Tensor] = []
        self._asked: Asked | None = None

    def take(self, images: list[torch.Tensor], asked: Asked | None) -> None:
        """Set the batch whose samples are asked for next. ``images``: of each view, the epilogue's result for it."""
        self._images, self._asked = images, asked

    def __getitem__(self, k: int) -> tuple[Any, Any]:
        asked = self._asked
        assert asked is not None
        try:
            if self.joint is not None:
                return self._together(self.joint, k, asked)
            views = [self._view(steps, images[k]) for steps, images in zip(self.views, self._images, strict=True)]
            image = views[0] if self.gathered is None else self.gathered(views)
            target, transform = asked.targets[k], self.target_transforms[asked.parts[k]]
            return image, target if transform is None else transform(target)
        except Exception as error:
            place = asked.places[k]
            if get_worker_info() is not None:
                raise named(error, place)  # noqa: B904  torch carries its type and its text to the training process
            noted(error, f"It was raised for sample {place}.")
            raise

    def join(self, samples: Any) -> Any:
        """Call the collate_fn. An error of torch's own names the sample that does not go with the others."""
        try:
            return self.collate(samples)
        except Exception as error:
            if not self._usual or self._asked is None:
                raise
            raise with_place(error, [target for _, target in samples], self._asked.places)  # noqa: B904

    def _together(self, joint: Joint, k: int, asked: Asked) -> tuple[Any, Any]:
        """Return the sample of a joint transform."""
        keyed = Keyed(asked.seed, asked.epoch, *asked.items[k])
        image, target = self._first(self._images[0][k]), joint.follow(asked.targets[k], asked.parts[k], asked.sizes[k], keyed)
        for step in self.views[0]:
            image, target = step(image, target)
        return image, target

    def _view(self, steps: tuple[Any, ...], prepared: torch.Tensor) -> Any:
        """Return the view that the steps make of a prepared image."""
        image: Any = self._first(prepared) if self.crops == 1 else tuple(map(self._first, prepared.chunk(self.crops, dim=1)))
        for step in steps:
            image = step(image)
        return image

    def _first(self, image: torch.Tensor) -> Any:
        """Return what torchvision would have given to the first step."""
        if self.tensor is None:
            pixels = image.permute(1, 2, 0).numpy()  # in their order in memory
            picture = Image.fromarray(pixels if pixels.shape[2] > 1 else pixels[:, :, 0])
            return picture.copy() if picture.readonly else picture
        image = image.clone()  # memory of its own: a step may change it, or keep it
        return image if self.tensor is torch.Tensor else tv_tensors.Image(image)


class OwnSteps(Maker):
    """Makes the training loop's batches from batches of bytes.

    Args:
        rest: the steps, and what the first of them gets.
        epilogue: the epilogue of the known operators, which runs first.
        collate: joins the samples.
        batched: True: the loader makes batches. False: each sample is given to ``collate`` by itself.
        dataset: the user's data set, for ``get_worker_info().dataset``.
    """

    def __init__(self, rest: Rest, epilogue: Epilogue, collate: Callable[[Any], Any], batched: bool, dataset: Any) -> None:
        self.dataset = dataset
        self._epilogue, self._batched = epilogue, batched
        self._samples = _Samples(rest, collate, batched and collate is default_collate)
        self._keyed = KeyedSamples(self._samples, self._samples.join, batched)

    def fetch(self, request: Asked) -> Any:
        """Return the batch. The draws of each sample are keyed. The training process's global generators are put back."""
        with self._taken(request):
            return self._keyed.fetch(self._batch(request))

    def without_global_draws(self, request: Asked) -> Any:
        """Return the batch, without a change to the global generators: only the steps' own generators are keyed."""
        with self._taken(request):
            return self._keyed.by_own_generators(self._batch(request))

    def copies(self, number: int) -> list[OwnSteps]:
        """Return ``number`` objects: this one, and copies with steps of their own.

        Raises ValueError if a function names a transform that has generators of its own: such a transform would be shared.
        """
        copies = [self, *(copy.deepcopy(self) for _ in range(number - 1))]
        drawing = [own_generators(steps._samples) for steps in copies[:2]]
        shared = {type(drawn).__name__ for drawn in drawing[0] if any(drawn is other for other in drawing[-1])}
        if number > 1 and shared:
            raise ValueError(
                f"own_steps='threads': a function of the transform uses {', '.join(sorted(shared))} from outside of it, so "
                "that all threads would draw from the same one. Keep it in an attribute of a class with __call__, or leave "
                "own_steps='threads' out"
            )
        return copies

    def same_as(self, other: OwnSteps) -> bool:
        """As `Maker.same_as`: it holds the very same objects."""
        ours, theirs = self._held(), other._held()
        if len(ours) != len(theirs) or not all(map(operator.is_, ours, theirs)):
            return False
        return self._samples.gathered == other._samples.gathered and self._epilogue.does_what(other._epilogue)

    def _held(self) -> list[Any]:
        samples = self._samples
        steps = [step for view in samples.views for step in (*view, None)]
        kind = samples.crops, samples.tensor
        steps += [] if samples.joint is None else [step for step, _ in samples.joint.steps]
        return [*steps, *samples.target_transforms, *kind, samples.collate, self._batched, self.dataset]

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnSteps:
        twin = copy.copy(self)
        samples = twin._samples = copy.copy(self._samples)
        theirs = samples.views, samples.target_transforms, samples.collate
        samples.views, samples.target_transforms, samples.collate = copy.deepcopy(theirs, memo)
        twin._keyed = KeyedSamples(samples, samples.join, self._batched)
        return twin

    @contextlib.contextmanager
    def _taken(self, request: Asked) -> Iterator[None]:
        images = self._epilogue(request.images, request.boxes)
        self._samples.take(self._epilogue.views(images, len(self._samples.views)), request)
        try:
            yield
        finally:
            self._samples.take([], None)

    def _batch(self, request: Asked) -> KeyedBatch:
        indices: Any = range(len(request.items)) if self._batched else 0
        return KeyedBatch(indices, request.items, request.seed, request.epoch)


class Runner:
    """Runs the steps: it is the epoch's `StepRunner`.

    Args:
        make: returns the batch for a request.
        beside: any of the host's threads calls it; False: the training thread does.
        close: ends what it runs in.
    """

    def __init__(self, make: Callable[[Asked], Any], beside: bool = True, close: Callable[[], None] = lambda: None) -> None:
        self._make, self._beside, self.close = make, beside, close

    def finish(self, resources: Resources, position: int, batch: PreparedBatch) -> PreparedBatch:
        """As `StepRunner.finish`."""
        if not self._beside:
            return batch
        try:
            whole = self._make(Asked.of(resources, position, batch))
        except Exception as error:  # raised again in the training thread, in this batch's place
            return PreparedBatch.failed(error)
        return PreparedBatch.made_whole(whole, batch.replaced)

    def whole(self, resources: Resources, position: int, batch: PreparedBatch) -> Any:
        """As `StepRunner.whole`."""
        return batch.whole if self._beside else self._make(Asked.of(resources, position, batch))


class _Threads:
    """The host's threads run the steps. Each has a copy of its own, as each of torch's workers has."""

    def __init__(self, steps: OwnSteps, threads: int) -> None:
        self._left, self._lock = _TRIED, threading.Lock()
        self._modes = torch_modes()
        self._free: queue.SimpleQueue[OwnSteps] = queue.SimpleQueue()
        for own in steps.copies(threads):
            self._free.put(own)

    def make(self, request: Asked) -> Any:
        """Return the batch."""
        steps = self._free.get()
        try:
            with self._modes():
                return self._watched(steps, request) if self._left > 0 else steps.without_global_draws(request)
        finally:
            self._free.put(steps)

    def _watched(self, steps: OwnSteps, request: Asked) -> Any:
        with self._lock:  # the epoch's first batches: training waits for them, and draws nothing meanwhile
            before = states()
            whole = steps.without_global_draws(request)
            moved = [name for name, state in states().items() if state != before[name]]
            self._left -= len(request.items)
        if moved:
            raise RuntimeError(
                f"own_steps='threads': the transform's own steps drew from the global generator of {' and '.join(moved)}, "
                "which threads share, so their results would differ from run to run. Leave own_steps='threads' out"
            )
        return whole


def torch_modes() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return what gives another thread this thread's modes of torch for a while: a forked worker has them by itself.

    They are gradients, inference and the default device.
    """
    inference, grad, device = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), default_device()

    def modes() -> contextlib.AbstractContextManager[Any]:
        stack = contextlib.ExitStack()
        if inference:
            stack.enter_context(torch.inference_mode())
        if not grad:
            stack.enter_context(torch.no_grad())
        if device.type != "cpu":
            stack.enter_context(device)
        return stack

    return modes


def in_processes(how: str, workers: int) -> bool:
    """Whether other processes run the own steps, by the loader's ``own_steps`` and ``num_workers``."""
    return how == "processes" and workers > 0


def start(how: str, loader: Any, rest: Rest, epilogue: Epilogue, base_seed: int) -> StepRunner:
    """Return the runner of a loader's own steps for one epoch. ``how``: the loader's ``own_steps``, which is not ``"off"``."""
    steps = OwnSteps(rest, epilogue, loader.collate_fn, collates(loader), loader.dataset)
    if how == "threads":
        return Runner(_Threads(steps, max(1, loader.num_workers)).make)
    if not in_processes(how, loader.num_workers):
        return Runner(steps.fetch, beside=False)
    epoch = worker_processes(loader, loader._parts, steps, base_seed)
    return Runner(epoch.ask, close=epoch.close)
