"""Golden file: do two commits load the same samples, bit for bit? `tests/golden_rows.py` has the ways of loading.

    python -m tests.golden BASE        # this working tree beside the commit BASE; a minute or two
    python -m tests.golden             # this working tree beside tests/golden.json
    python -m tests.golden --write     # renew tests/golden.json, after samples have changed on purpose

It says which rows differ; the exit status is then 1. Some samples depend on the versions of torch and torchvision and on the
processor, so tests/golden.json says of which it is. Elsewhere there is nothing to compare with it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # started as tests/golden.py
    sys.path[0] = str(ROOT)

import numpy  # noqa: E402
import PIL  # noqa: E402
import torch  # noqa: E402
import torchvision  # noqa: E402

from tests.golden_rows import Row, names  # noqa: E402

__all__ = ["STORED", "Failed", "differences", "differences_from_stored", "load", "versions"]

STORED = ROOT / "tests" / "golden.json"
PACKAGES = ("ddlp", "csd_engine")
_END_S = 20


class Failed(Exception):
    """A commit or the programs could not be run; the message says why."""


def versions() -> dict[str, str]:
    """What samples may depend on beside ddlp."""
    return {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": numpy.__version__,
        "Pillow": PIL.__version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


# -- one or two trees at work ------------------------------------------------------------------------------------------


@dataclass
class _Tree:
    """A tree's ddlp, and the process that loads with it."""

    name: str
    home: Path  # for its temporary files
    process: subprocess.Popen[bytes]

    @property
    def lines(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.home / "rows").read_text().splitlines()
        return []

    def rows(self) -> dict[str, Row]:
        """Return the rows by name. Raises Failed if the process did not end well."""
        if self.process.returncode:
            end = (self.home / "log").read_text(errors="replace")[-3000:]
            raise Failed(f"{self.name}: loading ended with status {self.process.returncode}. The end of what it said:\n{end}")
        return {row.name: row for row in (Row(**json.loads(line)) for line in self.lines)}

    def end(self) -> None:
        """End the process, which ends those that it has started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _environment(tree: Path, home: Path) -> dict[str, str]:
    """Return an environment with the tree's packages, this tree's tests, and no settings or files of the user's for ddlp."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("DDLP_")}
    path = os.pathsep.join(dict.fromkeys([str(tree), str(ROOT)]))
    home_names = ("TMPDIR", "XDG_CACHE_HOME", "DDLP_HOME")
    return {**ours, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **dict.fromkeys(home_names, str(home))}


def _check(name: str, tree: Path, home: Path) -> str:
    """Return the tree's kernel. Raises Failed if Python would import another tree's packages."""
    code = (
        "import json, ddlp, csd_engine; from csd_engine.kernels.report import report; found = report(); "
        "print(json.dumps([ddlp.__file__, csd_engine.__file__, found.variant, found.why_not]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=home, env=_environment(tree, home), capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{name}: ddlp can't be imported:\n{done.stderr}")
    *files, variant, why_not = json.loads(done.stdout)
    for package, file in zip(PACKAGES, files, strict=True):
        if Path(file).resolve() != tree / package / "__init__.py":
            raise Failed(f"{name}: Python imports {package} from {file}, and not from {tree}. Uninstall that one")
    if not variant:
        raise Failed(f"{name} has no kernel, and most samples are its: {why_not}")
    return str(variant)


def _start(name: str, tree: Path, home: Path, parts: Sequence[str]) -> _Tree:
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.golden_rows", str(home / "rows"), *parts], cwd=home, env=_environment(tree, home),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    return _Tree(name, home, process)


def load(trees: Mapping[str, Path], parts: Sequence[str] = ()) -> list[dict[str, Row]]:
    """Load with each tree's ddlp, at the same time. Shows how far they are.

    ``parts``: the names of pipelines and user code whose rows these are; none: all rows.

    Raises:
        Failed: one of them can't be run.
    """
    total = len(names(*parts))
    with contextlib.ExitStack() as stack:
        running = []
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddlp-golden-"))).resolve()
        for number, (name, tree) in enumerate(trees.items()):
            home = work / str(number)
            home.mkdir()
            print(f"{name}: {tree}, kernel {_check(name, tree, home)}", flush=True)
            running.append(_start(name, tree, home, parts))
            stack.callback(running[-1].end)
        shown = ""
        while any(tree.process.poll() is None for tree in running):
            time.sleep(0.2)
            counts = [len(tree.lines) for tree in running]
            if not sys.stdout.isatty():
                counts = [count - count % 20 for count in counts]
            text = ", ".join(f"{tree.name}: {count} of {total} rows" for tree, count in zip(running, counts, strict=True))
            if text != shown:
                print(text, end="\r" if sys.stdout.isatty() else "\n", flush=True)
                shown = text
            if any(tree.process.poll() for tree in running):
                break
        print()
        return [tree.rows() for tree in running]


