"""Engines with cards on this machine, whose operator sleeps: two cores hold many of them. For scripts that measure pools."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Subset
from torchvision import transforms

from csd_engine.prepare.operator_file import content_hash
from ddlp import DDLPLoader, ImageArrays, load_operators
from tests.sleeping_engine import OPERATOR

__all__ = ["Bed", "data_of", "loader_of"]

_IMAGES = 4  # different ones; an epoch has them again and again
_END_S = 30.0


class Bed:
    """Engines with one worker each. They end with ``with``.

    Attributes:
        cards: the directory of their cards, for ``pool=``.
    """

    def __init__(self, home: Path, engines: int, sleep_s: float, *options: str) -> None:
        self.cards = home / "cards"
        self.cards.mkdir(0o700)
        self._sleep = home / "sleep"
        self._sleep.write_text(repr(sleep_s))
        operators = home / "operators"
        for directory in (operators, home / "root"):
            directory.mkdir()
        (operators / f"{content_hash(OPERATOR.read_bytes())}.py").write_bytes(OPERATOR.read_bytes())
        self._engines: list[subprocess.Popen[bytes]] = []
        for number in range(engines):
            command = [sys.executable, "-m", "csd_engine", "--card", str(self.cards), "--listen", "tcp://127.0.0.1:0"]
            command += ["--workers", "1", "--operators", str(operators), "--root", str(home / "root"), "--reserve-bytes", "0"]
            command += ["--exit-with-stdin", "--spool", str(home / f"spool{number}"), *options]
            one = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                env={**os.environ, "DDLP_SLEEP": str(self._sleep)},
            )  # fmt: skip
            self._engines.append(one)
        for one in self._engines:
            assert one.stdout is not None and json.loads(one.stdout.readline())["ready"]

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._engines:
            one.send_signal(signal.SIGINT)
        for one in self._engines:
            one.wait(_END_S)
            assert one.stdin is not None and one.stdout is not None
            one.stdin.close()
            one.stdout.close()


def data_of(batches: int, batch: int, host_s: float) -> Any:
    """Return a data set of so many batches. ``host_s``: seconds that this host sleeps for a sample."""
    images = np.arange(_IMAGES * 8 * 8 * 3, dtype=np.uint8).reshape(_IMAGES, 8, 8, 3)
    prepare = load_operators(OPERATOR).prepare(host_s=host_s)
    data = ImageArrays(images, range(_IMAGES), transforms.Compose([prepare, transforms.PILToTensor()]))
    return Subset(data, [number % _IMAGES for number in range(batches * batch)])


def loader_of(pool: Any, batches: int, batch: int, host_s: float, **options: Any) -> DDLPLoader:
    """Return a loader over such a data set."""
    return DDLPLoader(data_of(batches, batch, host_s), batch, shuffle=True, seed=0, pool=pool, **options)
