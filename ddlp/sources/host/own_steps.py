"""The user's own steps after the known operators. They run sample by sample on a prepared batch of bytes.

`OwnSteps` runs the steps and collates the samples. The loader's ``own_steps=`` and ``num_workers`` choose where it is called:

    Here        in the training thread (``num_workers=0``), as DataLoader does
    Processes   in torch's own worker processes, one for each of the host's threads, with torch's guarantees
    Threads     in the host's threads, each with a copy of the steps: for steps that release the GIL and do not draw from a
                global generator, which only the user can know
"""

from __future__ import annotations

import contextlib
import copy
import operator
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch.utils.data import default_collate, get_worker_info
from torchvision import tv_tensors

from csd_engine.errors import named, noted
from csd_engine.keyed import Keyed
from ddlp.sampling.keyed_generators import states
from ddlp.sampling.own_generators import own_generators
from ddlp.sampling.sampler_order import default_device
from ddlp.sampling.torch_loader import collates
from ddlp.sources.base import BatchState, PreparedBatch, Resources, StepRunner
from ddlp.sources.host.collate_errors import with_place
from ddlp.sources.workers.fetching import Maker
from ddlp.sources.workers.keyed_samples import KeyedBatch, KeyedSamples
from ddlp.sources.workers.processes import WorkerEpoch, worker_processes
from ddlp.transfer.epilogue import Epilogue
from ddlp.translate.cut import Rest
from ddlp.translate.joint import Joint

__all__ = ["Here", "OwnSteps", "Processes", "Threads", "in_processes", "start"]

_TRIED = 8  # in threads, so many samples are watched for draws from the global generators


@dataclass(frozen=True)
class SampleFacts:
    """What the steps need to know of a batch's samples beside their bytes. It is sent to other processes.

    Attributes:
        targets: one for each sample, as the data set keeps them.
        parts: the number of the data set's part for each sample.
        items: (source index, occurrence) of each sample.
        places: the place of each sample, for messages.
        seed, epoch: with the items they give the keys of all draws.
        sizes: (width, height) of each sample's image file; empty unless targets follow their images.
    """

    targets: list[Any]
    parts: list[int]
    items: list[tuple[int, int]]
    places: list[str]
    seed: int
    epoch: int
    sizes: list[tuple[int, int]]

    @classmethod
    def of(cls, resources: Resources, position: int, batch: PreparedBatch) -> SampleFacts:
        """Return those of the batch at this position. A replaced sample draws as the bad one would have."""
        sources = batch.sources(resources.plan.sources(position)).tolist()
        found = [resources.epoch.portable.dataset.part(source) for source in sources]
        numbers = {id(part): number for number, part in enumerate(resources.epoch.portable.dataset.parts)}
        targets = [part.targets([index])[0] for part, index in found]
        parts, places = [numbers[id(part)] for part, _ in found], [resources.reader.where(source) for source in sources]
        sizes = [part.image_size(index) for part, index in found if part.transforms is not None]
        epoch = resources.epoch
        return cls(targets, parts, list(resources.plan.items(position)), places, epoch.seed, epoch.number, sizes)


class Asked(NamedTuple):
    """A request for a batch: the batch of bytes, and what the steps need to know of it."""

    images: torch.Tensor
    boxes: torch.Tensor | None
    facts: SampleFacts

    @classmethod
    def of(cls, resources: Resources, position: int, batch: PreparedBatch) -> Asked:
        """Return the request for the batch at this position."""
        return cls(batch.images, batch.boxes, SampleFacts.of(resources, position, batch))

    def at(self, place: int) -> str:
        """As `ddlp.sources.workers.mark.Work.at`."""
        return "while it made a batch" if place < 0 else f"at sample {self.facts.places[place]}"


