"""`ddlp deploy` on emulated ARM boards through their own sshd, from a first deploy to an uninstall that leaves nothing."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from csd_engine.machine import build as own
from ddlp import DDLPLoader, ImageFiles
from ddlp.deploy.install import make_bundle
from ddlp.deploy.survey import modules
from ddlp.devices import address_book as book
from tests.ddlp.deploy import local_device
from tests.engine_process import make_jpegs, until

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def address_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDLP_HOME", str(tmp_path / "book"))


@pytest.fixture
def ddlp(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    return functools.partial(local_device.ddlp, capsys)


def arguments(board: Any, *more: str, user: str = "ddlp") -> list[str]:
    return [
        "deploy", f"{user}@{board.name}", "--name", "csd0", "-F", str(board.ssh_config), "--root", board.data_there,
        "--host-root", str(board.data), "--spool", board.spool_there, "--host-spool", str(board.spool),
        "--reserve-bytes", "10M", "--kernel", "none", *more,  # compiling takes time: test_kernel.py does it
    ]  # fmt: skip


@pytest.fixture
def images(board: Any) -> Iterator[list[Path]]:
    """24 small JPEG files in the data directory of the session's board."""
    names = make_jpegs(board.data, np.random.default_rng(11))
    yield [board.data / name for name in names]
    for directory in {Path(name).parts[0] for name in names}:
        shutil.rmtree(board.data / directory)


def epoch(paths: list[Path], **options: Any) -> tuple[dict[int, torch.Tensor], Any]:
    transform = Compose([RandomResizedCrop(64), RandomHorizontalFlip(), ToTensor()])
    torch.manual_seed(0)
    dataset = ImageFiles(list(map(str, paths)), list(range(len(paths))), transform)
    loader = DDLPLoader(dataset, 2, shuffle=True, seed=4, **options)
    found: dict[int, torch.Tensor] = {}
    for pixels, targets in loader:
        for image, target in zip(pixels, targets):
            assert int(target) not in found
            found[int(target)] = image
    assert len(found) == len(paths)
    return found, loader.report()


def engine(board: Any, before: int = 0) -> int:
    """The engine's process id on the board, once it serves and differs from `before`."""

    def look() -> int:
        state = board.run("cat ~ddlp/.ddlp/csd0/run/state", check=False).stdout.split()
        return int(state[2]) if state[:1] == ["ready"] and int(state[2]) != before else 0

    return until(look, 60, "an engine")


@pytest.mark.slow  # test_two_boards.py deploys and uninstalls; tests/ddlp/deploy/test_deploy.py does the rest here
def test_from_nothing_to_nothing(board: Any, images: list[Path], ddlp: Callable[..., str]) -> None:
    before = board.files()
    assert not board.engines()
    told = ddlp(*arguments(board, "--kernel", "auto"))
    assert 'csd0 is ready. Use it with csd="csd0".' in told
    record = book.load("csd0")
    assert record.machine == "armv7l" and record.versions["pillow"].startswith("9.") and " images/s through" in told
    assert record.build == own.build() and board.run("ls ~ddlp/.ddlp/csd0/engines").stdout.split() == [own.build()]

    # A training script needs only the name, and the bits are the host's.
    expected, _ = epoch(images, strategy="cpu")
    for strategy in ("csd", "mte"):  # test_two_boards.py has wrr
        got, report = epoch(images, csd="csd0", strategy=strategy)
        assert all(torch.equal(got[k], expected[k]) for k in expected)
        assert report.batches_csd or strategy != "csd"

    # A second deploy changes nothing.
    first = engine(board)
    assert "Nothing had to be changed." in ddlp(*arguments(board, "--kernel", "auto")) and engine(board) == first

    # A killed engine is started again. A stopped one is not.
    board.run(f"kill -9 {first}")
    second = engine(board, before=first)
    assert second and epoch(images, csd="csd0", strategy="csd")
    assert ddlp("stop", "csd0") == "csd0 is stopped\n" and not board.engines()
    assert f"process {second}" in ddlp("logs", "csd0") and "the engine ended (status -9" in ddlp("logs", "csd0", "-n", "50")
    assert "listens on" in ddlp("start", "csd0") and epoch(images, csd="csd0", strategy="csd")

    ddlp("deploy", "--name", "csd0", "--uninstall")
    assert not board.engines() and board.files() == before
    assert not book.directory("csd0").exists() and not list(board.spool.iterdir())


@pytest.mark.slow
def test_nothing_there_installed_from_a_bundle_of_debs_and_again_by_apt(
    make_board: Callable[..., Any], ddlp: Callable[..., str]
) -> None:
    board = make_board("--bare", "--no-debs")
    paths = [board.data / name for name in make_jpegs(board.data, np.random.default_rng(11))]
    told = ddlp(*arguments(board), status=1)
    assert "no Python" in told and "apt-get install -y python3 python3-numpy python3-pil python3-zmq" in told
    told = ddlp(*arguments(board, "--install", "apt"), status=1)
    assert "apt-get install python3" in told and "--bundle DIR" in told
    assert "installed; Python 3.11" in ddlp(*arguments(board, "--bundle", str(board.debs)))
    assert epoch(paths, csd="csd0", strategy="csd")[1].batches_csd

    # Python and numpy are not installed again: Debian would compile their modules, which takes a minute on a board.
    shutil.copytree(board.debs, board.data / "debs")
    board.run("echo 'deb [trusted=yes] file:/data/debs ./' > /etc/apt/sources.list; dpkg --purge --force-depends "
              "python3-pil python3-zmq libzmq5")  # fmt: skip
    ddlp("stop", "csd0")
    told = ddlp(*arguments(board), status=1)
    assert "no Pillow" in told and "apt-get install -y python3-pil" in told and "no numpy" not in told
    assert "PIL, zmq: installed; Python 3.11" in ddlp(*arguments(board, "--install", "apt"))
    assert epoch(paths, csd="csd0", strategy="csd")[1].batches_csd


@pytest.mark.slow
def test_wheels_from_a_bundle(make_board: Callable[..., Any], ddlp: Callable[..., str], tmp_path: Path) -> None:
    board = make_board("--arch", "arm64")
    paths = [board.data / name for name in make_jpegs(board.data, np.random.default_rng(11))]
    board.run("cd /usr/lib/python3/dist-packages && mv PIL zmq numpy /root/")
    wheels = make_bundle(tmp_path / "wheels", "arm64", "3.11", modules(()))
    assert [name.split("-")[0].lower() for name in wheels] == ["numpy", "pillow", "pip", "pyzmq"]
    told = ddlp(*arguments(board, "--bundle", str(tmp_path / "wheels")))
    assert "numpy, PIL, zmq: installed" in told and "/.ddlp/csd0/venv/bin/python" in told
    assert book.load("csd0").machine == "aarch64"
    expected, _ = epoch(paths, strategy="cpu")
    got, _ = epoch(paths, csd="csd0", strategy="csd")
    assert all(torch.equal(got[k], expected[k]) for k in expected)
    ddlp("deploy", "--name", "csd0", "--uninstall")
    assert board.run("ls -A ~ddlp").stdout.split() == board.run("ls -A /etc/skel; echo .ssh").stdout.split()
