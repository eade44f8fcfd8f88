"""Blocks of shared memory: lent, sent once, and used again when no process has them."""

from __future__ import annotations

import gc
import multiprocessing as mp
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import torch

from ddlp.transfer.shared_pool import ReceivedBlocks, SentBlocks, SharedPool
from tests.open_files import open_files, opened_since


def test_a_block_is_known_by_what_lies_at_its_beginning():
    pool = SharedPool(2)
    images = torch.from_numpy(pool.empty((2, 3, 4), np.uint8))
    number, content = pool.block_of(images)
    content[5] = 77
    assert images[0, 1, 1] == 77 and content.shape == (24,)
    (other, _), lent = pool.lend(24)
    assert other != number and pool.block_of(torch.from_numpy(lent))[0] == other
    assert pool.block_of(torch.zeros(5)) is None and pool.block_of(images[1]) is None


def test_a_block_comes_again_when_nobody_has_it_and_not_before():
    pool = SharedPool(2)
    (first, _), lent = pool.lend(1000)
    tensor = torch.from_numpy(lent)[:10].view(torch.int16)
    del lent
    (second, _), _ = pool.lend(1000)
    assert second != first
    del tensor
    assert pool.lend(1000)[0][0] in (first, second)


def _fill(question, answer):
    torch.set_num_threads(1)  # as torch's workers do: a fork has none of the parent's OpenMP threads, and would wait for them
    blocks = ReceivedBlocks()
    for message in iter(question.get, None):
        block, value = pickle.loads(message)
        blocks.receive(block).fill_(value)
        answer.put(block[1] is None)


def test_another_process_writes_into_it():
    question, answer = mp.Queue(), mp.Queue()
    process = mp.get_context("fork").Process(target=_fill, args=(question, answer), daemon=True)
    process.start()
    pool, sent = SharedPool(2), SentBlocks()
    for value in (3, 4, 5):
        block, lent = pool.lend(100_000)
        question.put(bytes(ForkingPickler.dumps((sent.send(block), value))))
        assert answer.get(timeout=300) is (value > 3), "a block's content must be sent once"
        assert (lent == value).all()
        del block, lent
    question.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_both_sides_forget_the_same_blocks():
    pool, sent, received = SharedPool(2), SentBlocks(), ReceivedBlocks()
    lent = [pool.lend(1) for _ in range(80)]
    for number, (_, array) in enumerate(lent):
        array[0] = number
    for number in np.random.default_rng(1).integers(0, 80, 2000).tolist():
        block = pickle.loads(ForkingPickler.dumps(sent.send(lent[number][0])))
        assert received.receive(block).item() == number
    assert len(received._here) < 80


def test_a_block_that_is_gone_has_no_descriptor():
    gc.collect()
    before = open_files()
    pool = SharedPool(0)
    block, lent = pool.lend(1000)
    assert len(opened_since(before)) == 2  # and that of the mapping
    del block, lent
    pool.close()
    assert opened_since(before) == []
