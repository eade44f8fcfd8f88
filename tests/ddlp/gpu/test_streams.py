"""What only a GPU shows: batches and steps on different streams, which run at their own times."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
import torch
from torchvision import transforms as T

from ddlp import DDLPLoader, ImageArrays
from tests.both_sides import until_both

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

BATCH, BATCHES = 64, 24
LONG = 2_000_000_000  # cycles of the GPU's clock: about a second


@pytest.fixture(scope="module")
def data():
    images = np.random.default_rng(5).integers(0, 256, (BATCH * BATCHES, 64, 64, 3), dtype=np.uint8)
    return ImageArrays(images, range(len(images)), T.Compose([T.RandomHorizontalFlip(), T.ToTensor()]))


@pytest.fixture(scope="module")
def sums(data):
    """The sum of each sample's numbers as float64: of so few numbers it is exact."""
    loader = DDLPLoader(data, BATCH, seed=3, output=torch.uint8)
    return {int(y): int(x.long().sum()) for images, labels in loader for x, y in zip(images, labels)}


def loader(data, strategy="wrr", **options):
    return DDLPLoader(data, BATCH, strategy=strategy, seed=3, output=torch.uint8, device="cuda", **options)


def check(found, sums):
    assert len(found) == BATCHES
    for totals, labels in found:
        for total, label in zip(totals.tolist(), labels.tolist()):
            assert total == sums[label]


def total(images):
    return images.long().sum((1, 2, 3))


@pytest.mark.parametrize("strategy", ["cpu", "csd", "wrr"])
def test_the_training_thread_never_waits_for_the_gpu(data, sums, strategy):
    """The step's stream is busy for a second. All batches are delivered meanwhile, and are right when the stream uses them."""
    one = loader(data, strategy)
    epochs = until_both(one) if strategy == "wrr" else [one]
    for epoch in epochs:  # warm up engine, memory and GPU kernels: loading a kernel may wait for the GPU
        for images, _ in epoch:
            total(images)
    assert bool(one.report().batches_csd) == (strategy != "cpu")
    torch.cuda.synchronize()
    torch.cuda._sleep(5 * LONG)
    busy = torch.cuda.Event()
    busy.record()
    one.set_epoch(0)
    found = [(total(images), labels) for images, labels in one]
    assert not busy.query(), "the epoch must be delivered while the step's stream is busy"
    check(found, sums)


def test_a_batch_is_used_after_it_is_there(data, sums, monkeypatch):
    """Copies and epilogues come late. The step's stream is idle, and must not read before them."""
    from ddlp.transfer.device_stream import CudaStream

    work = CudaStream.work

    def late(self):
        with work(self):
            torch.cuda._sleep(LONG // 20)
        return work(self)

    monkeypatch.setattr(CudaStream, "work", late)
    found = [(total(images), labels) for images, labels in loader(data, "cpu")]
    check(found, sums)


def test_memory_is_not_used_again_before_the_step_has_read_it(data, sums):
    """Each batch is dropped at once, while the step that reads it is still in the queue."""
    found = []
    for images, labels in loader(data):
        torch.cuda._sleep(LONG // 50)
        found.append((total(images), labels))
        del images
    check(found, sums)


def test_on_a_stream_of_the_users_own(data, sums):
    mine = torch.cuda.Stream()
    found = []
    with torch.cuda.stream(mine):
        for images, labels in loader(data):
            torch.cuda._sleep(LONG // 100)
            found.append((total(images), labels))
            del images
    mine.synchronize()
    check(found, sums)


def test_nothing_is_synchronised_in_the_training_thread(data):
    """torch raises for each operation that would wait for the GPU."""
    one = loader(data, "cpu")
    list(one)  # constants are copied only once
    iterator = iter(one)
    next(iterator)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in iterator:
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_does_not_grow_with_the_epochs(data):
    one = loader(data)
    for _ in range(2):
        list(one)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    for _ in range(4):
        for images, _ in one:
            del images
    assert torch.cuda.memory_reserved() <= before + (64 << 20)


def test_host_batches_are_made_in_page_locked_memory(data):
    one = loader(data, "cpu")
    iterator = iter(one)
    next(iterator)
    pool = iterator.executor.resources.pool
    assert torch.from_numpy(pool.empty((BATCH, 64, 64, 3), np.uint8)).is_pinned()


ELSEWHERE = """
import torch
from ddlp import DDLPLoader, ImageArrays
from torchvision import transforms as T
import numpy as np

torch.cuda.set_device(1)
data = ImageArrays(np.zeros((512, 32, 32, 3), np.uint8), range(512), T.ToTensor())
for strategy in ("cpu", "wrr", "csd"):
    for images, labels in DDLPLoader(data, 64, strategy=strategy, device="cuda", num_workers=2):
        assert images.device == labels.device == torch.device("cuda", 1)
assert not torch._C._cuda_hasPrimaryContext(0), "a context on GPU 0"
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_rank_leaves_the_other_gpus_alone():
    """A loader's threads for GPU 1 make no context on GPU 0. There each rank's context would take half a GB."""
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_replay_counts_what_is_left_to_the_gpu(data):
    ours, numbers = loader(data, "cpu"), torch.cuda.get_rng_state()
    for images, labels in ours.replay(15):
        assert images.is_cuda and labels.is_cuda
        torch.rand(3, device="cuda")
        torch.cuda._sleep(LONG // 50)  # returns at once
        images.zero_()
    ceiling = ours._parts.life.ceiling
    assert ceiling is not None and ceiling.step_s > 0.005
    assert torch.equal(torch.cuda.get_rng_state(), numbers)