class _Samples:
    """The samples of the current batch, by their place in it, as a data set whose transform is the user's steps."""

    def __init__(self, rest: Rest) -> None:
        self.views, self.target_transforms, self._gathered = rest.views, rest.target_transforms, rest.gathered
        self._tensor, self._crops, self.joint = rest.tensor, rest.crops, rest.joint
        self._images: list[torch.Tensor] = []
        self._facts: SampleFacts | None = None

    def take(self, images: list[torch.Tensor], facts: SampleFacts) -> None:
        """Set the batch whose samples are asked for next. ``images``: of each view, the epilogue's result for it."""
        self._images, self._facts = images, facts

    def drop(self) -> None:
        """Forget the batch, which is made."""
        self._images, self._facts = [], None

    def __getitem__(self, k: int) -> tuple[Any, Any]:
        facts = self._facts
        assert facts is not None
        try:
            if self.joint is not None:
                return self._together(self.joint, k, facts)
            views = [self._view(steps, images[k]) for steps, images in zip(self.views, self._images, strict=True)]
            image = views[0] if self._gathered is None else self._gathered(views)
            target, transform = facts.targets[k], self.target_transforms[facts.parts[k]]
            return image, target if transform is None else transform(target)
        except Exception as error:
            place = facts.places[k]
            if get_worker_info() is not None:
                raise named(error, place)  # noqa: B904  torch carries its type and its text to the training process
            noted(error, f"It was raised for sample {place}.")
            raise

    def _together(self, joint: Joint, k: int, facts: SampleFacts) -> tuple[Any, Any]:
        """Return the sample of a joint transform."""
        keyed = Keyed(facts.seed, facts.epoch, *facts.items[k])
        image, target = self._first(self._images[0][k]), joint.follow(facts.targets[k], facts.parts[k], facts.sizes[k], keyed)
        for step in self.views[0]:
            image, target = step(image, target)
        return image, target

    def _view(self, steps: tuple[Any, ...], prepared: torch.Tensor) -> Any:
        """Return the view that the steps make of a prepared image."""
        image: Any = self._first(prepared) if self._crops == 1 else tuple(map(self._first, prepared.chunk(self._crops, dim=1)))
        for step in steps:
            image = step(image)
        return image

    def _first(self, image: torch.Tensor) -> Any:
        """Return what torchvision would have given to the first step."""
        if self._tensor is None:
            pixels = image.permute(1, 2, 0).numpy()  # in their order in memory
            made = Image.fromarray(pixels if pixels.shape[2] > 1 else pixels[:, :, 0])
            return made.copy() if made.readonly else made
        image = image.clone()  # memory of its own: a step may change it, or keep it
        return image if self._tensor is torch.Tensor else tv_tensors.Image(image)


class _Join:
    """The collate_fn. An error of torch's own names the sample that does not go with the others."""

    def __init__(self, collate: Callable[[Any], Any], batched: bool) -> None:
        self.collate = collate
        self._usual = batched and collate is default_collate
        self.places: Sequence[str] = ()  # of the batch's samples, for messages

    def __call__(self, made: Any) -> Any:
        try:
            return self.collate(made)
        except Exception as error:
            if not self._usual:
                raise
            raise with_place(error, [target for _, target in made], self.places)  # noqa: B904


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
        self._samples, self._join = _Samples(rest), _Join(collate, batched)
        self._keyed = KeyedSamples(self._samples, self._join, batched)

    def fetch(self, request: Asked) -> Any:
        """Return the batch. The draws of each sample are keyed. The training process's global generators are put back."""
        with self._taken(request):
            return self._keyed.fetch(self._batch(request.facts))

    def without_global_draws(self, request: Asked) -> Any:
        """Return the batch, without a change to the global generators: only the steps' own generators are keyed."""
        with self._taken(request):
            return self._keyed.by_own_generators(self._batch(request.facts))

    def copies(self, number: int) -> list[OwnSteps]:
        """Return ``number`` objects: this one, and copies with steps of their own.

        Raises ValueError if a function names a transform that has generators of its own: such a transform would be shared.
        """
        made = [self, *(copy.deepcopy(self) for _ in range(number - 1))]
        drawing = [own_generators((one._samples, one._join)) for one in made[:2]]
        shared = {type(one).__name__ for one in drawing[0] if any(one is other for other in drawing[-1])}
        if number > 1 and shared:
            raise ValueError(
                f"own_steps='threads': a function of the transform uses {', '.join(sorted(shared))} from outside of it, so "
                "that all threads would draw from the same one. Keep it in an attribute of a class with __call__, or leave "
                "own_steps='threads' out"
            )
        return made

    def same_as(self, other: OwnSteps) -> bool:
        """As `Maker.same_as`: it holds the very same objects."""
        ours, theirs = self._held(), other._held()
        if len(ours) != len(theirs) or not all(map(operator.is_, ours, theirs)):
            return False
        return self._samples._gathered == other._samples._gathered and self._epilogue.does_what(other._epilogue)

    def _held(self) -> list[Any]:
        samples = self._samples
        steps = [step for view in samples.views for step in (*view, None)]
        kind = samples._crops, samples._tensor
        steps += [] if samples.joint is None else [step for step, _ in samples.joint.steps]
        return [*steps, *samples.target_transforms, *kind, self._join.collate, self._batched, self.dataset]

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnSteps:
        samples = self._samples
        rest = copy.copy(samples)
        rest.views, rest.target_transforms = copy.deepcopy((samples.views, samples.target_transforms), memo)
        made = copy.copy(self)
        made._samples, made._join = rest, copy.deepcopy(self._join, memo)
        made._keyed = KeyedSamples(rest, made._join, self._batched)
        return made

    @contextlib.contextmanager
    def _taken(self, request: Asked) -> Iterator[None]:
        made = self._epilogue(request.images, request.boxes)
        self._samples.take(self._epilogue.views(made, len(self._samples.views)), request.facts)
        self._join.places = request.facts.places
        try:
            yield
        finally:
            self._samples.drop()

    def _batch(self, facts: SampleFacts) -> KeyedBatch:
        indices: Any = range(len(facts.items)) if self._batched else 0
        return KeyedBatch(indices, facts.items, facts.seed, facts.epoch)


