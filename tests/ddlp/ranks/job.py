"""A torchrun job of train.py, and what its ranks must have received."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from ddlp import DDLPLoader
from tests.ddlp.ranks.train import BATCH, SEED, dataset, digest
from tests.engine_process import until

REPOSITORY = Path(__file__).resolve().parents[3]
TRAIN = Path(__file__).resolve().parent / "train.py"
COUNT = 161  # the number of images; odd, so that DistributedSampler repeats one for two ranks


def steps(ranks: int) -> int:
    """The number of steps of each rank."""
    return math.ceil(math.ceil(COUNT / ranks) / BATCH)


def truth(images: Path, epoch: int) -> dict[int, str]:
    """The digest of each sample, as one process's host makes it."""
    loader = DDLPLoader(dataset(images), BATCH, strategy="cpu", seed=SEED)
    loader.set_epoch(epoch)
    return {int(label): digest(image) for batch, labels in loader for image, label in zip(batch, labels)}


class Torchrun:
    """torchrun with ranks of train.py, in a temporary directory of its own. ``device`` is "cpu" or "cuda"."""

    def __init__(self, images: Path, *phases: str, ranks: int = 2, backend: str = "gloo", device: str = "cpu") -> None:
        self.home = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
        self.out, self.temporary, mark = self.home / "out", self.home / "tmp", f"ddlp-test-{uuid.uuid4().hex}"
        self.out.mkdir()
        self.temporary.mkdir()
        self._mark = f"DDLP_TEST_MARK={mark}"
        environment = {
            **os.environ, "DDLP_TEST_MARK": mark, "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(REPOSITORY),  # train.py imports from there
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
        self._log = self.home / "log"
        self.process = subprocess.Popen(
            [*command, str(TRAIN), str(images), str(self.out), backend, device, *phases],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=open(self._log, "wb"),
            start_new_session=True,
        )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def running(self) -> list[tuple[int, str]]:
        """(pid, command) of its processes, whoever their parents are now."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self._mark in Path(f"/proc/{pid}/environ").read_text(errors="replace"):
                    found.append((int(pid), Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")))
            except OSError:
                pass
        return found

    def engines(self) -> list[int]:
        return [pid for pid, command in self.running() if " csd_engine " in command]

    def said(self, phase: str, rank: int) -> Any:
        path = self.out / f"{phase}.{rank}.json"
        return json.loads(path.read_text()) if path.exists() and path.read_text() else None

    def nothing_left(self) -> None:
        """Assert that nothing is left, except torchrun's own directories for logs."""
        until(lambda: not self.running(), 30, f"the end of {self.running()}")
        ours = [name for name in os.listdir(self.temporary) if name.startswith("ddlp")]
        assert not ours

    def close(self) -> None:
        for pid, _ in self.running():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.home)


def check(phase: str, said: list[Any], true: dict[int, str]) -> None:
    """Check that ranks got disjoint samples, all of them, in equal steps, with the right bits."""
    ranks = len(said)
    assert [one["steps"] for one in said] == [steps(ranks)] * ranks, phase
    labels = Counter(label for one in said for label in one["labels"])
    assert set(labels) == set(range(COUNT)) and labels.total() == math.ceil(COUNT / ranks) * ranks, phase
    for one in said:
        assert len(set(one["labels"])) == len(one["labels"]), phase
        assert [true[label] for label in one["labels"]] == one["digests"], phase
