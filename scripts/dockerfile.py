"""Reads a Dockerfile: its stages and their instructions, as far as ours use them. What is not known is an error."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Copy", "DockerfileError", "Run", "Stage", "parse"]


class DockerfileError(ValueError):
    """A line that is no Dockerfile's, or that this reader does not know."""


@dataclass(frozen=True)
class Run:
    """``RUN``: a command for /bin/sh, as the user, in the directory and with the variables that hold at its line."""

    command: str
    user: str
    directory: str
    environment: dict[str, str]


@dataclass(frozen=True)
class Copy:
    """``COPY``: from the stage of that name, or from the context; ``directory`` is what a relative target lies in."""

    stage: str
    sources: tuple[str, ...]
    target: str
    directory: str


@dataclass
class Stage:
    """A ``FROM`` and what follows. The fields after ``steps`` have the values that hold at the stage's end."""

    base: str
    name: str = ""
    steps: list[Run | Copy] = field(default_factory=list)
    user: str = "0:0"
    directory: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    stop_signal: str = "SIGTERM"


def parse(text: str) -> list[Stage]:
    """Return the stages of a Dockerfile.

    Raises:
        DockerfileError: an instruction, or a form of one, that is not known here.
    """
    stages: list[Stage] = []
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n", " ", lines).splitlines():
        if not line.strip():
            continue
        what, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if what != "FROM" and not stages:
            raise DockerfileError(f"{line!r} stands before the first FROM")
        if what == "FROM":
            words = rest.split()
            if len(words) not in (1, 3) or len(words) == 3 and words[1] != "AS":
                raise DockerfileError(f"{line!r}: only FROM IMAGE [AS NAME] is known")
            stages.append(Stage(words[0], words[-1] if len(words) == 3 else ""))
        else:
            _add(stages[-1], what, rest, line)
    if not stages:
        raise DockerfileError("there is no FROM")
    return stages


def _add(stage: Stage, what: str, rest: str, line: str) -> None:
    if what == "RUN":
        stage.steps.append(Run(rest, stage.user, stage.directory, dict(stage.environment)))
    elif what == "COPY":
        words = shlex.split(rest)
        options = [word for word in words if word.startswith("--")]
        origin = re.fullmatch(r"(?:--from=(\S+))?", " ".join(options))
        paths = [word for word in words if word not in options]
        if origin is None or len(paths) < 2:
            raise DockerfileError(f"{line!r}: only COPY [--from=STAGE] SOURCE... TARGET is known")
        stage.steps.append(Copy(origin[1] or "", tuple(paths[:-1]), paths[-1], stage.directory))
    elif what == "WORKDIR" and rest.startswith("/"):
        stage.directory = rest
    elif what == "USER":
        stage.user = rest
    elif what == "ENV":
        words = shlex.split(rest)
        if not all("=" in word for word in words):
            raise DockerfileError(f"{line!r}: only ENV NAME=VALUE... is known")
        for word in words:
            name, _, stage.environment[name] = word.partition("=")
    elif what == "STOPSIGNAL":
        stage.stop_signal = rest
    elif what == "ENTRYPOINT":
        stage.entrypoint = _words(rest, line)
    elif what == "CMD":
        stage.command = _words(rest, line)
    else:
        raise DockerfileError(f"{line!r}: {what} is not known")


def _words(text: str, line: str) -> tuple[str, ...]:
    try:
        words: Any = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        # Docker would run it by a shell, which keeps the signals for itself.
        raise DockerfileError(f'{line!r}: write it as ["program", "argument"]')
    return tuple(words)
