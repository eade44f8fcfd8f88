"""Engines with cards on this machine, whose operator sleeps: two cores hold many of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from csd_engine.prepare.operator_file import content_hash
from tests.sleeping_engine import OPERATOR

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
            command += ["--parent", str(os.getpid()), "--spool", str(home / f"spool{number}"), *options]
            one = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
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
            assert one.stdout is not None
            one.stdout.close()
