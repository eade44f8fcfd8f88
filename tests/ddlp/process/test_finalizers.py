"""Finalizers of dropped objects run in a thread of their own, or later, but never in the thread that collects the objects."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ddlp.process import finalizers as ending
from ddlp.process.finalizers import when_dropped


class Thing:
    pass


def test_where_no_thread_can_be_started_an_end_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str] = []

    def dropped() -> None:
        thing = Thing()
        when_dropped(thing, lambda: ends.append(threading.current_thread().name))

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        dropped()
        assert not ends
    dropped()
    assert ends == ["ddlp-end", "ddlp-end"] and not ending._left


def test_at_exit_what_is_left_is_ended_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str] = []
    monkeypatch.setattr(ending, "_pending", set())
    ending._left.extend([(-1, lambda: ends.append("a parent's")), (ending.os.getpid(), lambda: ends.append("ours"))])
    ending._end_all()
    assert ends == ["ours"] and not ending._left


SCRIPT = """
import sys
import numpy as np
from torchvision import transforms
from ddlp import DDLPLoader, ImageArrays
images = ImageArrays(np.zeros((16, 4, 4, 3), np.uint8), [0] * 16, transform=transforms.ToTensor())
for batch, labels in DDLPLoader(images, 8):
    pass
"""


@pytest.mark.parametrize(
    "keeps", ["sys.of_the_script = sys.modules['__main__']", pytest.param("import dill", marks=pytest.mark.slow)]
)
def test_a_script_that_still_holds_batches_at_its_end_says_nothing(keeps: str) -> None:
    """If something holds the script's module, as dill does, its variables outlive the names in ddlp's modules."""
    if keeps == "import dill":
        pytest.importorskip("dill")
    done = subprocess.run([sys.executable, "-c", SCRIPT + keeps], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
