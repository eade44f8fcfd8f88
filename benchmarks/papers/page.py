r"""The papers' headlines with ddlp's figures beside them, and how each was had: writes docs/paper.md.

    python -m benchmarks.papers.page            # a few seconds; measures nothing
    python -m benchmarks.papers.page --check    # status 1 if the page is not what this would write

Figures come from three places. `docs/benchmarks.md` has what `ddlp bench --all` measured, `docs/results/*.json` what other
commands printed: each with command, date, machine and figures. The rest follows from the papers' own tables
(`ddlp.planning`). What none of these has was not run, and its line says so.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.papers.published import BATCH_SIZES, IMAGENET_IMAGES, rows
from benchmarks.papers.table6 import Cell, clean_cells
from benchmarks.papers.validation import Prediction, validate
from ddlp.observe.energy.model import PaperModel, Tariff
from ddlp.planning.measured import Measured, OffloadPath
from ddlp.planning.play import play_epoch
from scripts import accuracy_check, cache_sweep, controller_check, ratio_sweep
from scripts.markdown import markdown_table
from scripts.results import RESULTS, Kept

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "paper.md"

MEASURED, SCALED, MODELLED = "measured here", "in scaled time", "modelled"
NO_GPU, NO_BOARD, NO_DSA = "not run on a GPU", "not run on a GPU with a board", "not run on a TPU with a board"
HOW = {
    MEASURED: "by the command, on a computer without a GPU",
    SCALED: "real loader, processes and files; the accelerator sleeps for a step's time, and in Table VI and the sweep of "
    "shares so does what prepares",
    MODELLED: "computed from figures of the paper, or from random workloads; nothing was measured",
    NO_GPU: "no figure of ours is kept; the command would measure it, or what comes nearest to it, and needs a GPU",
    NO_BOARD: "the same, with a computational storage device beside the GPU",
    NO_DSA: "the same, with the accelerator of the paper's Figure 8b",
}
NAMES = (
    "decision-rules", "scaling-rules", "evaluation-check", "cache-check", "cache-sweep", "accuracy-check", "ratio-sweep",
    "controller-check",
)  # fmt: skip
TABLE6, OVERLAP = "The paper's Table VI", "Overlap: engine at 1/3, uint8"
THIS, VALIDATE = "python -m benchmarks.papers.page", "ddlp plan --validate paper"
EPOCH = 1000  # batches of a simulated epoch
_SEEDS = "--strategy dataloader csd mte wrr --csd csd0 --seeds 20"  # the paper's means are of 20
_TRAIN = f"python templates/train_imagenet.py --data /imagenet --model wide_resnet101_2 --workers 0 --epochs 2 {_SEEDS}"
_CIFAR = f"python templates/train_cifar10.py --data data/cifar10 --model {{}} --workers {{}} --epochs 3 {_SEEDS}"
_ENERGY = f"python templates/measure_energy.py --data /imagenet --model wide_resnet101_2 --workers 0 --epochs 2 {_SEEDS}"
_DALI = "python templates/train_dali.py --data /imagenet --model {} --workers 16 --strategy dataloader cpu mte wrr --csd csd0"
_BESIDE = "python templates/train_imagenet.py --data /imagenet --model resnet152 --epochs 90 --evaluate-beside --record runs"


@dataclass(frozen=True)
class Headline:
    """A paper's claim, and ours. `ours` is empty if it was not run."""

    paper: str
    claim: str
    where: str
    ours: str
    how: str
    command: str


# -- what was kept ---------------------------------------------------------------------------------------------------


def kept(name: str) -> Kept:
    """Return one of docs/results. Raises OSError, ValueError or TypeError if it is missing or not of that form."""
    return Kept.read(RESULTS / f"{name}.json")


