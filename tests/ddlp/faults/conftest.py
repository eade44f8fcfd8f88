"""Fixtures of the fault tests: images, the expected samples, a hard time limit, and checks of what is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ddlp.faults.scene import ENGINE, Script, Truth, Zygote, dataset, descendants, listing, until
from tests.engine_process import EngineProcess
from tests.forks import Forks
from tests.small_images import make_images


@pytest.fixture(autouse=True)
def limited(hard_limit: None) -> None:
    """A test that hangs fails."""


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of 160 small JPEG files."""
    root = tmp_path_factory.mktemp("images")
    make_images(root, 160)
    return root


@pytest.fixture(scope="session")
def paths(images: Path) -> list[str]:
    return sorted((str(p) for p in images.iterdir()), key=lambda p: int(p.rpartition(" ")[2][:-4]))


@pytest.fixture(scope="session")
def data(paths: list[str]) -> Any:
    return dataset(paths)


@pytest.fixture(scope="session")
def truth(data: Any) -> Truth:
    return Truth(data)


@pytest.fixture
def spool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary directory of the whole test, also for the embedded engines' spools."""
    path = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))  # short: a socket's path may have at most 107 bytes
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def engines(spool: Path) -> Iterator[Callable[..., EngineProcess]]:
    """Start engines on loopback. At the end each must have ended cleanly, with only what hosts have sent in its spool."""
    started: list[EngineProcess] = []

    def start(*arguments: str, **options: Any) -> EngineProcess:
        home = Path(tempfile.mkdtemp(dir=spool))
        started.append(EngineProcess(home, *arguments, listen="tcp://127.0.0.1:0", **options))
        return started[-1]

    yield start
    gc.collect()
    try:
        for engine in started:
            killed = engine.process.poll() is not None
            if not killed:
                files = engine.spool / "files"
                until(lambda e=engine, f=files: not list(e.spool.glob("job-*")) and not os.listdir(f), 90, "empty spools")
            assert engine.end() == 0 or killed
            assert "Traceback" not in engine.log, engine.log
    finally:
        for engine in started:
            engine.end()
        shutil.rmtree(spool, ignore_errors=True)


def settled() -> bool:
    """True once no engine is left, no worker of torch is ending, and no thread of ddlp is at work."""
    ending = [p for p in descendants() if ENGINE in p.command or "multiprocessing" in p.command or " pytest" in p.command]
    stay = [p for p in ending if "resource_tracker" in p.command or ("forkserver" in p.command and p.parent == os.getpid())]
    threads = [t for t in threading.enumerate() if t.name.startswith("ddlp-") or "QueueFeeder" in t.name]
    return not threads and len(ending) == len(stay)  # of the fork server its children end


@pytest.fixture(scope="session")
def gpu_awake() -> None:
    """Use the GPU once before descriptors are counted: what the driver opens at its first use stays open."""
    if torch.cuda.is_available():
        memory = torch.ones(1 << 20, pin_memory=True)
        with torch.cuda.stream(torch.cuda.Stream(priority=-1)):
            assert memory.to("cuda", non_blocking=True).sum().item() == 1 << 20
            event = torch.cuda.Event(blocking=True)
            event.record()
        event.synchronize()


@pytest.fixture
def slow_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded engine takes five times as long."""
    monkeypatch.setenv("DDLP_ENGINE_SLOWDOWN", "5")


@pytest.fixture
def leaves_nothing(spool: Path, gpu_awake: None) -> Iterator[Path]:
    """After the test, when its loaders are dropped, there may be no more processes, descriptors or files than before."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)  # they keep a failed test's frames, and so its loader
    gc.collect()
    until(settled, 30, "the end of what earlier tests began")
    before = listing()

    def left() -> dict[str, list[str]]:
        """What is there now and was not before. Less is no fault: threads of earlier tests end when they come to it."""
        return {what: list((Counter(now) - Counter(before[what])).elements()) for what, now in listing().items()}

    yield spool
    gc.collect()
    with contextlib.suppress(AssertionError):
        until(lambda: not os.listdir(spool) and settled() and not any(left().values()), 30, "a clean end")
    assert not any(left().values()), left()
    assert os.listdir(spool) == [] and settled()


@pytest.fixture
def told() -> Iterator[list[str]]:
    """ddlp's warnings, as a training script gets them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        class Texts(list):
            def __iter__(self) -> Iterator[str]:
                return iter([str(w.message) for w in caught if str(w.message).startswith("ddlp:")])

            def __len__(self) -> int:
                return len(list(iter(self)))

            def __getitem__(self, index: Any) -> Any:
                return list(iter(self))[index]

        yield Texts()


@pytest.fixture(scope="session")
def zygote(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    one = Zygote(forks, tmp_path_factory.mktemp("zygote"))
    yield one
    one.end()


@pytest.fixture
def script(zygote: Zygote, images: Path) -> Iterator[Callable[..., Script]]:
    """Run training scripts. After the test, everything that they left is killed."""
    started: list[Script] = []

    def run(body: str, **environment: str) -> Script:
        home = Path(tempfile.mkdtemp(prefix="s-", dir="/tmp"))
        started.append(Script(zygote, home, images, body, **environment))
        return started[-1]

    yield run
    for one in started:
        one.stop()
        shutil.rmtree(one.home, ignore_errors=True)
