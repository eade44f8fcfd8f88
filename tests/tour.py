"""docs/tour.md as a user follows it: its files are written, its commands are run, and what they print is what it shows.

In a chapter, a Python block that begins with `# NAME.py` is a file, a `bash` block is typed, and a `text` block shows what the
commands before it print: its lines in their order, others may stand between them. … is anything, and so is a number's value.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import user_environment

ROOT = Path(__file__).resolve().parents[1]
DEVICE = "A device"  # the chapter that wants root and a board
_BLOCK = re.compile(r"^```(python|bash|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FREE = re.compile(r"\d[\d,.]*\d|\d|…| +")


@dataclass(frozen=True)
class Chapter:
    """A chapter's blocks, each its kind and its text."""

    title: str
    blocks: tuple[tuple[str, str], ...]


def chapters(text: str) -> list[Chapter]:
    """Those that have blocks."""
    parts = (part.partition("\n") for part in text.split("\n## ")[1:])
    found = [Chapter(title, tuple(_BLOCK.findall(body))) for title, _, body in parts]
    return [one for one in found if one.blocks]


def tour() -> list[Chapter]:
    return chapters((ROOT / "docs/tour.md").read_text())


def differing(shown: str, printed: str) -> str | None:
    """The first line of a `text` block that was not printed, None if all were."""
    lines = iter(printed.splitlines())
    for line in filter(str.strip, shown.splitlines()):
        parts, wanted, at = [], line.strip(), 0
        for free in _FREE.finditer(wanted):
            anything = {"…": ".*", " ": r"\s+"}.get(free[0][0], r"[\d,.]*\d")
            parts += [re.escape(wanted[at : free.start()]), anything]
            at = free.end()
        pattern = re.compile(rf"\s*{''.join(parts)}{re.escape(wanted[at:])}\s*")
        if not any(pattern.fullmatch(one) for one in lines):
            return line
    return None


class Day:
    """A user in a directory, who follows chapters. ``changes`` are of the environment."""

    def __init__(self, home: Path, **changes: str) -> None:
        self.home = home
        (home / "tmp").mkdir()
        own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TMPDIR": str(home / "tmp"), "COLUMNS": "100"}
        own |= {"DDLP_HOME": str(home / "book"), "OMP_NUM_THREADS": "1"}
        self._environment = {**user_environment(), **own, **changes}

    def follow(self, chapter: Chapter) -> str:
        """Write the chapter's files, type its commands, look at what it shows; return all that was printed."""
        all_printed = printed = ""
        for kind, text in chapter.blocks:
            if kind == "python":
                name = re.match(r"# (\w+\.py)\n", text)
                assert name, f"{chapter.title}: a Python block that is no file: {text[:60]}"
                (self.home / name[1]).write_text(text)
            elif kind == "bash":
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", text], cwd=self.home, env=self._environment, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900,
                )  # fmt: skip
                print(text, done.stdout, sep="\n")  # for pytest to show
                assert done.returncode == 0, f"{chapter.title}: status {done.returncode} of\n{text}\n{done.stdout}"
                printed = done.stdout
                all_printed += printed
            else:
                line = differing(text, printed)
                assert line is None, f"{chapter.title}: docs/tour.md shows\n{line}\nand this was printed:\n{printed}"
        return all_printed