def benchmark(title: str, how: str) -> Kept:
    """Return a section of docs/benchmarks.md; its figures are {"text": what the bench printed}. Raises ValueError."""
    text = (DOCS / "benchmarks.md").read_text()
    found = re.search(rf"^## {re.escape(title)}\n\n`(.+?)`, (.+?), [\d.]+ minutes\n\n```\n(.*?)^```", text, re.M | re.S)
    if found is None:
        raise ValueError(f"docs/benchmarks.md has no section {title!r}; `ddlp bench --all` writes it")
    line = next((one for one in found[3].splitlines() if "python" in one), text.partition("Machine: ")[2].partition("\n")[0])
    anchor = re.sub(r"[^a-z0-9 ]", "", title.lower()).replace(" ", "-")
    return Kept(found[1], found[2], line.rpartition("; ")[0], how, f"benchmarks.md#{anchor}", {"text": found[3]})


def table6_seconds(bench: Kept) -> dict[tuple[str, int], float]:
    """Return our seconds a batch by (model and pipeline, extra processes). Raises ValueError if a cell is missing."""
    form = r"^(\w+ \w+) +(\d+)(?: +[\d.]+){4} +[+-][\d.]+% +([\d.]+) +[\d.]+ \("
    found = {(name, int(extra)): float(s) for name, extra, s in re.findall(form, bench.figures["text"], re.M)}
    if missing := [place for cell in clean_cells() if (place := _place(cell)) not in found]:
        raise ValueError(f"docs/benchmarks.md, {TABLE6}: no line of {missing[0]}")
    return found


def rates_of_overlap(bench: Kept) -> dict[str, float]:
    """Return samples/s by contender."""
    return {name: float(rate) for name, rate in re.findall(r"^(cpu|mte|wrr|ordered) +(\d+) \(", bench.figures["text"], re.M)}


def _place(cell: Cell) -> tuple[str, int]:
    return f"{cell.model} {cell.pipeline}", cell.processes


# -- what follows from it --------------------------------------------------------------------------------------------


def device_share(cell: Cell) -> float:
    """Return the part of an epoch's batches that the CSD makes under ddlp's wrr: what Table IX saves of the CPU's time.

    A simulated epoch at the paper's speeds of both sides. Batches of the CSD cost the host nothing, as with GPUDirect Storage.
    """
    rate = 1 / cell.device_s
    path = OffloadPath(
        "csd", transport="spool", alone_batches_per_s=rate, with_host_batches_per_s=rate, host_cpu_s_per_batch=0.0
    )
    measured = Measured(
        step_s=cell.train_s, loader_batches_per_s=1 / cell.host_s, host_cpu_s_per_batch=cell.host_s, paths=(path,)
    )
    return play_epoch(measured, (path,), batches=EPOCH).taken["csd"] / EPOCH


def less(value: float, baseline: float) -> str:
    """Return the per cent of the baseline that is saved, as text."""
    return f"{100 * (1 - value / baseline):.1f} %"


def modelled_joules(seconds: float, processes: int) -> float:
    """Return the joules of a batch under wrr by the paper's model."""
    return seconds * sum(PaperModel().watts("wrr", processes).values())


# -- the page --------------------------------------------------------------------------------------------------------


