r"""Run benchmarks: without --all, print what there is. Each is also a command: `python -m benchmarks.host --help`.

--all runs them one after another, each in a process of its own, and writes docs/benchmarks.md. A bench may tell its parts by
``report_parts() -> [(title, arguments)]``; else it runs once, without arguments, and its title stands in `BENCHES`. Each part's
result is stored below data/bench when the part is done. So --resume continues a run that was interrupted, and --only runs some
benches again and keeps the figures of the others.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Terminated, command, machine_line, say, user_environment
from ddlp.process.machine import machine

PARTS = Path("data/bench/report")
DOCUMENT = Path("docs/benchmarks.md")
BENCHES = {
    "engine": "an engine's images/s on one core against a bare Pillow loop on the same computer",
    "overhead": "overhead of scheduling: what a batch costs, at a thousand batches and at a million, and what recording adds",
    "overlap": "host on one core, engine on another: how close both come to r_cpu + r_csd",
    "host": "images/s of one core against DataLoader, DALI, SPDL and torchvision; the same bits",
    "operators": "each operator's pixels, N draws over all kinds of JPEG, against torchvision's",
    "torchvision_rows": "each row of ddlp parity beside torchvision's own call, same numbers",
    "usercode": "data sets that run as user code: against DataLoader, with 0, 1 and 2 workers",
    "memory": "memory of all processes: during an epoch, against DataLoader",
    "startup": "time to the first batch: against DataLoader, also with 1.28 million files",
    "papers.scaled": "the paper's Table VI: its rows in scaled time, against their limit and its own WRR",
    "pools": "a pool of n engines: what they bring, against their bound and DataLoader with n + 1 workers",
    "transfer": "a device's batch into memory, through the spool and over the socket",
    "gpu": "batch files into a GPU's memory by each way, against copies from page-locked memory",
    "train": "epochs of real models on a GPU: DataLoader, cpu, mte, wrr, against their bound",
}


@dataclass(frozen=True)
class Part:
    """One section of the document. `text`: the bench's table, or why the bench failed."""

    title: str
    bench: str
    arguments: list[str]
    text: str
    aims: list[str]
    status: int
    seconds: float
    date: str

    @property
    def command(self) -> str:
        """The command that runs this part alone."""
        return f"python -m benchmarks.{self.bench} {shlex.join(self.arguments)}".rstrip()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--all", action="store_true", help=f"run all benchmarks and write {DOCUMENT}")
    parser.add_argument("--resume", action="store_true", help="with --all: keep what an earlier run has finished")
    parser.add_argument("--only", nargs="+", choices=sorted(BENCHES), metavar="B", help="with --all: run only these again")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="with --all: the file to write (%(default)s)")
    parser.add_argument("--parts", type=Path, default=PARTS, help="with --all: directory for the parts' results (%(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run the wanted parts and write the document. Return the exit status: 1 if a part failed."""
    if not options.all:
        print(*(f"{f'python -m benchmarks.{name}':38}{text}" for name, text in BENCHES.items()), sep="\n")
        return 0
    options.parts.mkdir(parents=True, exist_ok=True)
    wanted = planned(BENCHES)
    for number, (title, bench, arguments) in enumerate(wanted):
        kept = _kept(options.parts, title)
        skip = (
            bench not in options.only if options.only else options.resume and kept is not None and kept.arguments == arguments
        )
        say(f"[{number + 1}/{len(wanted)}] {title}{': kept' if skip else ''}")
        if not skip:
            part = _run_part(title, bench, arguments, options.parts)
            _path(options.parts, title).write_text(json.dumps(asdict(part), indent=1) + "\n")
        parts = [saved for title, _, _ in wanted if (saved := _kept(options.parts, title)) is not None]
        options.document.parent.mkdir(parents=True, exist_ok=True)
        options.document.write_text(document(parts))  # after each part: the run may be interrupted
    failed = [part.title for part in parts if part.status]
    print(f"{options.document}: {len(parts)} parts{', failed: ' + '; '.join(failed) if failed else ''}")
    return 1 if failed else 0


def planned(benches: Mapping[str, str]) -> list[tuple[str, str, list[str]]]:
    """Return (title, bench, arguments) of all parts."""
    plan = []
    for bench, text in benches.items():
        module: Any = importlib.import_module(f"benchmarks.{bench}")
        title = text.partition(":")[0]
        parts = module.report_parts() if hasattr(module, "report_parts") else [(title[:1].upper() + title[1:], [])]
        plan += [(title, bench, list(arguments)) for title, arguments in parts]
    return plan


def _run_part(title: str, bench: str, arguments: Sequence[str], parts: Path) -> Part:
    figures = _path(parts, title).with_suffix(".figures.json")
    figures.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.{bench}", *arguments, "--save", str(figures)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=user_environment()) as process:
        try:
            text = process.communicate()[0].rstrip()
        except KeyboardInterrupt as interrupt:  # the bench must clean up processes and files; Ctrl-C has reached it too
            if isinstance(interrupt, Terminated):
                process.terminate()
            process.wait()
            raise
    status = process.returncode
    if status and not text:
        text = f"failed with status {status}; run the command to see why"
    aims = [aim["text"] for aim in json.loads(figures.read_text())["aims"]] if figures.exists() else []
    return Part(title, bench, list(arguments), text, aims, status, time.monotonic() - began, machine()["date"])


def _path(parts: Path, title: str) -> Path:
    return parts / (re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") + ".json")


def _kept(parts: Path, title: str) -> Part | None:
    path = _path(parts, title)
    return Part(**json.loads(path.read_text())) if path.exists() else None


def document(parts: Sequence[Part]) -> str:
    """Return the document's text."""
    here = machine()
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks --all`: don't edit. Contenders take turns, round after round; figures are medians",
        "with least and most in brackets. A bound is a bare loop without loader, ledger or socket, or a raw read. Close other",
        "programs before you run it.",
        "",
        f"Machine: {machine_line(here)}; libjpeg-turbo {here['libjpeg']}.",
        "",
    ]
    aims = [aim for part in parts for aim in part.aims]
    if aims:
        missed = [aim for aim in aims if not aim.endswith("reached")]
        lines += [f"## Aims: {len(aims) - len(missed)} of {len(aims)} reached", ""]
        lines += ["Each bench prints its own with `--aims`. Missed:", "", *(f"- {aim}" for aim in missed), ""] if missed else []
    for part in parts:
        lines += [f"## {part.title}", "", f"`{part.command}`, {part.date}, {part.seconds / 60:.1f} minutes", ""]
        table = part.text.splitlines()
        if table and _but_its_date(table[0]) == _but_its_date(machine_line(here)):
            del table[0]  # the document's head has it
        lines += ["```", *table, "```", ""]
    return "\n".join(lines)


def _but_its_date(line: str) -> str:
    """Return a `machine_line` without its date: the computer and the versions."""
    return line.rpartition("; ")[0]


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
