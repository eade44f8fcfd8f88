"""What all benchmarks share: the command line, turns, medians and spread, fresh processes, facts of the machine, output."""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from csd_engine.errors import EngineError
from csd_engine.protocol.printable import printable_lines
from ddlp.errors import DDLPError
from ddlp.process.machine import machine
from ddlp.process.output_file import try_file
from ddlp.tryout.rounds import rotated

__all__ = [
    "Aim", "BenchFailed", "Say", "Terminated", "add_output", "alternate", "child", "command", "emit", "end_on_sigterm",
    "machine_line", "say", "spread", "two_cpus", "user_environment",
]  # fmt: skip

Say = Callable[[str], None]
_HOME = Path(__file__).resolve().parents[1]  # the directory that holds this ddlp


class BenchFailed(DDLPError):
    """A benchmark can't be run, or a contender failed. The message has the end of what it printed."""


class Terminated(KeyboardInterrupt):
    """This process got SIGTERM. Unlike Ctrl-C, the signal does not reach the processes that it has started."""


def end_on_sigterm() -> None:
    """From now on, raise `Terminated` in the main thread at SIGTERM, so that processes and files are cleaned up."""

    def handler(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal would interrupt the cleaning up
        raise Terminated

    signal.signal(signal.SIGTERM, handler)


@dataclass(frozen=True)
class Aim:
    """A figure that a bench should reach. `measured`: None if its contender did not take part."""

    what: str
    at_least: float
    measured: float | None

    @property
    def text(self) -> str:
        """The aim and what was measured, in one line."""
        if self.measured is None:
            return f"{self.what}: aim {self.at_least:g}, not measured here"
        reached = "reached" if self.measured >= self.at_least else "MISSED"
        return f"{self.what}: aim {self.at_least:g}, measured {self.measured:.5g}, {reached}"


def say(text: str) -> None:
    """Print progress, always on standard error: standard output has the result alone."""
    print(text, file=sys.stderr, flush=True)


def spread(values: Sequence[float], form: str = ".0f") -> str:
    """Return "median (least .. most)"."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} .. {max(values):{form}})"


def alternate(
    turns: Mapping[str, Callable[[], float]], rounds: int, tell: Say = say, unit: str = "images/s"
) -> dict[str, list[float]]:
    """Give each contender a turn in each round. Each round begins with another contender.

    Returns {name: [figure of each round]}.
    """
    names = list(turns)
    figures: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in rotated(names, number):
            figures[name].append(turns[name]())
            tell(f"  round {number + 1}/{rounds}  {name:42} {figures[name][-1]:10.1f} {unit}")
    return figures


def two_cpus() -> tuple[int, int]:
    """Return the first two CPUs that this process may use. Raises BenchFailed if there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise BenchFailed(f"this process may use CPU {usable[0]} alone: two are needed, one for each side.")
    return usable[0], usable[1]


def user_environment() -> dict[str, str]:
    """Return the environment for a child that uses this ddlp. Else it is the user's own, not that of an engine."""
    path = [str(_HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONWARNINGS": "ignore"}


def child(module: str, work: Mapping[str, Any], cpus: Sequence[int], timeout_s: float = 900.0) -> dict[str, Any]:
    """Call ``turn(work)`` of this module in a fresh process on these CPUs (`benchmarks.child`), and return what it returns.

    Raises:
        BenchFailed: the child failed; the message has the end of what it printed.
    """
    command = [sys.executable, "-m", "benchmarks.child", module]
    done = subprocess.run(
        command, input=json.dumps(work), capture_output=True, text=True, env=user_environment(), timeout=timeout_s,
        preexec_fn=functools.partial(os.sched_setaffinity, 0, set(cpus)),
    )  # fmt: skip
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise BenchFailed(f"{' '.join(command)} failed with status {done.returncode} at {dict(work)}:\n{last}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def on_all_cores(
    module: str, works: Sequence[Mapping[str, Any]], on_answer: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Call `child` for each work, one at a time on each core. Calls ``on_answer`` with each answer; returns all by core."""
    cores = sorted(os.sched_getaffinity(0))

    def one_core(number: int) -> list[dict[str, Any]]:
        answers = []
        for work in works[number :: len(cores)]:
            answers.append(child(module, work, [cores[number]], 3600.0))
            on_answer(answers[-1])
        return answers

    with ThreadPoolExecutor(len(cores)) as pool:
        return [answer for answers in pool.map(one_core, range(len(cores))) for answer in answers]


def machine_line(facts: Mapping[str, Any]) -> str:
    """Return the facts that `machine` has found in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    computer = f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB"
    return f"{computer}; {versions}; kernel: {facts['kernel']}; {facts['date']}"


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add --json, --save and --aims."""
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on standard output")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the figures to FILE as well, as JSON")
    parser.add_argument("--aims", action="store_true", help="print the aims of ddlp's developers below the table")


def command(bench: ModuleType, arguments: Sequence[str] | None = None) -> int:
    """Run a bench as `python -m` does, and return its exit status.

    Args:
        bench: it has `add_arguments(parser)` and `run(options) -> exit status`; its docstring is the command's description.
        arguments: of the command line; None: those of this process, which SIGTERM then ends in order.
    """
    assert bench.__spec__ is not None
    parser = argparse.ArgumentParser(
        prog=f"python -m {bench.__spec__.name.removesuffix('.__main__')}", description=bench.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    bench.add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        if getattr(options, "save", None) is not None:
            try_file(options.save, "--save")
        if arguments is None:
            end_on_sigterm()
        return int(bench.run(options))
    except (DDLPError, EngineError) as error:
        print(f"{parser.prog}: {printable_lines(str(error))}", file=sys.stderr)  # it may quote a device, or a file
        return 1
    except KeyboardInterrupt as interrupt:
        if arguments is not None:  # a script called this function: it should end by Ctrl-C, too
            raise
        print(f"{parser.prog}: stopped", file=sys.stderr)
        return 143 if isinstance(interrupt, Terminated) else 130


def emit(options: argparse.Namespace, result: Any, table: str, aims: Sequence[Aim] = ()) -> None:
    """Print the table, or JSON; save the JSON if --save asks for it. `result`: a dataclass. --aims prints the aims too.

    The JSON has the result's fields, `machine` and `aims`.

    Raises:
        BenchFailed: the figures can't be saved. They were printed before.
    """
    figures = {**asdict(result), "machine": machine(), "aims": [{**asdict(aim), "text": aim.text} for aim in aims]}
    if options.json:
        print(json.dumps(figures), flush=True)
    else:
        asked = [f"- {aim.text}" for aim in aims] if options.aims else []
        text = "\n".join([machine_line(figures["machine"]), table, *asked])
        print(text, flush=True)
    if options.save is not None:
        try:
            options.save.parent.mkdir(parents=True, exist_ok=True)
            options.save.write_text(json.dumps(figures, indent=1) + "\n")
        except OSError as error:
            raise BenchFailed(f"--save {options.save} can't be written: {error.strerror}. The figures are above.") from None