def headlines(cells: Sequence[Cell], ours: dict[tuple[str, int], float], bench: Kept) -> Iterator[Headline]:
    """Yield the claims of all papers, in their order."""
    wrn, vit = (next(c for c in cells if _place(c) == (f"{name} ImageNet1", 0)) for name in ("WRN", "ViT"))
    savings = [100 * (1 - ours[_place(cell)] / cell.cpu_s) for cell in cells]
    of_wrn = ours[_place(wrn)]
    energy = next(row for row in rows("table8") if row["model"] == "WRN")
    overlap = benchmark(OVERLAP, MEASURED)
    rate = rates_of_overlap(overlap)
    rules, scaling, beside, cache, what_pays, _, sweep, together = map(kept, NAMES)

    yield Headline(
        "DDLP", "up to 23.5 % less time on ImageNet", "Table VI, WRN, WRR_0 against CPU_0",
        f"{less(of_wrn, wrn.cpu_s)} in that cell; {min(savings):.1f} to {max(savings):.1f} % in all {len(cells)} clean cells",
        SCALED, bench.command,
    )  # fmt: skip
    yield Headline("DDLP", "the same, trained", "Table VI", "", NO_BOARD, _TRAIN)
    yield Headline(
        "DDLP", "up to 27.6 % less time on CIFAR-10", "Figure 8a, WRN18, WRR_0", "", NO_BOARD, _CIFAR.format("wrn-16-8", 0)
    )
    yield Headline(
        "DDLP", "19.7 % less energy", "Table VIII, WRN, WRR_0 against CPU_0",
        f"{less(modelled_joules(of_wrn, 0), float(energy['cpu0_j']))}: the paper's watts times our scaled time", MODELLED, THIS,
    )  # fmt: skip
    yield Headline("DDLP", "the same, metered", "Table VIII", "", NO_BOARD, _ENERGY)
    yield Headline(
        "DDLP", "37.6 % less CPU and DRAM time", "Table IX, ViT, WRR_0 against CPU_0",
        f"{100 * device_share(vit):.1f} %. Less than the paper's: our epoch is shorter, so the CSD makes fewer of its batches",
        MODELLED, THIS,
    )  # fmt: skip
    yield Headline(
        "DDLP", "what runs side by side", "Table II", "", NO_BOARD, "ddlp report runs/dataloader-seed0 runs/wrr-seed0"
    )
    yield Headline("DDLP", "faster with DALI", "Table VII", "", NO_BOARD, _DALI.format("wide_resnet101_2"))
    yield Headline(
        "DDLP", "preprocessing takes longer than training", "Figure 1", "", NO_GPU,
        "python templates/bottleneck_study.py --data /imagenet --amp bf16 --seeds 3",
    )  # fmt: skip
    ours_rule, fastflow, cachew = (rules.figures[name] for name in ("ddlp", "FastFlow, paper", "Cachew, paper"))
    yield Headline(
        "FastFlow", "1 to 4.34 times as fast as without offloading", "abstract",
        f"{rate['wrr'] / rate['cpu']:.2f} times as fast as ddlp's host alone, with one engine at a third of a core's speed",
        MEASURED, overlap.command,
    )  # fmt: skip
    yield Headline(
        "FastFlow", "its rule of what to offload", "its decisions",
        f"{ours_rule['slower_mean_percent']} % slower than the best choice in the mean, "
        f"{ours_rule['slower_at_worst_percent']} % at worst; FastFlow's rule {fastflow['slower_mean_percent']} and "
        f"{fastflow['slower_at_worst_percent']} %", rules.how, rules.command,
    )  # fmt: skip
    yield Headline("FastFlow", "its trainings on GPUs", "Figures 7b, 9, 10, 12", "", NO_GPU, "ddlp bench train")
    yield Headline(
        "FastFlow", "the share that it offloads, in the curve of all shares", "Figures 9, 10",
        ratio_sweep.summary(sweep.figures), sweep.how, sweep.command,
    )  # fmt: skip
    by_rule = scaling.figures
    yield Headline(
        "Cachew", "1.1 to 3.8 times cheaper than Kubernetes' scaling", "abstract",
        f"an 80 % CPU rule takes {by_rule['80 % CPU']['engine_time']} times ddlp's engine time, Cachew's rule "
        f"{by_rule['Cachew, paper']['engine_time']} times", scaling.how, scaling.command,
    )  # fmt: skip
    yield Headline(
        "Cachew", "finds the number of workers", "its scaling",
        f"exact in {by_rule['ddlp']['exact_percent']} % of the workloads; Cachew's rule in "
        f"{by_rule['Cachew, paper']['exact_percent']} %", scaling.how, scaling.command,
    )  # fmt: skip
    yield Headline(
        "Cachew", "its rule of what to offload", "its decisions",
        f"{ours_rule['slower_mean_percent']} % slower than the best choice in the mean; Cachew's rule "
        f"{cachew['slower_mean_percent']} %", rules.how, rules.command,
    )  # fmt: skip
    prefix = cache.figures["prefix"]
    yield Headline(
        "Cachew", "caching where it pays", "its caching",
        f"later epochs {prefix['images_per_s_later'] / prefix['images_per_s_without']:.1f} times as fast, the epoch that fills "
        f"the cache takes {prefix['filling_epoch']} times as long (resized and cropped images, the host alone)",
        cache.how, cache.command,
    )  # fmt: skip
    yield Headline(
        "Cachew", "what to cache as an operator grows: nothing, the source or its results", "Figure 8",
        f"{cache_sweep.verdict(what_pays.figures)[0]} ([more](#{what_pays.page.partition('#')[2]}))",
        what_pays.how, what_pays.command,
    )  # fmt: skip
    yield Headline(
        "Cachew", "cache and workers decided together, for one job and for several", "Figures 9, 11",
        f"{controller_check.summary(together.figures)} ([each](cache.md#cache-and-pool-together))",
        together.how, together.command,
    )  # fmt: skip
    both = beside.figures["both"]
    yield Headline(
        "i.data", "17 % less time by evaluating beside training", "its headline",
        f"{both['less_percent']} % less than one after the other where both sides limit, "
        f"{beside.figures['host']['less_percent']} % where the host does, {beside.figures['accelerator']['less_percent']} % "
        f"where the accelerator does; {both['less_than_without_pipeline_percent']} % less than without a pipeline",
        beside.how, beside.command,
    )  # fmt: skip
    yield Headline("i.data", "its trainings on GPUs", "Figures 1, 3", "", NO_GPU, _BESIDE)


