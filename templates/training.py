"""The training loop of the templates, with or without ddlp: loader, mixed precision, schedule, evaluation, checkpoints.

Copy it together with common.py and the template. A template describes a `Task` and calls `compare`; `train` is one run.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from common import AMP, Epoch, Run, finish, record_directory, turns
from csd_engine.errors import EngineError
from ddlp import Cache, DDLPError, DDLPLoader, Evaluated, Evaluation, LocalPool, Untranslatable
from ddlp.observe import MeasuredDataLoader, progress
from ddlp.schedule.strategies import STRATEGIES as OURS


@dataclass(frozen=True)
class Task:
    """What a template trains. Each run starts with new weights of the model and a new state of `optimizer`."""

    template: str  # the template's name
    model_name: str
    pipeline: str
    train: Any  # data sets of (image, class)
    val: Any
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer]  # (model, learning rate)
    lr: float  # at the given batch size; --lr has precedence
    paper_model: str | None = None  # the paper's name for it
    channels_last: bool = True  # the faster layout for convolutions on GPUs with tensor cores, and on CPUs; XLA has its own
    loader_options: dict[str, Any] = field(default_factory=dict)  # more arguments of DDLPLoader
    sampler: Callable[[Any, int], Any] | None = None  # (train set, seed) -> sampler; None: all in random order
    loss: Callable[[Any, Any], torch.Tensor] = nn.functional.cross_entropy  # (the model's output, classes)
    no_labels: Callable[[int], Any] = partial(torch.zeros, dtype=torch.int64)  # labels of so many images, for the warming up
    collate_fn: Callable[[list[Any]], Any] | None = None  # makes (images, labels) of samples
    own_code: bool = False  # the data set's code can't travel: --pool runs it
    views: int = 1  # of each train image: a list of tensors in the batch, one behind the other for the model
    evaluate: Callable[[nn.Module, Task, Any, Any], tuple[float, int]] | None = None  # in the place of `evaluate` below
    score: str = "top-1"  # the name of what `evaluate` gives, as a share of the images

    def backend(self, strategy: str, device: str) -> str:
        """Return what prepares the host's batches: 'torch', 'native', 'dali' (on the CPU) or 'dali_gpu'; csd has none."""
        if strategy == "dataloader":
            return "torch"
        if OURS[strategy].needs_device:
            return "native"
        given = str(self.loader_options.get("backend", "native"))
        if given == "dali" and torch.device(device).type == "cuda":
            return "dali_gpu"
        return "dali" if given == "dali_cpu" else given


# -- the loader -------------------------------------------------------------------------------------------------------


def make_loader(task: Task, options: Any, strategy: str, seed: int) -> DDLPLoader | MeasuredDataLoader:
    """Return the training loader. To use ddlp, your own script changes at this place alone."""
    device = torch.device(options.device)
    generator = torch.Generator().manual_seed(seed)
    sampler = None if task.sampler is None else task.sampler(task.train, seed)
    common: dict[str, Any] = dict(
        batch_size=options.batch_size, shuffle=sampler is None, sampler=sampler, num_workers=options.workers,
        generator=generator, pin_memory=device.type == "cuda", collate_fn=task.collate_fn,
    )  # fmt: skip
    record = record_directory(options, strategy, seed)
    if strategy == "dataloader":  # torch's own, to the bit; it is measured, and can be recorded
        return MeasuredDataLoader(task.train, **common, record=record)
    common.update(
        strategy=strategy,
        csd=options.csd if OURS[strategy].uses_device else None,
        pool=pool(task, options) if OURS[strategy].uses_device else None,
        device=device,
        seed=seed,
        record=record,
        cache=False if "backend" in task.loader_options else cache_of(options),  # DALI's batches are not kept
        **({} if OURS[strategy].needs_device else task.loader_options),
    )
    if layout(task, device) == torch.channels_last:
        # Not for transforms of your own: torch's workers run them, and to_device brings their batches into this layout.
        with contextlib.suppress(ValueError):
            return DDLPLoader(task.train, **common, memory_format=torch.channels_last)
    return DDLPLoader(task.train, **common)


def pool(task: Task, options: Any) -> int | str | LocalPool | None:
    """Return what --pool asks for. A number of processes can run code of one's own, too."""
    return LocalPool(options.pool, user_code=True) if task.own_code and isinstance(options.pool, int) else options.pool


def cache_of(options: Any) -> Any:
    """Return what --cache asks for."""
    if options.cache in (None, "auto"):
        return options.cache or False
    return Cache(options.cache, "200G")


