"""However the training process ends, it leaves no process and no file, and prints nothing extra."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.ddlp.faults.scene import engine_pid, until, worker_pids

AT_WORK = """
    loader = make_loader(data, "wrr", num_workers=2)
    iterator = engine_at_work(loader)
    said("ready")
"""
SLOW = {"DDLP_ENGINE_SLOWDOWN": "3"}


def test_killed(script):
    one = script(AT_WORK + "    time.sleep(60)", **SLOW)
    assert one.line() == "ready"
    assert len(one.running()) == 3  # host, engine, worker
    os.kill(one.pid, signal.SIGKILL)
    one.nothing_left()
    assert one.end()[1] == ""


def test_killed_together_with_its_engine_while_a_worker_hangs(script):
    one = script(AT_WORK + "    time.sleep(60)", **SLOW)
    assert one.line() == "ready"
    (worker,) = worker_pids(one.pid)
    os.kill(worker, signal.SIGSTOP)
    os.kill(engine_pid(one.pid), signal.SIGKILL)
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: not one.running(), 30, "the end of the worker")


LOOP = """
    for batch in iterator:
        time.sleep(0.05)
    iterator = iter(loader)
    for batch in iterator:
        time.sleep(1)
"""


def test_interrupted(script):
    one = script(AT_WORK.replace('"wrr"', '"csd"') + LOOP, **SLOW)
    assert one.line() == "ready"
    time.sleep(0.73)
    began = time.monotonic()
    one.interrupt()
    status, err = one.end()
    assert time.monotonic() - began < 30
    assert status == -signal.SIGINT
    assert err.startswith("Traceback") and err.rstrip().endswith("KeyboardInterrupt"), err
    assert err.count("Traceback") == 1 and "Exception" not in err, err
    one.nothing_left()


WITHOUT_AN_ENGINE = {
    "it starts": """
        loader = make_loader(data, "csd")
        said("ready")
        train(loader, 1)
    """,
    "it cannot be reached": """
        from ddlp import Device
        from csd_engine.protocol.keys import make_keys
        keys = make_keys(os.environ["TMPDIR"] + "/keys")
        import atexit, shutil; atexit.register(shutil.rmtree, keys)
        loader = make_loader(data, "wrr", csd=Device("tcp://127.0.0.1:9", keys))
        iterator = iter(loader); next(iterator)
        said("ready")
        for batch in iterator: time.sleep(1)
    """,
}


@pytest.mark.parametrize("why", WITHOUT_AN_ENGINE)
def test_interrupted_without_an_engine(script, why):
    one = script(WITHOUT_AN_ENGINE[why])
    assert one.line() == "ready"
    time.sleep(0.3)
    began = time.monotonic()
    one.interrupt()
    status, err = one.end()
    assert time.monotonic() - began < 30
    assert status and err.count("Traceback") == 1, err
    one.nothing_left()


ENDS = {
    "exception": ("raise ZeroDivisionError", 1, "ZeroDivisionError"),
    "exit in the loop": ("second = iter(loader); next(second)\n    for batch in iterator: sys.exit(7)", 7, ""),
    "an iterator alive, in a cycle": ("class A: pass\n    a = A(); a.a = a; a.i = iterator", 0, ""),
    "hard": ("os._exit(5)", 5, ""),
    "in a thread": (
        "import threading; t = threading.Thread(target=list, args=(iterator,)); t.start(); t.join()", 0, ""
    ),
    "whole epochs": (
        "list(iterator); list(loader)\n"
        "    for one in ('cpu', 'csd', 'mte', 'ordered'): list(make_loader(data, one, num_workers=2))", 0, ""
    ),
    "abandoned thread": (
        "import threading; begun = threading.Event(); "
        "threading.Thread(target=train, args=(loader, 60, {0: begun.set}), daemon=True).start(); begun.wait()", 0, ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ENDS)
def test_ends(script, how):
    then, expected, last = ENDS[how]
    one = script(AT_WORK + "    " + then, **SLOW)
    assert one.line() == "ready"
    status, err = one.end()
    assert status == expected, err
    assert err.strip().endswith(last) and err.count("Traceback") == bool(last), err
    one.nothing_left()
