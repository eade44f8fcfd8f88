"""Other projects' own tests, as they are and with ddlp in the place of what they test.

    python -m scripts.peer_tests DIRECTORY            # the checkout, or the unpacked source distribution, of one of them
    python -m scripts.peer_tests DIRECTORY --only-ddlp -k state

PyTorch's tests of DataLoader run with `DDLPLoader`, torchdata's tests of StatefulDataLoader's states too, and Pillow's tests
with postponed images. DIRECTORY must be of the installed version. It stays as it is: copies of its tests run, in a temporary
directory. What the tests import besides must be installed: PyTorch's need expecttest and psutil, torchdata's parameterized too.

Prints how many tests have passed, failed and were skipped, and each one that failed or whose outcome differs.
"""

from __future__ import annotations

import argparse
import collections
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Suite:
    """The tests of another project.

    Attributes:
        name: what is tested.
        tests: pytest's argument, below DIRECTORY.
        file: the file whose first lines bring ddlp in.
        lines: those.
        whole: the tests need all of DIRECTORY, not only ``file``.
    """

    name: str
    tests: str
    file: str
    lines: str
    whole: bool = False


SUITES = (
    Suite(
        "torch's DataLoader", "test/test_dataloader.py", "test/test_dataloader.py",
        "import ddlp, torch.utils.data\ntorch.utils.data.DataLoader = ddlp.DDLPLoader\n",
    ),
    Suite(
        "torch's DataLoader, by torchdata", "test/stateful_dataloader/test_dataloader.py",
        "test/stateful_dataloader/test_dataloader.py",
        "import ddlp, torchdata.stateful_dataloader\ntorchdata.stateful_dataloader.StatefulDataLoader = ddlp.DDLPLoader\n",
    ),
    Suite(
        "torchdata's StatefulDataLoader", "test/stateful_dataloader/test_state_dict.py",
        "test/stateful_dataloader/test_state_dict.py",
        "import ddlp, torchdata.stateful_dataloader\ntorchdata.stateful_dataloader.StatefulDataLoader = ddlp.DDLPLoader\n",
    ),
    Suite(
        "Pillow", "Tests", "Tests/conftest.py",
        "import ddlp.decode\nif not ddlp.decode.install():\n    raise SystemExit(ddlp.decode.why_not())\n", True,
    ),
)  # fmt: skip


def main() -> int:
    """Run the tests both ways. Return 1 if a test's outcome differs, or one fails that ran with ddlp alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("-k", default="", metavar="WORDS", help="only tests whose names match, as pytest's -k")
    parser.add_argument("--only-ddlp", action="store_true", help="don't run the tests as they are")
    options = parser.parse_args()
    suites = [suite for suite in SUITES if (options.directory / suite.file).exists()]
    if not suites:
        places = ", ".join(suite.file for suite in SUITES)
        raise SystemExit(f"{options.directory} has none of {places}: give the checkout of PyTorch, torchdata or Pillow")
    try:
        return run_all(suites, options)
    except KeyboardInterrupt:
        print("broken off; nothing of it is left", file=sys.stderr)
        return 130


def run_all(suites: list[Suite], options: argparse.Namespace) -> int:
    """Run and report each. Return the exit status."""
    status = 0
    for suite in suites:
        ways = ("ddlp",) if options.only_ddlp else ("as they are", "ddlp")
        outcomes = {way: run(suite, options.directory, options.k, way == "ddlp") for way in ways}
        report(suite, outcomes)
        status |= bool(not_passed(outcomes)) if options.only_ddlp else len(set(map(str, outcomes.values()))) > 1
    return status


def run(suite: Suite, directory: Path, words: str, with_ddlp: bool) -> dict[str, str]:
    """Run the tests, each in its copy. Return the outcome of each by its name."""
    with tempfile.TemporaryDirectory(prefix="ddlp-peer-") as place:
        copy = Path(place) / "copy"
        if suite.whole:
            shutil.copytree(directory, copy, ignore=shutil.ignore_patterns(".git"))
        else:
            (copy / suite.file).parent.mkdir(parents=True)
            shutil.copy(directory / suite.file, copy / suite.file)
        if with_ddlp:
            text = (copy / suite.file).read_text()
            (copy / suite.file).write_text(put_in(text, suite.lines))
        report, output = copy / "report.xml", copy / "output.txt"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-k", words]
        with output.open("w") as file:
            subprocess.run(
                [*command, suite.tests], cwd=copy, stdout=file, stderr=file,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HOME": place},
            )  # fmt: skip
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
        outcomes: dict[str, str] = {}
        for case in cases:  # subtests have the name of their test
            name = f"{case.get('classname')}.{case.get('name')}"
            outcomes[name] = "failed" if outcomes.get(name) == "failed" else outcome(case)
        if set(outcomes.values()) <= {"failed"}:  # no test, or none could be imported
            raise SystemExit(f"the tests of {suite.name} did not run:\n{output.read_text()[-2000:]}")
    return outcomes


def put_in(text: str, lines: str) -> str:
    """Return a module's text with these lines before its own, but after its ``from __future__``."""
    before, future, after = text.rpartition("from __future__ import annotations\n")
    return f"{before}{future}{lines}{after}"


def outcome(case: ElementTree.Element) -> str:
    """Return passed, failed or skipped."""
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def not_passed(outcomes: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Return the tests that failed in a way, or have several outcomes: their outcome in each way."""
    names = sorted({name for way in outcomes.values() for name in way})
    rows = {name: [way.get(name, "missing") for way in outcomes.values()] for name in names}
    return {name: row for name, row in rows.items() if "failed" in row or len(set(row)) > 1}


def report(suite: Suite, outcomes: dict[str, dict[str, str]]) -> None:
    """Print the numbers of each way, and the tests to look at."""
    print(f"tests of {suite.name:30}" + "".join(f"{way:>14}" for way in outcomes))
    counts = [collections.Counter(way.values()) for way in outcomes.values()]
    for kind in ("passed", "failed", "skipped"):
        print(f"{kind:39}" + "".join(f"{count[kind]:14}" for count in counts))
    for name, row in not_passed(outcomes).items():
        print(f"  {name}: {', '.join(row)}")


if __name__ == "__main__":
    sys.exit(main())