def wake_engine(task: Task, options: Any, strategy: str) -> DDLPLoader | None:
    """Have the device, or the engine on this machine, make one batch, so that no figure holds its start.

    Keep the loader that is returned: an engine on this machine ends with the last one. None where none is used.
    """
    if strategy == "dataloader" or not OURS[strategy].uses_device:
        return None
    few: Any = Subset(task.train, range(min(options.batch_size, len(task.train))))
    own: dict[str, Any] = dict(strategy="csd", csd=options.csd, pool=pool(task, options), collate_fn=task.collate_fn)
    try:
        loader: DDLPLoader = DDLPLoader(few, options.batch_size, **own)
    except Untranslatable:  # transforms of your own: this host alone runs them
        return None
    for _ in loader:
        pass
    return loader


def begin_epoch(loader: DataLoader, seed: int, number: int) -> None:
    """Make the order of this epoch follow from (seed, number) alone, so that a resumed run sees what an unbroken one sees."""
    loader.generator.manual_seed(seed * 1_000_003 + number)
    owner: Any = loader if isinstance(loader, DDLPLoader) else loader.sampler
    if callable(getattr(owner, "set_epoch", None)):  # DistributedSampler has it, too
        owner.set_epoch(number)


def layout(task: Task, device: torch.device) -> torch.memory_format:
    """Return the layout of images and weights on the device of the training."""
    return torch.channels_last if task.channels_last and device.type != "xla" else torch.contiguous_format


def to_device(batch: Any, task: Task, device: torch.device) -> tuple[torch.Tensor, Any]:
    """Return the batch on the device of the training. DDLPLoader's is there already."""
    images, labels = batch
    if isinstance(labels, list):  # detection: a dict for each image
        tensors = [{name: torch.as_tensor(part, device=device) for name, part in target.items()} for target in labels]
        return images.to(device, non_blocking=True), tensors
    if isinstance(images, list):
        images = torch.cat(images)
    return images.to(device, memory_format=layout(task, device), non_blocking=True), labels.to(device, non_blocking=True)


# -- training ------------------------------------------------------------------------------------------------------


class Interrupt:
    """The first Ctrl-C ends training after the present step, a second one at once. On demand the first one ends it at once."""

    def __init__(self, after_the_step: bool = True) -> None:
        self.asked = False
        self._after_the_step = after_the_step
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        if self._after_the_step:
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def _ask(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_: object) -> None:
        if self._after_the_step:
            signal.signal(signal.SIGINT, self._before)


