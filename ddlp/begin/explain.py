"""`loader.explain()`: which parts of a loader travel to a device, which do not, and why."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils.data import DataLoader, IterableDataset

from ddlp import decode
from ddlp.begin.loader_view import LoaderView
from ddlp.begin.travel import pool_of, runs_user_code, why_at_home
from ddlp.caching.opening import cache_line, point_line
from ddlp.errors import Untranslatable
from ddlp.process.platforms import OtherSystem
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.sampling.torch_loader import index_sampler_of
from ddlp.sources.base import LeaseSource
from ddlp.stats.live import DeviceLive
from ddlp.translate.cut import Rest
from ddlp.translate.dali import stages
from ddlp.translate.marked import CodeBeforePoint
from ddlp.translate.obstacles import has_images, obstacles
from ddlp.translate.portable import Portable
from ddlp.translate.user_operators import operator_files
from ddlp.translate.values import KEEP


class Explanation(str):
    """The text of `explain`. A notebook does not show it as a cell's value if the same cell has printed it already."""

    def __init__(self, text: str) -> None:
        self._cell = _cell()

    def _ipython_display_(self) -> None:
        """Show the text, when IPython asks for that, unless its cell has printed it."""
        if self._cell != _cell():
            print(self)


def _cell() -> int | None:
    """Return the number of the IPython cell that runs; None outside IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return None if shell is None else shell.execution_count


@dataclass(frozen=True)
class OwnSource:
    """A source of the user's own.

    Attributes:
        name: its name.
        kind: the name of its class.
        batches: how many batches it can hold; None: not known, since it has not joined an epoch yet.
        workers: how many workers it has; None: not known, as above.
    """

    name: str
    kind: str
    batches: int | None = None
    workers: int | None = None


def explain(view: LoaderView, joined: Sequence[DeviceLive]) -> Explanation:
    """Return a few lines for the user about a loader. ``joined``: the devices of its last epoch."""
    config, strategy = view.config, view.config.chosen
    lines = [f"strategy   {strategy.name} ({'by default' if config.strategy is None else 'given'}): {strategy.line}"]
    lines += [] if view.auto_workers is None else [f"workers    {view.auto_workers.line}"]
    sources = tuple(_own_source(source, joined) for source in config.own_sources)
    try:
        portable = view.travel.as_described(view.travel.translated(view.torch, config))
    except Untranslatable as error:
        lines += _nothing_travels(view, error, sources)
    else:
        lines += [*_what_travels(view, portable), *_who_makes_it(view, portable, sources)]
    return Explanation("\n".join(lines))


def _own_source(source: LeaseSource, joined: Sequence[DeviceLive]) -> OwnSource:
    """Describe a source of the user's own, with its capacity if it has joined the last epoch."""
    kind = type(source).__name__
    same = (device for device in joined if device.name == source.name and device.quota)
    return next((OwnSource(source.name, kind, device.quota, device.workers) for device in same), OwnSource(source.name, kind))


def _nothing_travels(view: LoaderView, error: Untranslatable, sources: tuple[OwnSource, ...]) -> list[str]:
    """Return the lines about a loader whose samples only the user's code can make."""
    loader, config = view.torch, view.config
    before_point = isinstance(error, CodeBeforePoint)
    cache = point_line(config.cache, error.marked) if isinstance(error, CodeBeforePoint) else None
    all_obstacles = [error] if before_point else obstacles(loader, error)
    stream = isinstance(loader.dataset, IterableDataset)
    lines = [
        f"travels    nothing: {len(all_obstacles)} obstacle{'s' * (len(all_obstacles) > 1)}, listed below",
        *_who_runs_it(view),
        *(f"source     {source.name} ({source.kind}, yours): takes no part, since nothing travels" for source in sources),
        *(SEEDING if loader.worker_init_fn is not None and not stream else ()),
        *_postponed(config.postpone_decoding, error),
        *(() if cache is None else (f"cache      {cache}",)),
    ]
    for number, obstacle in enumerate(all_obstacles, 1):
        colon = "" if isinstance(obstacle, OtherSystem) else ":"
        lines.append(f"{f'obstacle {number}':10} {obstacle.operator}{colon} {obstacle.why}")
        lines += [f"  try      {way}" for way in obstacle.ways_out if way != KEEP]
    if not isinstance(error, OtherSystem):
        lines += ["or         change nothing: the batches are right as they are"]
        lines += [GAIN] if has_images(loader.dataset) else []
    return lines


