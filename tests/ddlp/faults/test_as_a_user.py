"""A training script as a user would run it: its exit status, and nothing from ddlp or its libraries on stderr."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.ddlp.faults.scene import REPOSITORY

SCRIPT = """
    import sys, time, torch
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder
    from ddlp import DDLPLoader

    if __name__ == "__main__":
        data = ImageFolder(sys.argv[1], T.Compose([T.RandomResizedCrop(32), T.ToTensor()]))
        model = torch.nn.Linear(3 * 32 * 32, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for strategy in ("ordered",) if len(sys.argv) > 2 else ("cpu", "wrr", "csd", "mte", "ordered"):
            loader = DDLPLoader(data, batch_size=8, shuffle=True, num_workers=2, strategy=strategy)
            for epoch in range(1):
                for images, labels in loader:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(images.flatten(1)), labels).backward()
                    optimizer.step()
        print("trained", flush=True)
        if len(sys.argv) > 2:
            for images, labels in loader:
                time.sleep(60)
"""


@pytest.fixture
def train_py(leaves_nothing, images, tmp_path):
    home = tmp_path / "folder"
    for number in range(2):
        (home / f"class{number}").mkdir(parents=True)
    for number, path in enumerate(sorted(images.iterdir())):
        os.link(path, home / f"class{number % 2}" / path.name)
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    return [sys.executable, str(tmp_path / "train.py"), str(home)]


ENVIRONMENT = {"PYTHONPATH": str(REPOSITORY)}


def test_it_says_nothing(forks, train_py):
    _, script, folder = train_py
    done = forks.run(code=f"import sys; sys.argv[1:] = [{folder!r}]\n{Path(script).read_text()}", environment=os.environ)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "trained\n")


@pytest.mark.slow  # test_host_ends.py: test_interrupted; here with an interpreter of its own
def test_ctrl_c_says_one_thing(train_py):
    process = subprocess.Popen(
        [*train_py, "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "trained\n"
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=300)
        assert process.returncode and err.count("Traceback") == 1 and err.endswith("KeyboardInterrupt\n"), err
    finally:
        process.kill()
        process.communicate()
