r"""What runs take in energy: see this computer's meters, measure a command, compare what was measured.

    ddlp energy meters                                        # which there are, what they say, why others are missing
    ddlp energy run --out wrr.json -- python train.py         # measure a command; its exit status is passed on
    ddlp energy run --external 'machine=command:curl -s http://plug/watts' -- python train.py
    ddlp energy compare cpu.json wrr.json                     # joules side by side, and their ratios

A comparison calls a run as its file, cpu and wrr here, unless `run --label` says otherwise. Runs of one label, seeds say, are
one line: their mean.

What no meter measures is filled in by the paper's model, 5 W a process and 0.25 W a CSD, and is called modelled wherever it
is shown. Within a training script, ddlp.observe.energy.EnergyMeter measures single epochs; templates/measure_energy.py does
that for each strategy. docs/energy.md: which meters, permissions, how to read the figures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from ddlp.deploy.options import add_json
from ddlp.errors import DDLPError
from ddlp.observe.energy.compare import comparison, summaries
from ddlp.observe.energy.meter import EnergyMeter
from ddlp.observe.energy.model import PaperModel, Tariff
from ddlp.observe.energy.result import EnergyResult, load, save
from ddlp.process.output_file import try_file

__all__ = ["add_arguments", "add_meter_arguments", "meter_of", "run"]


def add_meter_arguments(parser: argparse.ArgumentParser) -> None:
    """Which meters, the model's watts, price and emissions: what `meter_of` takes; all but --csd."""
    model, tariff = PaperModel(), Tariff()
    group = parser.add_argument_group("meters")
    group.add_argument(
        "--external", action="append", default=[], metavar="[PART=]file:PATH|[PART=]command:TEXT",
        help="a meter of yours, e.g. a power socket's: a file, or a command's output, whose last line is a number and a unit "
        "(W, J, Wh ...). PART: machine (default), cpu, dram, gpu, csd or a name. May be repeated",
    )  # fmt: skip
    group.add_argument(
        "--csd-sensor", action="append", default=[], metavar="NAME",
        help="which of the device's sensors count; default: those that together are all of it",
    )  # fmt: skip
    group.add_argument("--sys", default="/sys", metavar="DIR", help="where /sys is; in a container: where the host's is")
    group = parser.add_argument_group("the model, where there is no meter")
    group.add_argument("--no-model", action="store_true", help="leave out what is not measured")
    add = group.add_argument
    add("--watts-per-process", type=float, default=model.watts_per_process, metavar="W", help="(%(default)s, the paper's)")
    add("--watts-csd", type=float, default=model.watts_csd, metavar="W", help="(%(default)s, the paper's)")
    add = parser.add_argument_group("price and emissions").add_argument
    add("--price", type=float, default=tariff.price_per_kwh, help="of a kWh (%(default)s, the paper's)")
    add("--currency", default=tariff.currency, help="(%(default)s)")
    add("--co2", type=float, default=tariff.co2_g_per_kwh, metavar="G", help="grams a kWh (%(default)s, the world's in 2023)")