def _what_travels(view: LoaderView, portable: Portable) -> list[str]:
    """Return the lines about the data set, the transform and the batches."""
    loader, config = view.torch, view.config
    height, width, channels = portable.shape
    parts = ", ".join(f"{part.name} ({len(part):,} samples)" for part in portable.dataset.parts)
    named = [op["function"] if op["op"] == "User" else op["op"] for op in portable.pipeline.to_data()["ops"]]
    ops = " -> ".join(named) or "nothing but decoding"
    epilogue, boxes = portable.epilogue, portable.pipeline.boxes
    count = str(loader.batch_size or "n")
    if portable.views > 1:
        ops, count = f"{portable.views} views of each sample, {ops}", f"{portable.views} x {count}"
    elif epilogue.sizes:
        ops = f"{len(epilogue.sizes)} views of each sample, {ops}"
    lines = [
        f"data set   {parts}: images and indices travel, targets stay here and are joined by index",
        f"travels    {ops}: the same code, the same bits on either side",
        *(_behind_the_cut(loader, portable.rest, config.own_steps) if portable.rest is not None else ()),
        f"batches    uint8 ({count}, {height}, {width}, {channels})"
        + (f" and {boxes} mask box(es) a sample" if boxes else "")
        + (f", in each row the views of {_sizes(epilogue.sizes)}, one after another" if epilogue.sizes else ""),
        "stays      "
        + ("nothing" if epilogue.table is None else "ToTensor, Normalize and type changes, as one table where the batch lands")
        + ("; delivered as " + (str(epilogue.dtype) if portable.rest is None else "your code gives it")).replace("torch.", ""),
    ]
    if portable.pipeline.decode == "fast" and epilogue.sizes:
        lines.append("decode     exact: views of several sizes are made of one image, which is decoded at its full size")
    elif portable.pipeline.decode == "fast":
        lines.append("decode     fast: large JPEGs at a part of their size, close to torchvision's pixels, not the same bits")
    if config.as_pil:
        lines.append("as_pil     operators behind ToImage run as on PIL images; how far torch's pixels are: docs/operators.md")
    return lines


def _who_makes_it(view: LoaderView, portable: Portable, sources: tuple[OwnSource, ...]) -> list[str]:
    """Return the lines about what prepares the batches: DALI, the cache, the workers, devices and pools."""
    loader, config = view.torch, view.config
    lines = []
    if config.backend != "native":
        lines.append(f"backend    DALI prepares the host's batches: {stages(portable).distance(config.dali_on_gpu)}")
    if (cache := cache_line(config.cache, portable)) is not None:
        lines.append(f"cache      {cache}")
    for file in operator_files(portable.pipeline):
        functions = sorted({operator.function for operator in portable.pipeline.user_operators if operator.file == file.hash})
        lines.append(
            f"yours      {', '.join(functions)} of {file.name} ({file.hash}): runs on a device that has the file, which "
            f"`ddlp deploy ... --operators {file.name}` copies there by SSH; an engine on this machine is given it"
        )
    index_sampler = index_sampler_of(loader)
    if not is_built_in(index_sampler):
        lines.append(
            f"sampler    {type(index_sampler).__name__} is yours: read no further ahead than DataLoader would "
            f"({(loader.prefetch_factor or 0) * loader.num_workers} batches); num_workers and prefetch_factor widen it"
        )
    in_processes = portable.rest is not None and config.own_steps == "processes" and loader.num_workers > 0
    named_for_workers = () if in_processes else ("worker_init_fn", "multiprocessing_context")
    unused = [name for name in named_for_workers if getattr(loader, name) is not None]
    if unused:
        lines.append(f"workers    {' and '.join(unused)} not used: the workers are threads and run none of your code")
    if not config.chosen.uses_device:
        return [*lines, "device     none is used; strategy='wrr', csd=... or pool=... brings one in"]
    engines = bool(config.engine_devices) or config.pool is not None or not config.own_sources
    lines += [f"transfer   {TRANSFER[config.transfer]}"] if engines else []
    lines += [] if config.pool is None else [f"pool       {pool_of(config)!r}"]
    lines += [f"source     {source.name} ({source.kind}, yours): {_capacity(source)}" for source in sources]
    return lines


