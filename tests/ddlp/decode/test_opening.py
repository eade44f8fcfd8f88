"""Where `Image.open` gives postponed images: in one thread for a time, in forked children, in the whole process."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from ddlp import decode
from tests.small_images import make_images


@pytest.fixture
def jpeg(tmp_path: Path) -> str:
    return make_images(tmp_path, 1)[0]


def is_postponed(path: str) -> bool:
    with Image.open(path) as image:
        assert isinstance(image, JpegImageFile)
        return type(image) is not JpegImageFile


def test_in_one_thread_until_the_block_is_left(jpeg, need_kernel):
    before, inside, go = Image.OPEN["JPEG"] if "JPEG" in Image.OPEN else None, threading.Barrier(2), threading.Barrier(2)
    seen: list[bool] = []

    def other() -> None:
        with decode.Here():
            inside.wait()
            go.wait()
            seen.append(is_postponed(jpeg))

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    assert not is_postponed(jpeg), "another thread is in such a block"
    with pytest.raises(KeyboardInterrupt), decode.Here():
        assert is_postponed(jpeg)
        with decode.Here():
            assert is_postponed(jpeg)
        assert is_postponed(jpeg)
        raise KeyboardInterrupt
    assert not is_postponed(jpeg)
    go.wait()
    thread.join()
    assert seen == [True] and not is_postponed(jpeg)
    assert before in (None, Image.OPEN["JPEG"]), "nothing of ours may be left in Pillow"


def test_not_in_a_block_that_does_not_want_it(jpeg, installed):
    with decode.Here(False):
        assert not is_postponed(jpeg)
        with decode.Here():
            assert is_postponed(jpeg)
    assert is_postponed(jpeg)


def look(path: str, answers: multiprocessing.SimpleQueue[bool]) -> None:
    answers.put(is_postponed(path))


def in_a_fork(path: str) -> bool:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=look, args=(path, answers))
    child.start()
    child.join()
    return answers.get()


def test_a_child_of_a_block(jpeg, need_kernel):
    """It goes on in the block, though another thread held the lock when it was forked."""
    from ddlp.decode import opening

    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with opening._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    with decode.Here():
        thread.start()
        held.wait()
        try:
            assert in_a_fork(jpeg)
        finally:
            done.set()
    thread.join()
    assert not in_a_fork(jpeg)


IN_FORKS = """
import os, sys
from ddlp import decode
from tests.ddlp.decode.test_opening import in_a_fork, is_postponed
from PIL import Image
decode.in_forks(lambda: os.environ["WANTED"] == "yes")
before = Image.OPEN["JPEG"]
for wanted in ("yes", "no"):
    os.environ["WANTED"] = wanted
    print(in_a_fork(sys.argv[1]))
print(is_postponed(sys.argv[1]), before is Image.OPEN["JPEG"])
"""


def test_in_forks(jpeg, need_kernel):
    done = subprocess.run([sys.executable, "-c", IN_FORKS, jpeg], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False", "True"]


WITHOUT_TORCH = """
import sys
from ddlp import decode
assert decode.install(), decode.why_not()
from PIL import Image
Image.open(sys.argv[1]).resize((8, 8)).getpixel((0, 0))
import json
print(json.dumps([name for name in sys.modules if name.split(".")[0] in ("torch", "torchvision", "zmq", "ddlp", "csd_engine")]))
"""


def test_it_needs_the_kernel_and_pillow_alone(jpeg, need_kernel):
    """So each process of a script can have it: neither torch, nor the operators of the pipelines, nor a loader."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, jpeg], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stdout))
    assert not modules & {"torch", "torchvision", "zmq", "ddlp.loader", "csd_engine.transforms.pipeline"}
    assert len(modules) < 30, sorted(modules)


def test_no_kernel(jpeg, monkeypatch):
    monkeypatch.setattr("csd_engine.kernels._outcome", (None, "there is none"))
    assert not decode.install() and decode.why_not() == "there is none"
    with decode.Here():
        assert not is_postponed(jpeg)
    assert os.path.getsize(jpeg) and not is_postponed(jpeg)


LOADED = """
import sys
from ddlp import decode
from csd_engine import kernels
from PIL import Image
with decode.Here():
    assert kernels.kernel() is not None, kernels.why_not()  # the first call, which opens JPEGs
    print(type(Image.open(sys.argv[1])).__name__)
"""


def test_the_kernel_may_be_loaded_by_other_code_in_a_block(jpeg, need_kernel):
    done = subprocess.run([sys.executable, "-c", LOADED, jpeg], capture_output=True, text=True, timeout=300)
    assert done.stdout == "PostponedFile\n", done.stderr