def _headline_rows(found: Iterable[Headline]) -> Iterator[Sequence[str]]:
    for one in found:
        yield one.paper, one.claim, one.where, one.ours or "-", one.how, f"`{one.command}`"


def table6(cells: Sequence[Cell], ours: dict[tuple[str, int], float]) -> Iterator[Sequence[str]]:
    """Yield the lines of Table VI."""
    for cell in cells:
        own = ours[_place(cell)]
        printed = [f"{s:.3f}" for s in (cell.cpu_s, cell.wrr_s)]
        yield (
            *map(str, _place(cell)), *printed, less(cell.wrr_s, cell.cpu_s), f"{cell.prefetching_s:.3f}", f"{own:.3f}",
            less(own, cell.cpu_s), less(own, cell.prefetching_s),
        )  # fmt: skip


def table7(predicted: Sequence[Prediction]) -> Iterator[Sequence[str]]:
    """Yield the lines of Table VII."""
    for one in predicted:
        if one.part.startswith("Table VII"):
            yield (
                one.cell, f"{one.cpu_s:.3f}", f"{one.strategy.upper()}_D", f"{one.printed_s:.3f}",
                less(one.printed_s, one.cpu_s), f"{one.rules_s:.3f}", NO_BOARD,
            )  # fmt: skip


def table8(ours: dict[tuple[str, int], float]) -> Iterator[Sequence[str]]:
    """Yield the lines of Table VIII."""
    for row in rows("table8"):
        epochs = math.ceil(IMAGENET_IMAGES / BATCH_SIZES[row["model"]]) * 100
        for processes in (0, 16):
            cpu, wrr = (float(row[f"{column}{processes}_j"]) for column in ("cpu", "wrr"))
            own = modelled_joules(ours[f"{row['model']} {row['preprocess_type']}", processes], processes)
            yield (
                f"{row['model']} {row['preprocess_type']}", str(processes), f"{cpu:.4g}", f"{wrr:.4g}", less(wrr, cpu),
                f"{own:.4g}", less(own, cpu), row[f"wrr{processes}_usd"], f"{Tariff().cost(own * epochs):.4g}",
            )  # fmt: skip