def meter_of(options: argparse.Namespace) -> EnergyMeter:
    """The meter as asked for. Raises DDLPError as `EnergyMeter.auto`."""
    return EnergyMeter.auto(
        options.csd, options.external, csd_sensors=options.csd_sensor,
        model=None if options.no_model else PaperModel(options.watts_per_process, options.watts_csd),
        tariff=Tariff(options.price, options.currency, options.co2), sys=options.sys,
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)

    meters = action("meters", "which meters there are here, what they say, and why others are missing")
    meters.add_argument("--seconds", type=float, default=1.0, metavar="S", help="measure for so long (%(default)s)")
    measure = action("run", "measure what a command takes: ddlp energy run [OPTIONS] -- COMMAND ...")
    for subparser in (meters, measure):
        subparser.add_argument(
            "--csd", action="append", default=[], metavar="NAME", help="a device, to ask its sensors; repeatable",
        )  # fmt: skip
        add_meter_arguments(subparser)
        add_json(subparser, "the result")
    measure.add_argument("--out", type=Path, metavar="FILE", help="write the result there, for compare")
    measure.add_argument(
        "--label", default="",
        help="what comparisons call it; default: the name of --out's file, without one the command's first words",
    )  # fmt: skip
    measure.add_argument("--batches", type=int, metavar="N", help="that the command trains on, for joules a batch")
    measure.add_argument("--samples", type=int, metavar="N", help="the same in samples")
    measure.add_argument(
        "--workers", type=int, default=0, metavar="N", help="its worker processes, for the model (%(default)s)",
    )  # fmt: skip
    measure.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    compare = action("compare", "what was measured side by side: means of each label, and ratios")
    compare.add_argument("files", nargs="+", type=Path, metavar="FILE")
    compare.add_argument("--baseline", metavar="LABEL", help="what the ratios are to; default: the first one")
    add_json(compare, "the means")


def run(options: argparse.Namespace) -> int:
    """Do what was asked for."""
    actions = {"meters": _meters, "run": _run, "compare": _compare}
    return actions[options.action](options)


def _meters(options: argparse.Namespace) -> int:
    with (meter := meter_of(options)):
        time.sleep(options.seconds)
    result = meter.result(label="this computer now")
    print(json.dumps(result.to_data()) if options.json else result)
    return 0


def _run(options: argparse.Namespace) -> int:
    command = options.command_line[1:] if options.command_line[:1] == ["--"] else options.command_line
    if not command:
        raise DDLPError("energy run: no command. Write it after --, e.g. ddlp energy run -- python train.py")
    if options.out is not None:
        try_file(options.out, "--out")
    meter = meter_of(options)
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    with meter:
        status, cpu_s = _child(command)
    result = meter.result(
        workers=options.workers, batches=options.batches, samples=options.samples, host_cpu_s=cpu_s,
        label=options.label or (" ".join(map(os.path.basename, command[:2])) if options.out is None else options.out.stem),
    )  # fmt: skip
    if options.json:
        print(json.dumps(result.to_data()), flush=True)
    else:
        print(result, file=sys.stderr)  # standard output is the command's
    if options.out is not None:
        try:
            save(options.out, [result], {"command": shlex.join(command), "started": started, "status": status})
        except OSError as error:  # what was measured is said above, and the command's exit status counts
            print(f"ddlp energy run: {options.out} can't be written: {error.strerror}. The figures are above.", file=sys.stderr)
    return status


def _child(command: list[str]) -> tuple[int, float]:
    """Run it to its end; its exit status as a shell tells it, and the processor seconds of it and all that it waited for."""
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        raise DDLPError(f"{command[0]!r} can't be run: {error.strerror}") from None

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(process.pid, number)  # not by send_signal, which takes the exit status where there is one already

    # Ctrl-C reaches both: the command decides what it does about it, and is measured to its end.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, pass_on)
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # so that its number is not another's while signals go there
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return (process.returncode if process.returncode >= 0 else 128 - process.returncode), used.ru_utime + used.ru_stime


def _compare(options: argparse.Namespace) -> int:
    results: list[EnergyResult] = []
    files: dict[str, list[str]] = {}  # by label
    for file in options.files:
        those = load(file)
        results += those
        for label in dict.fromkeys(result.label for result in those):
            files.setdefault(label, []).append(str(file))
    if options.json:
        groups = summaries(results, options.baseline)
        print(json.dumps([{**asdict(group), "files": files[group.label]} for group in groups]))
        return 0
    print(comparison(results, options.baseline))
    for label, named in files.items():
        if len(named) > 1:  # seeds that were labelled alike on purpose, or files of the same name from different directories
            print(f"{label} is the mean of what {len(named)} files call so: {', '.join(named)}")
    return 0