@dataclass(frozen=True)
class Training:
    """What changes during a run. The checkpoint has all of it."""

    plain: nn.Module
    model: nn.Module  # the same, wrapped for several ranks
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    scaler: Any  # torch.amp.GradScaler with fp16, else None
    loss: Callable[[Any, Any], torch.Tensor]

    def parts(self) -> dict[str, Any]:
        """Return the parts that have a state_dict, by name."""
        parts = {"model": self.plain, "optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        return {name: part for name, part in parts.items() if part is not None}

    def step(self, images: torch.Tensor, labels: Any, amp: torch.dtype | None) -> torch.Tensor:
        """Forward, backward, update; returns the loss, detached, on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, amp, enabled=amp is not None):
            loss = self.loss(self.model(images), labels)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.schedule.step()
        return loss.detach()


def send(device: torch.device) -> None:
    """End a step: an XLA device only now gets what was recorded for it since the last call. Others work at once."""
    if device.type == "xla":
        importlib.import_module("torch_xla").sync()


def start(task: Task, options: Any, seed: int, steps: int, wrap: Callable[[nn.Module], nn.Module]) -> Training:
    """Return a new model with its optimizer. The learning rate rises linearly, then follows half a cosine over `steps`."""
    torch.manual_seed(seed)
    plain = task.model().to(options.device).to(memory_format=layout(task, torch.device(options.device)))
    if options.compile:
        plain.compile()  # in place: the names of its weights stay
    model = wrap(plain)
    optimizer = task.optimizer(model, options.lr or task.lr)
    rise = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (1 + math.cos(math.pi * min(step / steps, 1))) / 2)
    )
    scaler = torch.amp.GradScaler(torch.device(options.device).type) if options.amp == "fp16" else None
    return Training(plain, model, optimizer, schedule, scaler, task.loss)


def noise(task: Task, options: Any) -> tuple[torch.Tensor, Any]:
    """Return a batch of the shape that training will get, on the device."""
    views = [torch.randn(options.batch_size, *task.val[0][0].shape) for _ in range(task.views)]
    return to_device((torch.cat(views), task.no_labels(options.batch_size * task.views)), task, torch.device(options.device))


def warm_up(training: Training, task: Task, options: Any) -> None:
    """Run one pass on noise. The first one allocates, tunes and compiles, and no strategy should pay for that."""
    before = {name: value.clone() for name, value in training.plain.state_dict().items()}  # BatchNorm's running means
    images, labels = noise(task, options)
    training.model.train()
    with torch.autocast(images.device.type, AMP[options.amp], enabled=AMP[options.amp] is not None):
        loss = training.loss(training.model(images), labels)
    loss.backward()
    training.optimizer.zero_grad(set_to_none=True)
    training.plain.load_state_dict(before)
    send(images.device)


def train_epoch(
    training: Training, task: Task, loader: DDLPLoader | MeasuredDataLoader, options: Any, epoch: Epoch, title: str,
    interrupt: Interrupt,
) -> None:  # fmt: skip
    """Train for one epoch, or until Ctrl-C. Sets the figures of `epoch`."""
    device, amp = torch.device(options.device), AMP[options.amp]
    training.model.train()
    total = torch.zeros((), device=device)
    started = time.perf_counter()
    batches = iter(progress(loader, title))
    while not interrupt.asked:
        asked = time.perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            break
        epoch.waiting_s += time.perf_counter() - asked
        images, labels = to_device(batch, task, device)
        total += training.step(images, labels, amp) * len(labels)
        send(device)
        epoch.batches += 1
        epoch.samples += len(labels)
    epoch.loss = total.item() / max(epoch.samples, 1)  # .item() waits for the GPU: the epoch's time ends after its last step
    epoch.seconds = time.perf_counter() - started
    report = loader.report()
    epoch.batches_cpu, epoch.batches_csd, epoch.host_cpu_s = report.batches_cpu, report.batches_csd, report.host_cpu_s
    epoch.rate_cpu, epoch.rate_csd, epoch.bound_s = report.rate_cpu, report.rate_csd, report.bound_s


def val_loader(val: Any, options: Any, collate_fn: Any = None) -> DDLPLoader:
    """Return the loader of an evaluation. No strategy, no csd: the host alone, in the data set's order."""
    device, workers = torch.device(options.device), options.workers
    return DDLPLoader(
        val, options.batch_size, num_workers=workers, device=device, cache=cache_of(options), collate_fn=collate_fn
    )


@torch.no_grad()  # not inference_mode, in which XLA makes no views
def evaluate(model: nn.Module, task: Task, loader: Any, options: Any) -> tuple[float, int]:
    """Return how many images of the loader the model classifies correctly, and how many there are."""
    model.eval()
    if task.evaluate is not None:
        return task.evaluate(model, task, loader, options)
    device, amp = torch.device(options.device), AMP[options.amp]
    right, seen = torch.zeros((), dtype=torch.int64, device=device), 0
    for batch in loader:
        images, labels = to_device(batch, task, device)
        with torch.autocast(device.type, amp, enabled=amp is not None):
            right += (model(images).argmax(1) == labels).sum()
        send(device)
        seen += len(labels)
    return int(right), seen


def train(
    task: Task, options: Any, strategy: str, seed: int, *, rank: int = 0, ranks: int = 1,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
    around: Callable[[DDLPLoader | MeasuredDataLoader], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> tuple[Run, Training]:  # fmt: skip
    """Train a fresh model under one strategy, for --epochs or until Ctrl-C; `evaluate` comes after it.

    Args:
        task, options: the template's.
        strategy: one of STRATEGIES.
        seed: of weights, order and augmentations.
        rank, ranks: which of several processes this is. With several, Ctrl-C ends all at once (they can't agree on a step).
        wrap: put around the model, e.g. DistributedDataParallel.
        around: entered around each epoch of the loader, e.g. to measure.
    """
    loader = make_loader(task, options, strategy, seed)
    training = start(task, options, seed, options.epochs * len(loader), wrap)
    run = Run(strategy, seed, task.model_name, task.paper_model, task.pipeline, options.device, options.batch_size,
              options.workers, ranks, backend=task.backend(strategy, options.device), score=task.score)  # fmt: skip
    warm_up(training, task, options)
    engine = wake_engine(task, options, strategy)
    first, loader_state = _resumed(training, run, options)
    if first or loader_state is not None:
        print(f"rank {rank} goes on from {options.checkpoint}: epoch {first + 1}", file=sys.stderr)
    torch.manual_seed(seed + rank)  # dropout draws from it
    side = _beside(training, task, options, rank)
    with Interrupt(after_the_step=ranks == 1) as interrupt, side or contextlib.nullcontext():
        for number in range(first, options.epochs):
            if loader_state is not None and isinstance(loader, DDLPLoader):
                loader.load_state_dict(loader_state)  # first: it brings the generators of the run that was broken off
                loader_state = None
            begin_epoch(loader, seed, number)
            run.epochs.append(epoch := Epoch(number))
            title = f"{strategy} seed {seed} epoch {number + 1}/{options.epochs}"
            with around(loader):
                train_epoch(training, task, loader, options, epoch, title, interrupt)
            if rank == 0:
                _save(training, loader, run, options, number, interrupt.asked)
            if interrupt.asked:
                return run, training
            if side is not None:
                side.start(number)
                _note(side.done(), run)
        if side is not None:
            _note(side.finish(), run)
    del engine
    run.complete = True
    return run, training


def _beside(training: Training, task: Task, options: Any, rank: int) -> Evaluation[tuple[float, int]] | None:
    """Return what evaluates after each epoch, beside the next one, if --evaluate-beside asks for it."""
    if not options.evaluate_beside or rank:
        return None
    loader = val_loader(task.val, options, task.collate_fn)
    return Evaluation(training.plain, loader, lambda model, loader: evaluate(model, task, loader, options))


def _note(evaluations: list[Evaluated[tuple[float, int]]], run: Run) -> None:
    """Print the results that have come, and keep them with their epochs."""
    for (epoch, (right, seen), seconds) in evaluations:
        run.epochs[epoch].accuracy = right / seen
        what = f"{run.score} {right / seen:.1%} of {seen} images"
        print(f"epoch {epoch + 1}: {what}; evaluated in {seconds:.1f} s", file=sys.stderr)


def _save(training: Training, loader: DataLoader, run: Run, options: Any, number: int, interrupted: bool) -> None:
    """Write the checkpoint, with the state of the loader. DataLoader has none: its epoch begins again."""
    if options.checkpoint is None or (interrupted and not isinstance(loader, DDLPLoader)):
        return
    loader_state = loader.state_dict() if isinstance(loader, DDLPLoader) else None
    following = number + 1 if loader_state is None else loader_state["epoch"]  # the same one where something is left of it
    state = {name: part.state_dict() for name, part in training.parts().items()}
    state.update(next=following, loader=loader_state, epochs=[asdict(epoch) for epoch in run.epochs])
    options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    unfinished = options.checkpoint.with_suffix(".part")
    torch.save(state, unfinished)
    unfinished.replace(options.checkpoint)


def _resumed(training: Training, run: Run, options: Any) -> tuple[int, Any]:
    """Return the next epoch and the loader's state, from the checkpoint if there is one."""
    if options.checkpoint is None or not options.checkpoint.exists():
        return 0, None
    state = torch.load(options.checkpoint, map_location="cpu", weights_only=True)  # what loads it moves it
    for name, part in training.parts().items():
        part.load_state_dict(state[name])
    if run.ranks == 1:  # of several the file knows the first one's figures alone
        run.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
    return state["next"], state["loader"]


# -- all runs --------------------------------------------------------------------------------------------------------


def compare(task: Task, options: Any) -> int:
    """Run every strategy under every seed, print the figures and write the report; returns the exit status."""
    sizes = f"{len(task.train)} images, batches of {options.batch_size}, {options.workers} workers"
    print(f"{task.model_name}, {task.pipeline}, on {options.device}: {sizes}")
    runs: list[Run] = []
    try:
        for strategy, seed in turns(options):
            run, training = train(task, options, strategy, seed)
            runs.append(run)
            if not run.complete:
                break
            run.accuracy = run.epochs[-1].accuracy  # --evaluate-beside
            if run.accuracy is None:
                right, seen = evaluate(training.plain, task, val_loader(task.val, options, task.collate_fn), options)
                run.accuracy = right / seen
    except KeyboardInterrupt:
        pass
    except (DDLPError, EngineError) as error:  # a device can't be reached, or the data can't travel
        print(f"{task.template}: {error}", file=sys.stderr)
        if not runs:
            return 1
    return finish(task.template, options, runs)
