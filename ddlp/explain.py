"""`loader.explain()`: what of a loader travels to a device, what does not, and why."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from typing import Any

from torch.utils.data import IterableDataset

from ddlp.errors import Untranslatable
from ddlp.process.platforms import OtherSystem
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.schedule.strategies import Strategy
from ddlp.translate.dali import stages
from ddlp.translate.obstacles import has_images, obstacles
from ddlp.translate.portable import Portable
from ddlp.translate.user_operators import operator_files
from ddlp.translate.values import KEEP


class Explanation(str):
    """What `explain` says. A notebook that shows the value of a cell does not show again what this cell has printed."""

    def __init__(self, text: str) -> None:
        self._cell = _cell()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"

    def _ipython_display_(self) -> None:
        """IPython calls this to show it."""
        if self._cell != _cell():
            from IPython.display import publish_display_data

            publish_display_data({"text/plain": str(self), "text/html": self._repr_html_()})


def _cell() -> int | None:
    """The number of IPython's cell that runs; None where this is not IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return None if shell is None else shell.execution_count


@dataclass(frozen=True)
class Chosen:
    """What of a loader's config is told.

    Attributes:
        strategy: the strategy's class.
        by_default: nobody has named that strategy.
        backend: who prepares the host's batches, as `DDLPLoader`'s argument.
        dali_on_gpu: DALI does it on the GPU.
        transfer: how a device's batches come, as `DDLPLoader`'s argument.
    """

    strategy: type[Strategy]
    by_default: bool
    backend: str
    dali_on_gpu: bool
    transfer: str | None


def explain(loader: Any, chosen: Chosen, found: Portable | Untranslatable) -> Explanation:
    """A few lines for a person. ``found``: what can travel, or why nothing can."""
    return Explanation("\n".join(_lines(loader, chosen, found)))


def _lines(loader: Any, chosen: Chosen, found: Portable | Untranslatable) -> list[str]:
    strategy = chosen.strategy
    lines = [f"strategy   {strategy.name} ({'by default' if chosen.by_default else 'given'}): {strategy.line}"]
    if isinstance(found, Untranslatable):
        found_all = obstacles(loader, found)
        stream = isinstance(loader.dataset, IterableDataset)
        lines += [
            f"travels    nothing: {len(found_all)} obstacle{'s' * (len(found_all) > 1)}, listed below",
            "so         torch's own workers prepare everything on this host, as in DataLoader",
            *(SEEDING if loader.worker_init_fn is not None and not stream else ()),
        ]
        for number, one in enumerate(found_all, 1):
            lines.append(f"{f'obstacle {number}':10} {one.operator}{'' if isinstance(one, OtherSystem) else ':'} {one.why}")
            lines += [f"  try      {way}" for way in one.ways_out if way != KEEP]
        if not isinstance(found, OtherSystem):
            lines += ["or         change nothing: the batches are right as they are, at DataLoader's speed"]
            lines += [GAIN] if has_images(loader.dataset) else []
        return lines
    height, width, channels = found.shape
    parts = ", ".join(f"{part.name} ({len(part):,} samples)" for part in found.dataset.parts)
    named = [op["function"] if op["op"] == "User" else op["op"] for op in found.pipeline.to_data()["ops"]]
    ops = " -> ".join(named) or "nothing but decoding"
    epilogue = found.epilogue
    lines += [
        f"data set   {parts}: images and indices travel, targets stay here and are joined by index",
        f"travels    {ops}: the same code, the same bits on either side",
        f"batches    uint8 ({loader.batch_size or 'n'}, {height}, {width}, {channels})"
        + (f" and {found.pipeline.boxes} mask box(es) a sample" if found.pipeline.boxes else ""),
        "stays      "
        + ("nothing" if epilogue.table is None else "ToTensor, Normalize and type changes, as one table where the batch lands")
        + f"; delivered as {epilogue.dtype}".replace("torch.", ""),
    ]
    if found.pipeline.decode == "fast":
        lines.append("decode     fast: large JPEGs at a part of their size, close to torchvision's pixels, not the same bits")
    if chosen.backend != "native":
        lines.append(f"backend    DALI prepares the host's batches: {stages(found).distance(chosen.dali_on_gpu)}")
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
    unused = [name for name in ("worker_init_fn", "multiprocessing_context") if getattr(loader, name) is not None]
    if unused:
        lines.append(f"workers    {' and '.join(unused)} not used: the workers are threads and run none of your code")
    if strategy.uses_device:
        lines.append(f"transfer   {TRANSFER[chosen.transfer]}")
    else:
        lines.append("device     none is used; strategy='wrr' or csd=... brings one in")
    return lines


GAIN = (
    "gain       without obstacles ddlp's kernel prepares the samples: on one core 4.2 to 5.2 times DataLoader for JPEG files, "
    "66 times for CIFAR-10's arrays (measured in docs/benchmarks.md; yours: ddlp try FOLDER)"
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