class Here:
    """The steps run in the training thread."""

    def __init__(self, steps: OwnSteps) -> None:
        self._steps = steps

    def finish(self, resources: Resources, position: int, batch: PreparedBatch) -> PreparedBatch:
        """Return the batch as it is: `whole` does the work."""
        return batch

    def whole(self, resources: Resources, position: int, batch: PreparedBatch) -> Any:
        """Return what the training loop gets."""
        return self._steps.fetch(Asked.of(resources, position, batch))

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


class _Beside:
    """The steps run beside the training thread."""

    def finish(self, resources: Resources, position: int, batch: PreparedBatch) -> PreparedBatch:
        """Return the whole batch, or a failed one with the error of a sample."""
        try:
            made = self._made(Asked.of(resources, position, batch))
        except Exception as error:  # raised again in the training thread, in this batch's place
            return PreparedBatch.failed(error)
        return PreparedBatch(torch.empty(0), None, BatchState.WHOLE, whole=made, replaced=batch.replaced)

    def whole(self, resources: Resources, position: int, batch: PreparedBatch) -> Any:
        """Return what the training loop gets, which is made already."""
        return batch.whole

    def _made(self, request: Asked) -> Any:
        """Return the batch, in any of the host's threads."""
        raise NotImplementedError


class Threads(_Beside):
    """The host's threads run the steps. Each has a copy of its own, as each of torch's workers has."""

    def __init__(self, steps: OwnSteps, threads: int) -> None:
        self._left, self._lock = _TRIED, threading.Lock()
        self._modes = torch_modes()
        self._free: queue.SimpleQueue[OwnSteps] = queue.SimpleQueue()
        for one in steps.copies(threads):
            self._free.put(one)

    def _made(self, request: Asked) -> Any:
        steps = self._free.get()
        try:
            with self._modes():
                return self._watched(steps, request) if self._left > 0 else steps.without_global_draws(request)
        finally:
            self._free.put(steps)

    def _watched(self, steps: OwnSteps, request: Asked) -> Any:
        with self._lock:  # the epoch's first batches: training waits for them, and draws nothing meanwhile
            before = states()
            made = steps.without_global_draws(request)
            moved = [name for name, state in states().items() if state != before[name]]
            self._left -= len(request.facts.items)
        if moved:
            raise RuntimeError(
                f"own_steps='threads': the transform's own steps drew from the global generator of {' and '.join(moved)}, "
                "which threads share, so their results would differ from run to run. Leave own_steps='threads' out"
            )
        return made

    def close(self) -> None:
        """Do nothing: the threads end by themselves."""


class Processes(_Beside):
    """torch's own worker processes run the steps in an epoch of theirs."""

    def __init__(self, epoch: WorkerEpoch) -> None:
        self._epoch, self.close = epoch, epoch.close

    def _made(self, request: Asked) -> Any:
        return self._epoch.ask(request)


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
        return Threads(steps, max(1, loader.num_workers))
    if not in_processes(how, loader.num_workers):
        return Here(steps)
    return Processes(worker_processes(loader, loader._parts, steps, base_seed))