@contextlib.contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    """Unpack a commit's packages into a temporary directory, with the kernel built."""
    git = ["git", "-C", str(ROOT)]
    archive = subprocess.run([*git, "archive", "--format=tar", commit, *PACKAGES], capture_output=True)
    if archive.returncode:
        raise Failed(f"git has no {commit!r} here: {archive.stderr.decode(errors='replace').strip()}")
    with tempfile.TemporaryDirectory(prefix="ddlp-golden-") as root:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
            packed.extractall(root, filter="data")
        built = subprocess.run([sys.executable, "-m", "csd_engine.kernels.build"], cwd=root, capture_output=True, text=True)
        if built.returncode:
            raise Failed(f"the kernel of {commit} was not built: {built.stderr.strip()}")
        yield Path(root).resolve()


# -- what differs ------------------------------------------------------------------------------------------------------


def differences(before: Mapping[str, Row], now: Mapping[str, Row]) -> list[str]:
    """Say of each row that is not the same what differs."""
    found = []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old is None or new is None:
            found.append(f"{name}: there is none {'now' if new is None else 'in the other one'}")
        elif old.error or new.error:
            if old.error != new.error:
                found.append(f"{name}: {old.error or 'no error'}; now {new.error or 'no error'}")
        elif old.digest() != new.digest():
            pairs = list(zip(old.samples, new.samples, strict=True))
            places = [place for place, (a, b) in enumerate(pairs) if a != b]
            if places:
                which = ", ".join([*map(str, places[:8]), *["..."] * (len(places) > 8)])
                found.append(f"{name}: {len(places)} of {len(pairs)} samples differ, at places {which}")
            else:
                found.append(f"{name}: batches come in the order {new.order}, and came in {old.order}")
    return found


def differences_from_stored(now: Mapping[str, Row], parts: Sequence[str] = ()) -> list[str]:
    """Do the same beside tests/golden.json, which has one digest for each row. ``parts``: see `load`."""
    stored: dict[str, str] = json.loads(STORED.read_text())["rows"]
    found = [f"{row.name}: {row.error}" for row in now.values() if row.error]
    digests = {name: row.digest() for name, row in now.items() if not row.error}
    wanted = names(*parts) if parts else stored
    missing = [f"{name}: there is none now" for name in wanted if name not in now]
    return found + missing + [f"{name}: differs" for name in digests if digests[name] != stored.get(name)]


def other_versions() -> str:
    """Say in which versions tests/golden.json is another machine's; "" if in none."""
    stored: dict[str, Any] = json.loads(STORED.read_text())["versions"]
    here = versions()
    return ", ".join(f"{name} {stored.get(name)} there, {here[name]} here" for name in here if stored.get(name) != here[name])


def _write(rows: Mapping[str, Row]) -> None:
    if failed := [f"{row.name}: {row.error}" for row in rows.values() if row.error]:
        raise Failed("\n".join(["nothing was written, as rows have errors:", *failed]))
    digests = {name: row.digest() for name, row in rows.items()}
    STORED.write_text(json.dumps({"versions": versions(), "rows": digests}, indent=1) + "\n")
    print(f"{STORED.relative_to(ROOT)} is written, {len(digests)} rows")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Compare all samples with another commit's.")
    parser.add_argument("base", nargs="?", help="the commit; without, tests/golden.json")
    parser.add_argument("--write", action="store_true", help="renew tests/golden.json")
    options = parser.parse_args(arguments)
    if options.base and options.write:
        parser.error("--write is about this working tree: name no commit")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.base:
            with _checked_out(options.base) as base:
                before, now = load({options.base: base, "this tree": ROOT})
            found = differences(before, now)
        else:
            if not options.write and (others := other_versions()):
                raise Failed(f"tests/golden.json has other versions: {others}. Name a commit to compare with")
            (now,) = load({"this tree": ROOT})
            if options.write:
                _write(now)
                return 0
            found = differences_from_stored(now)
    except Failed as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    by_devices = sum(row.by_devices for row in now.values())
    print(*found, f"{len(found)} of {len(now)} rows differ. Devices made {by_devices} batches of this tree's.", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