def _who_runs_it(view: LoaderView) -> list[str]:
    """Return the lines about who runs user code."""
    host_alone = "so         torch's own workers prepare everything on this host, as in DataLoader"
    if not runs_user_code(view.config):
        return [host_alone]
    if at_home := why_at_home(view.torch, view.config):
        return [host_alone, f"pool       takes no part in your code: {at_home}"]
    return [
        "so         your code prepares everything: in torch's own workers on this host, and on the pool",
        f"pool       {pool_of(view.config)!r}: gets the data set, the transform and the collate_fn as a pickle, and sends back "
        "tensors, arrays, numbers, strings, bytes, None, tuples, lists and dicts; a batch with anything else is made on "
        "this host",
    ]


def _capacity(source: OwnSource) -> str:
    """Return a line about how much a source can hold and do, as it has told the last epoch."""
    if source.batches is None or source.workers is None:
        return "what it can hold is known once it has joined an epoch"
    batches, workers = source.batches, source.workers
    return f"holds {batches} batch{'es' * (batches != 1)}, has {workers} worker{'s' * (workers != 1)}"


def _postponed(wanted: bool, error: Untranslatable) -> list[str]:
    """Return the line about what `Image.open` gives to the user's code."""
    if isinstance(error, OtherSystem):
        return []
    why = decode.why_not() if wanted else "postpone_decoding=False"
    return [f"decoding   by Pillow at once: {why}" if why else POSTPONED]


POSTPONED = (
    "decoding   put off while your code makes a batch: JPEGs that PIL.Image.open gives it are decoded, cropped, resized and "
    "flipped in one call of ddlp's kernel, with Pillow's pixels; postpone_decoding=False turns it off"
)
def _sizes(sizes: tuple[tuple[int, int], ...]) -> str:
    """Heights and widths in their order, each run of equal ones once: "2 x (224, 224) and 6 x (96, 96)"."""
    return " and ".join(f"{len(list(same))} x {size}" for size, same in itertools.groupby(sizes))


def _behind_the_cut(loader: DataLoader, rest: Rest, how: str) -> list[str]:
    """Return the line that marks the cut in the list of operators, and the line about the steps after it."""
    collate = getattr(loader.collate_fn, "__qualname__", loader.collate_fn)
    gets = "a PIL image" if rest.tensor is None else "a tensor"
    if rest.crops > 1:
        gets = f"a tuple of {rest.crops} PIL images"
    steps = " | ".join(rest.names)  # of views that differ
    workers = loader.num_workers
    if how == "threads":
        where = f"{max(1, workers)} thread(s) of this process"
    else:
        where = f"{workers} process(es)" if workers else "the training thread (num_workers=0)"
    return [
        f"---------- cut here: what is above runs in ddlp's kernel, on the host and on devices; for {rest.why.operator}: "
        f"{rest.why.why}",
        *(FOLLOW if rest.joint is not None else ()),
        f"own steps  {steps}, then {collate}: your code, gets {gets}, on this host in {where}; "
        "own_steps='processes', 'threads' or 'off' (nothing is cut) chooses",
    ]


GAIN = (
    "gain       without obstacles ddlp's kernel prepares the samples: on one core 4.2 to 5.2 times DataLoader for JPEG files, "
    "66 times for CIFAR-10's arrays (measured in docs/benchmarks.md; yours: ddlp try FOLDER)"
)
FOLLOW = (
    "targets    boxes, masks and key points follow what was drawn for their image, by torchvision's own code, on this host",
)
SEEDING = (
    "draws      keyed by each sample, whichever worker makes it; a generator (torch, numpy, random) that your worker_init_fn "
    "seeds or draws from follows DataLoader from there on",
)
_EITHER = "through the device's spool where this host sees the same one (tried when it joins), else over its engine's socket"
TRANSFER = {
    None: _EITHER,
    "auto": _EITHER,
    "shared": "through the device's spool, which this host must see",
    "gds": "from the device's spool straight into the GPU's memory (GPUDirect Storage)",
    "pinned": "from the device's spool into page-locked memory and on to the GPU",
    "mmap": "from the device's spool, mapped, to the GPU",
    "stream": "over the engine's socket",
}
