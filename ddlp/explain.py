"""`loader.explain()`: which parts of a loader travel to a device, which do not, and why."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from html import escape
from typing import Any

from torch.utils.data import IterableDataset

from ddlp import decode
from ddlp.errors import Untranslatable
from ddlp.process.platforms import OtherSystem
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.schedule.strategies import Strategy
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

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"

    def _ipython_display_(self) -> None:
        """Show the text, when IPython asks for that, unless its cell has printed it."""
        if self._cell != _cell():
            from IPython.display import publish_display_data

            publish_display_data({"text/plain": str(self), "text/html": self._repr_html_()})


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


@dataclass(frozen=True)
class Chosen:
    """The parts of a loader's config that the text tells.

    Attributes:
        strategy: the strategy's class.
        by_default: True: the user has not named the strategy.
        backend: which code prepares the host's batches, `DDLPLoader`'s argument.
        dali_on_gpu: True: DALI does that on the GPU.
        transfer: how a device's batches come to this host, `DDLPLoader`'s argument.
        engines: True: engines take part, not only sources of the user's own.
        sources: the sources of the user's own.
        pool: the pool, in words; None: there is none.
        at_home: why that pool takes no part in user code; "": it does; None: it runs none in any case.
        own_steps: where the unknown steps of a transform run, `DDLPLoader`'s argument.
        workers: how many workers ``num_workers="auto"`` has found, and why; None: a number is given.
        cache: what the host keeps of samples, and where, or why it keeps nothing; None: no cache is asked for.
    """

    strategy: type[Strategy]
    by_default: bool
    backend: str
    dali_on_gpu: bool
    transfer: str | None
    engines: bool
    sources: tuple[OwnSource, ...]
    pool: str | None
    at_home: str | None
    own_steps: str
    workers: str | None = None
    cache: str | None = None


def explain(loader: Any, chosen: Chosen, found: Portable | Untranslatable) -> Explanation:
    """Return a few lines for the user. ``found``: the parts that can travel, or why nothing can."""
    return Explanation("\n".join(_lines(loader, chosen, found)))


def _lines(loader: Any, chosen: Chosen, found: Portable | Untranslatable) -> list[str]:
    strategy = chosen.strategy
    lines = [f"strategy   {strategy.name} ({'by default' if chosen.by_default else 'given'}): {strategy.line}"]
    lines += [] if chosen.workers is None else [f"workers    {chosen.workers}"]
    if isinstance(found, Untranslatable):
        found_all = [found] if isinstance(found, CodeBeforePoint) else obstacles(loader, found)
        stream = isinstance(loader.dataset, IterableDataset)
        lines += [
            f"travels    nothing: {len(found_all)} obstacle{'s' * (len(found_all) > 1)}, listed below",
            *_who_runs_it(chosen),
            *(f"source     {one.name} ({one.kind}, yours): takes no part, since nothing travels" for one in chosen.sources),
            *(SEEDING if loader.worker_init_fn is not None and not stream else ()),
            *_postponed(loader, found),
            *(() if chosen.cache is None else (f"cache      {chosen.cache}",)),
        ]
        for number, one in enumerate(found_all, 1):
            lines.append(f"{f'obstacle {number}':10} {one.operator}{'' if isinstance(one, OtherSystem) else ':'} {one.why}")
            lines += [f"  try      {way}" for way in one.ways_out if way != KEEP]
        if not isinstance(found, OtherSystem):
            lines += ["or         change nothing: the batches are right as they are"]
            lines += [GAIN] if has_images(loader.dataset) else []
        return lines
    height, width, channels = found.shape
    parts = ", ".join(f"{part.name} ({len(part):,} samples)" for part in found.dataset.parts)
    named = [op["function"] if op["op"] == "User" else op["op"] for op in found.pipeline.to_data()["ops"]]
    ops = " -> ".join(named) or "nothing but decoding"
    epilogue = found.epilogue
    count = str(loader.batch_size or "n")
    if found.views > 1:
        ops, count = f"{found.views} views of each sample, {ops}", f"{found.views} x {count}"
    elif epilogue.sizes:
        ops = f"{len(epilogue.sizes)} views of each sample, {ops}"
    lines += [
        f"data set   {parts}: images and indices travel, targets stay here and are joined by index",
        f"travels    {ops}: the same code, the same bits on either side",
        *(_behind_the_cut(loader, found.rest, chosen.own_steps) if found.rest is not None else ()),
        f"batches    uint8 ({count}, {height}, {width}, {channels})"
        + (f" and {found.pipeline.boxes} mask box(es) a sample" if found.pipeline.boxes else "")
        + (f", in each row the views of {_sizes(epilogue.sizes)}, one after another" if epilogue.sizes else ""),
        "stays      "
        + ("nothing" if epilogue.table is None else "ToTensor, Normalize and type changes, as one table where the batch lands")
        + ("; delivered as " + (str(epilogue.dtype) if found.rest is None else "your code gives it")).replace("torch.", ""),
    ]
    if found.pipeline.decode == "fast" and epilogue.sizes:
        lines.append("decode     exact: views of several sizes are made of one image, which is decoded at its full size")
    elif found.pipeline.decode == "fast":
        lines.append("decode     fast: large JPEGs at a part of their size, close to torchvision's pixels, not the same bits")
    if loader.as_pil:
        lines.append("as_pil     operators behind ToImage run as on PIL images; how far torch's pixels are: docs/operators.md")
    if chosen.backend != "native":
        lines.append(f"backend    DALI prepares the host's batches: {stages(found).distance(chosen.dali_on_gpu)}")
    if chosen.cache is not None:
        lines.append(f"cache      {chosen.cache}")
    for file in operator_files(found.pipeline):
        functions = sorted({one.function for one in found.pipeline.user_operators if one.file == file.hash})
        lines.append(
            f"yours      {', '.join(functions)} of {file.name} ({file.hash}): runs on a device that has the file, which "
            f"`ddlp deploy ... --operators {file.name}` copies there by SSH; an engine on this machine is given it"
        )
    if not is_built_in(loader._index_sampler):
        lines.append(
            f"sampler    {type(loader._index_sampler).__name__} is yours: read no further ahead than DataLoader would "
            f"({(loader.prefetch_factor or 0) * loader.num_workers} batches); num_workers and prefetch_factor widen it"
        )
    in_processes = found.rest is not None and chosen.own_steps == "processes" and loader.num_workers > 0
    named_for_workers = () if in_processes else ("worker_init_fn", "multiprocessing_context")
    unused = [name for name in named_for_workers if getattr(loader, name) is not None]
    if unused:
        lines.append(f"workers    {' and '.join(unused)} not used: the workers are threads and run none of your code")
    if strategy.uses_device:
        lines += [f"transfer   {TRANSFER[chosen.transfer]}"] if chosen.engines else []
        lines += [] if chosen.pool is None else [f"pool       {chosen.pool}"]
        lines += [f"source     {one.name} ({one.kind}, yours): {_capacity(one)}" for one in chosen.sources]
    else:
        lines.append("device     none is used; strategy='wrr', csd=... or pool=... brings one in")
    return lines


def _who_runs_it(chosen: Chosen) -> list[str]:
    """Return the lines about who runs user code."""
    host_alone = "so         torch's own workers prepare everything on this host, as in DataLoader"
    if chosen.at_home is None:
        return [host_alone]
    if chosen.at_home:
        return [host_alone, f"pool       takes no part in your code: {chosen.at_home}"]
    return [
        "so         your code prepares everything: in torch's own workers on this host, and on the pool",
        f"pool       {chosen.pool}: gets the data set, the transform and the collate_fn as a pickle, and sends back tensors, "
        "arrays, numbers, strings, bytes, None, tuples, lists and dicts; a batch with anything else is made on this host",
    ]


def _capacity(source: OwnSource) -> str:
    """Return a line about how much a source can hold and do, as it has told the last epoch."""
    if source.batches is None or source.workers is None:
        return "what it can hold is known once it has joined an epoch"
    batches, workers = source.batches, source.workers
    return f"holds {batches} batch{'es' * (batches != 1)}, has {workers} worker{'s' * (workers != 1)}"


def _postponed(loader: Any, found: Untranslatable) -> list[str]:
    """Return the line about what `Image.open` gives to the user's code."""
    if isinstance(found, OtherSystem):
        return []
    why = decode.why_not() if loader.postpone_decoding else "postpone_decoding=False"
    return [f"decoding   by Pillow at once: {why}" if why else POSTPONED]


POSTPONED = (
    "decoding   put off while your code makes a batch: JPEGs that PIL.Image.open gives it are decoded, cropped, resized and "
    "flipped in one call of ddlp's kernel, with Pillow's pixels; postpone_decoding=False turns it off"
)
def _sizes(sizes: tuple[tuple[int, int], ...]) -> str:
    """Heights and widths in their order, each run of equal ones once: "2 x (224, 224) and 6 x (96, 96)"."""
    return " and ".join(f"{len(list(same))} x {size}" for size, same in itertools.groupby(sizes))


def _behind_the_cut(loader: Any, rest: Rest, how: str) -> list[str]:
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
