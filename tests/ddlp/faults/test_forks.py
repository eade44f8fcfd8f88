"""Forks in mid-epoch: the child touches nothing of the parent's, and the parent goes on."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading

import pytest
import torch
from PIL import Image

from ddlp import DDLPLoader
from tests.ddlp.faults.scene import descendants, engine_pid, make_loader, train, until


def test_children_come_and_go_in_mid_epoch(leaves_nothing, slow_engine, data, truth, told):
    loader = make_loader(data, "wrr", num_workers=2)
    train(loader, 0.01)
    engine = engine_pid()
    context = multiprocessing.get_context("fork")

    def children():
        for end in (lambda: None, lambda: os._exit(0), gc.collect):
            child = context.Process(target=end)
            child.start()
            child.join(60)
            assert child.exitcode == 0

    truth.check(train(loader, 0.01, at={3: children, 9: children}), 1)
    assert engine_pid() == engine and not len(told)


def test_a_child_that_ends_as_an_interpreter(script):
    one = script(
        """
        loader = make_loader(data, "wrr")
        iterator = engine_at_work(loader)
        child = os.fork()
        if child == 0:
            try:
                next(iterator)
            except RuntimeError as error:
                said("parent process" in str(error))
            del iterator
            sys.exit(0)
        said(os.waitpid(child, 0)[1])
        rest = list(iterator)
        said(len(rest) > 0)
        """,
        DDLP_ENGINE_SLOWDOWN="3",
    )
    assert (one.line(), one.line(), one.line()) == ("True", "0", "True")
    assert one.end() == (0, "")
    one.nothing_left()


def test_a_child_trains_with_an_engine_of_its_own(script):
    one = script(
        """
        loader = make_loader(data, "csd")
        iterator = iter(loader); next(iterator)
        mine = engine_pid()
        child = os.fork()
        if child == 0:
            truth = Truth(data)
            truth.check(train(loader), 1)
            said(engine_pid() != mine, loader.report().batches_csd)
            sys.exit(0)
        said(os.waitpid(child, 0)[1], len(list(iterator)))
        """
    )
    assert one.line() == "True 40"
    assert one.line() == "0 39"
    assert one.end() == (0, "")
    one.nothing_left()


def test_user_code_in_workers_beside_an_engine(leaves_nothing, data, truth):
    """Forked workers inherit the engine's pipes. The engine still ends with its loader."""

    class Own(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            return torch.tensor(index)

    loader = make_loader(data, "csd")
    plain = DDLPLoader(Own(), 4, num_workers=2, persistent_workers=True)
    train(loader)
    assert len(list(plain)) == 8
    truth.check(train(loader), 1)
    del loader
    gc.collect()
    until(lambda: not [p for p in descendants() if "-m csd_engine" in p.command], 30, "the engine's end")
    plain._iterator._shutdown_workers()


def test_collected_in_one_of_our_own_threads_that_holds_the_lock(leaves_nothing, slow_engine, data, truth):
    """The garbage collector runs finalizers in any thread: here in a thread like a host's worker, which holds the lock."""
    loader = make_loader(data, "wrr", num_workers=2)
    train(loader, 0.01)

    class Cycle:
        pass

    gc.disable()
    try:
        for name in ("ddlp-0", "user"):
            cycle = Cycle()
            cycle.me, cycle.iterator = cycle, iter(loader)
            next(cycle.iterator)
            run = cycle.iterator.executor

            def collect(run=run):
                with run.monitor.lock:
                    gc.collect()

            del cycle
            thread = threading.Thread(target=collect, name=name)
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
            until(lambda run=run: not run._threads.at_work, 30, "the end of the run")
            del run, collect, thread
    finally:
        gc.enable()
    truth.check(train(loader, 0.01), 3)


IMPORTS = """
import sys, threading
from torchvision import transforms as T
from ddlp import DDLPLoader, ImageFiles

class Finder:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(threading.current_thread().name, "imports", name, flush=True)

sys.meta_path.insert(0, Finder())
strategy, *paths = {arguments}
transform = T.Compose([T.RandomResizedCrop(16), T.ToTensor(), T.RandomErasing(0.5)])
loader = DDLPLoader(ImageFiles(paths, [0] * len(paths), transform), 2, num_workers=2, strategy=strategy)
print(len(list(loader)), "batches")
"""


@pytest.mark.parametrize(
    "strategy, suffix, kernel",
    [("cpu", "jpg", ""), pytest.param("cpu", "tif", "off", marks=pytest.mark.slow), ("csd", "jpg", "")],
)
def test_no_thread_imports_anything(forks, tmp_path, paths, strategy, suffix, kernel):
    """A process that is forked during an import, such as DataLoader's worker, would wait for the module's lock for ever."""
    copies = [tmp_path / f"{k}.{suffix}" for k in range(8)]
    for path, copy in zip(paths, copies):
        Image.open(path).save(copy)
    done = forks.run(
        code=IMPORTS.format(arguments=[strategy, *map(str, copies)]), environment={**os.environ, "DDLP_KERNEL": kernel}
    )
    assert done.stdout == "4 batches\n", done.stdout + done.stderr
