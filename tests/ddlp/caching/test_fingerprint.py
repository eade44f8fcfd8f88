"""A digest of steps: the same in another process, another one after any change."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from ddlp.caching.fingerprint import NoFingerprint, fingerprint

CODE = """
import functools, sys
import numpy as np
import other
{more}
SIZE = {size}
NAMES = frozenset(("a", "b", "c", "d", "e"))

def inner(image):
    return image + {inner}

@functools.cache
def table(n):
    return np.arange(n) * {table}

class Base:
    def __init__(self, by): self.by, self.held = by, {{"x": np.zeros(3), "y": {{1, 2, "z"}}}}
    @property
    def twice(self): return self.by * {twice}

class Step(Base):
    def __call__(self, image):
        if image in NAMES: return [other.level(one) for one in image]
        return inner(image) {operation} SIZE + self.twice + table(3)

def steps():
    step = Step({by})
    return [step, lambda image: step(image) + 1, functools.partial(inner, image=3)]

if __name__ == "__main__":
    from ddlp.caching.fingerprint import fingerprint
    print(fingerprint(steps(), ""))
"""
OTHER = "LEVEL = {level}\ndef level(one): return one + LEVEL\ndef not_used(): return {level}\n"
PLAIN: dict[str, Any] = {"more": "", "size": 3, "inner": 1, "table": 2, "twice": 2, "by": 5, "operation": "+"}


@pytest.fixture
def of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.syspath_prepend(tmp_path)

    def digest(level: int = 7, **changes: Any) -> str:
        (tmp_path / "own_steps_here.py").write_text(CODE.format(**{**PLAIN, **changes}))
        (tmp_path / "other.py").write_text(OTHER.format(level=level))
        for name in ("own_steps_here", "other"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        importlib.invalidate_caches()
        return fingerprint(importlib.import_module("own_steps_here").steps(), "")

    return digest


def test_another_process(tmp_path: Path, of_file: Callable[..., str]) -> None:
    here = of_file(more="import json\n\n# a comment")
    command = [sys.executable, str(tmp_path / "own_steps_here.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "3"})
    assert done.stdout.strip() == here


def test_changed_code(of_file: Callable[..., str]) -> None:
    first = of_file()
    assert first == of_file(more="import json\n\n# a comment")
    changed = [of_file(**{name: 99}) for name in ("size", "inner", "table", "twice", "by", "level")]
    assert len({first, *changed, of_file(operation="-")}) == 8


class Step:
    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __call__(self, image: Any) -> Any:
        return image


class Slots(Step):
    __slots__ = ("more",)


def closed(value: Any) -> Any:
    return lambda image: image + value


def test_each_parameter_counts() -> None:
    steps: list[Any] = [
        v1.Resize(3), v2.Resize(3), v2.Resize(4), v2.Resize(3, v2.InterpolationMode.NEAREST), v1.Lambda(closed(1)),
        v1.Lambda(closed(2)), v2.Normalize((0.5,), (0.1,)), v2.Normalize((0.5,), (0.2,)), torch.nn.Linear(2, 2),
        torch.nn.Linear(2, 2), Step(), Step(1), Step(1.0), Step("1"), Step(b"1"), Step(True), Step([1]), Step((1,)), Step({1}),
        Step({1: 2}), Step({2: 1}), Step(np.zeros(3)), Step(np.zeros(3, np.float32)), Step(np.zeros((3, 1))),
        Step(torch.zeros(3)), Step(torch.float16), Step(closed), Step(closed(1)), Step(Step), Step(Step()), Slots(),
        Step(functools.partial(closed, 1)), Step(functools.partial(closed, 2)), Step(np), Step(len), Step("ab".upper),
        Step("ac".upper), Step(Path("a")), Step(np.add), Step(np.multiply),
    ]  # fmt: skip
    digests = [fingerprint([step], "") for step in steps]
    assert digests == [fingerprint([step], "") for step in steps]
    assert len(set(digests)) == len(steps)
    assert fingerprint(steps[:2], "") != fingerprint(steps[1::-1], "")


def test_an_object_that_holds_itself() -> None:
    one, other = Step(), Step(3)
    one.held, other.held = [one], [other]
    assert fingerprint([one], "") == fingerprint([other], "")


def test_what_can_not_be_read() -> None:
    for held in (threading.Lock(), np.random.default_rng(3), torch.Generator(), open(__file__)):  # noqa: SIM115
        with pytest.raises(NoFingerprint, match=r"Step\.held\[0\] is a "):
            fingerprint([Step([held])], "")
        assert fingerprint([Step([held])], "mine") == fingerprint([Step(3)], "mine")


def test_a_key_stands_for_the_users_steps_alone() -> None:
    assert fingerprint([Step(1)], "a") != fingerprint([Step(1)], "b")
    assert fingerprint([v2.Resize(3), Step(1)], "a") == fingerprint([v2.Resize(3), Step(2)], "a")
    assert fingerprint([v2.Resize(3), Step(1)], "a") != fingerprint([v2.Resize(4), Step(1)], "a")
