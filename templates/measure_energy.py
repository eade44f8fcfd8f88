r"""Measure what training takes in energy, with DataLoader and under ddlp's strategies: joules a batch by part, cost, CO2.

    python templates/measure_energy.py --small                                   # seconds, on any machine
    python templates/measure_energy.py --data /imagenet --model resnet152 --workers 16 --amp bf16 \
        --strategy dataloader cpu wrr --csd csd0 --epochs 2 --seeds 3 --price 0.31 --currency EUR --co2 350
    python templates/measure_energy.py --data /imagenet --external 'machine=command:curl -s http://plug/watts'

--data is a directory with train/CLASS/*.jpg and val/CLASS/*.jpg. Meters are found by themselves (`ddlp energy meters` shows
them): RAPL, NVIDIA's counters, the device's own sensors, and yours with --external. What none of them measures is filled in by
the paper's model (5 W a process, 0.25 W a CSD) and is called modelled in every line. `ddlp energy compare FILE` prints the
report's energy file again.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from common import Run, flags, parse, turns, write_pages, write_report
from csd_engine.errors import EngineError
from ddlp import DDLPError, DDLPLoader
from ddlp.observe import MeasuredDataLoader
from ddlp.observe.energy import EnergyMeter, EnergyResult, comparison, save, summaries
from ddlp.observe.energy.command import add_meter_arguments, meter_of
from train_imagenet import BATCH_SIZES, MODELS, add_flags, make_task
from training import Task, train


def measure(task: Task, options: Any, meter: EnergyMeter, strategy: str, seed: int) -> tuple[Run, list[EnergyResult]]:
    """Train under one strategy with the meter around each epoch; the results are of the epochs that count."""
    results: list[EnergyResult] = []

    @contextlib.contextmanager
    def around(loader: DDLPLoader | MeasuredDataLoader) -> Iterator[None]:
        with meter:
            yield
        results.append(meter.result(loader.report(), workers=options.workers, label=strategy))

    run, _ = train(task, options, strategy, seed, around=around)
    steady = {epoch.number for epoch in run.steady}
    results = [result for result in results if result.epoch in steady and result.batches]
    if results:
        run.energy = asdict(summaries(results)[0])
    return run, results


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each strategy under each seed, print the comparison, write the report."""
    parser = flags(__doc__, list(MODELS), strategies=("dataloader", "cpu", "csd", "mte", "wrr"))
    parser.set_defaults(epochs=2)  # the first one warms up
    add_flags(parser)
    add_meter_arguments(parser)
    options = parse(parser, BATCH_SIZES, arguments)
    task = make_task("measure_energy", options)
    try:
        meter = meter_of(options)
    except DDLPError as error:  # a device or a meter can't be reached
        raise SystemExit(f"measure_energy: {error}") from None
    runs: list[Run] = []
    results: list[EnergyResult] = []
    status = 130  # Ctrl-C's, unless all runs end by themselves
    try:
        for strategy, seed in turns(options):
            run, measured = measure(task, options, meter, strategy, seed)
            runs.append(run)
            results += measured
            if not run.complete:
                break
        else:
            status = 0
    except KeyboardInterrupt:
        pass
    except (DDLPError, EngineError) as error:  # a device is gone, for example: what was measured before counts
        print(f"measure_energy: {error}", file=sys.stderr)
        status = 1
    if not results:
        print("measure_energy: stopped before an epoch was measured", file=sys.stderr)
        return status or 130
    print(f"\n{task.model_name}, {task.pipeline}, on {options.device}, batches of {options.batch_size}; a run is an epoch\n")
    print(comparison(results))
    notes = {text: None for result in results for text in (*result.notes, *(f"no meter: {why}" for why in result.absent))}
    print("\n".join(f"- {text}" for text in notes))
    report = write_report("measure_energy", options, runs)
    record = report.with_suffix(".energy.json")
    save(record, results, {"template": "measure_energy", "report": report.name})
    print(f"report: {report}\nenergy: {record}")
    write_pages(options, ((run.strategy, run.seed) for run in runs), record)
    return status


if __name__ == "__main__":
    sys.exit(main())