def table9(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """Yield the lines of Table IX."""
    for row in rows("table9"):
        for processes in (0, 16):
            place = (f"{row['model']} {row['preprocess_type']}", processes)
            (cell,) = (one for one in cells if _place(one) == place)
            cpu, wrr = (float(row[f"{column}{processes}"]) for column in ("cpu", "wrr"))
            own = cpu * (1 - device_share(cell))
            yield *map(str, place), f"{cpu:.3f}", f"{wrr:.3f}", less(wrr, cpu), f"{own:.3f}", less(own, cpu)


def figure8() -> Iterator[Sequence[str]]:
    """Yield the lines of Figure 8."""
    for row in rows("figure8"):
        model, extra = {"WRN18": "wrn-16-8", "ViT": "vit_b_16"}[row["model"]], row["extra_processes"]
        yield (
            f"{row['panel']}, {row['model']} on a {row['accelerator']}", f"{row['strategy'].upper()}_{extra}",
            f"{row['faster_than_cpu_percent']} %", f"{row['faster_than_csd_percent']} %",
            NO_BOARD if row["accelerator"] == "GPU" else NO_DSA, f"`{_CIFAR.format(model, extra)}`",
        )  # fmt: skip


def page() -> str:
    """Return docs/paper.md. Raises ValueError or OSError if what was kept is missing or has another form."""
    cells = list(clean_cells())
    bench = benchmark(TABLE6, SCALED)
    ours = table6_seconds(bench)
    predicted = validate().predictions
    beaten = statistics.median(1 - ours[_place(cell)] / cell.wrr_s for cell in cells)
    scores, sweep, what_pays = (kept(name) for name in ("accuracy-check", "ratio-sweep", "cache-sweep"))
    left = [check.template for check in accuracy_check.CHECKS if check.template not in scores.figures]
    sources = [bench, benchmark(OVERLAP, MEASURED), *map(kept, NAMES)]
    return f"""# Beside the papers

Written by `{THIS}` from kept results: don't edit. ddlp follows four papers: DDLP (Wei, Zhang, Pedrycz,
Wang, Zhao, arXiv 2407.00005), FastFlow (Um et al., PVLDB 16(5), 2023), Cachew (Graur et al., USENIX ATC 2022) and
i.data. Here are their headlines, ours beside them, how ours was had, and the command.

{markdown_table(["how", "what that means"], HOW.items())}

No figure of ours on this page was had on a GPU or on a board. Each run that needs one is named with its command.

## Headlines

{markdown_table(["paper", "what it says", "where", "ours", "how", "command"], _headline_rows(headlines(cells, ours, bench)))}

## Table VI: seconds a batch

The paper's CPU and WRR as printed, with 0 and 16 extra processes; ours under `wrr`, {SCALED}, at the paper's speeds of CPU, CSD
and training. *Prefetching* is a loader without a CSD that prepares during training: max(preprocessing, training). It beats the
paper's WRR in many lines, so ours is held against it too. Ours takes {100 * beaten:.0f} % less time than the paper's WRR in the
median. Cells that are wrong in print are left out, as are those with two GPUs. Not run: MTE of ours in this table.
`{bench.command}`, {bench.date}.

{markdown_table(
    ["cell", "extra", "paper, CPU", "paper, WRR", "saved", "prefetching", "ours", "saved against CPU", "against prefetching"],
    table6(cells, ours),
)}

## Table VII: with DALI, seconds a batch

Predicted: by the event rules of the paper's algorithms, {MODELLED}. Ours: {NO_BOARD}. `{VALIDATE}`; trained:
`{_DALI.format("vit_b_16")}`.

{markdown_table(["cell", "DALI on the GPU", "strategy", "paper", "saved", "predicted", "ours"], table7(predicted))}

## Table VIII: joules a batch

Ours: {MODELLED}, the paper's watts (5 W a process, 0.25 W the CSD, for the whole time) times our scaled time. Such watts do not
depend on the load. USD: 100 epochs of ImageNet at {Tariff().price_per_kwh} a kWh. `{THIS}`; the times: `{bench.command}`.

{markdown_table(
    ["cell", "extra", "paper, CPU", "paper, WRR", "saved", "ours", "saved", "paper, WRR, USD", "ours, USD"], table8(ours)
)}

## Table IX: CPU and DRAM, seconds a batch

Ours: {MODELLED}. An epoch of {EPOCH:,} batches is simulated at the paper's speeds by ddlp's ledger and `wrr`, and the host
makes what the CSD does not. The paper saves more here, since its epochs last longer: the CSD has more time, and makes more of
the batches. `{THIS}`.

{markdown_table(["cell", "extra", "paper, CPU", "paper, WRR", "saved", "ours", "saved"], table9(cells))}

## Figure 8: CIFAR-10, time saved

{markdown_table(["panel", "strategy", "paper, against CPU", "paper, against CSD", "ours", "command"], figure8())}

## FastFlow's Figures 9 and 10: the share that is offloaded

FastFlow sweeps the part of the work that goes elsewhere, and shows its own choice in the curve. Ours, {SCALED}: batches/s by
the part of an epoch's batches that one engine makes, and in brackets the part of the time in which training waits. A fixed
share is kept to the batch. auto has had two epochs to measure and decide. The best share may lie between two of these: then
auto can be ahead of all. The paper's figures are of trainings on GPUs, ours of sleeps on a computer with other work: only the
curves' form can be compared.
`{sweep.command}`, {sweep.date}.

{ratio_sweep.table(sweep.figures)}

## Cachew's Figure 8: what to cache

An operator takes more and more time. What is fastest: no cache (*compute*), the source files near and the operator in each
epoch (*source*), or its results kept (*full*)? Cachew's own figures, as its authors have published them: milliseconds for a
batch of 900 images. Reading its cache takes about 445, whatever the operator takes.

{cache_sweep.cachew_table()}

Ours: images/s of the epochs behind the first, {what_pays.how}, medians; the operator sleeps. *Slow* storage gives 150 images a
second at most, *fast* storage any number, both over HTTP on this machine. *Source* is a copy of the files on the local disk,
since ddlp keeps no files for your code. The operator's results are several hundred times as large as a file, Cachew's two and a
half times: its cache lies on a cluster of servers, ddlp's on the local disk, here in memory, so that reading costs less.
`{what_pays.command}`, {what_pays.date}, on a computer with other work:
{cache_sweep.verdict(what_pays.figures)[0]}.

*Predicted*, of *compute*, *source* and *full*, follows from rates without the operator's time, measured beside each point; so
at 0 ms it says little. Orders agree if no two ways come out the other way round by more than 20 %. *Filling epoch*: the first
epoch of *full* against that of *compute*, with the start of the processes. *Auto keeps*: the share that `cache="auto"` keeps at
a `CachePoint`. *By times*: what ddlp's rule for decoded pixels says to these times. Both are right if they choose the faster
one of *compute* and *full*, or one within 20 % of it.

{cache_sweep.table(what_pays.figures)}

## The templates' scores

The papers speak of time; what is learnt must stay the same. Each training template's small form, three seeds: the mean score ±
its standard deviation with DataLoader, `cpu` (ddlp's host alone) and `wrr` (with an engine on the same machine, whose share is
in the last column). *Off* is how far the means of `cpu` and `wrr` are from DataLoader's, *noise* how far they may be: Welch's
t-test at the 1 % level, with at least the variance that a score of so few images has. Three seeds and 48 to 240 images find
large differences alone. Images/s are medians, on a computer with other work. train_detection's score is COCO's mAP, that of
the others top-1. `{scores.command}`, {scores.date}.{"".join(f" Not run yet: {name}." for name in left)}

{accuracy_check.table(scores.figures)}

## How well the paper's figures can be predicted

`{VALIDATE}`, {MODELLED}: from the columns of CPU and CSD alone, each cell of Tables VI and VII by the paper's own rules
([more](plan.md#held-against-the-paper)).

{markdown_table(["what must come out", "aim", "comes out"], ((aim.what, aim.aim, aim.rules) for aim in validate().aims))}

## Where the figures are from

{markdown_table(
    ["command", "how", "date", "machine", "told in"],
    ((f"`{one.command}`", one.how, one.date, one.machine, f"[{one.page.split('.')[0]}]({one.page})") for one in sources),
)}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page. Return 1 if it can't be made, or is not what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the page is another")
    options = parser.parse_args(arguments)
    try:
        text = page()
    except (OSError, ValueError, TypeError) as error:
        print(f"paper_page: {error}", file=sys.stderr)
        return 1
    if not options.check:
        PAGE.write_text(text)
        print(PAGE)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"paper_page: {PAGE} is not what the kept results give; run {THIS}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
