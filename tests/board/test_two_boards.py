"""Two emulated boards: the doctor, the table of operators, and epochs.

One has no shared spool, the other is killed in mid-epoch and comes back. The boards' Pillow and numpy have other versions than
this host's.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from ddlp import DDLPLoader, ImageFiles, cli
from tests.board.boards import Board, path_without_cross_compilers, raise_board
from tests.ddlp.deploy.quick import every_operator
from tests.engine_process import until
from tests.needs import need_zig

TABLE = Path(__file__).resolve().parents[2] / "docs" / "parity.md"
IMAGES, BATCH = 240, 4
SAID: dict[str, str] = {}  # the output of ddlp deploy, by the board's name
BEFORE: dict[str, set[str]] = {}  # the files on a board before its deploy
STEP_S = 0.15  # of a training step: an epoch of 60 batches takes at least 9 s


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pictures") / "images"  # the engine's user may not read the parent
    directory.mkdir()
    random = np.random.default_rng(3)
    for k in range(IMAGES):
        small = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        small.resize((320, 240), Image.Resampling.BICUBIC).save(directory / f"{k:03}.jpg", quality=90)
    return directory


@pytest.fixture(scope="module")
def deployed(
    needs_boards: None, images: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Board]]:
    """deployed("csd0", "--disk", "300M", kernel="auto") -> Board: a board that sees the images, and runs an engine."""
    need_zig()
    patch = pytest.MonkeyPatch()
    patch.setenv("DDLP_HOME", str(tmp_path_factory.mktemp("book")))
    no_gcc = path_without_cross_compilers(tmp_path_factory.mktemp("path") / "programs")
    boards: list[Board] = []

    def deploy(name: str, *options: str, kernel: str) -> Board:
        board = raise_board(name[3:], "--data", str(images), "--cores", "1", *options)
        boards.append(board)
        BEFORE[name] = board.files()
        shared = [] if board.spool is None else ["--host-spool", str(board.spool)]
        with contextlib.redirect_stdout(io.StringIO()) as said, pytest.MonkeyPatch.context() as without:
            without.setenv("PATH", no_gcc)
            status = cli.main([
                "deploy", f"ddlp@{board.name}", "--name", name, "-F", str(board.ssh_config), "--root", board.data_there,
                "--host-root", str(images), "--spool", board.spool_there, *shared,
                "--reserve-bytes", "10M", "--quota-batches", "8", "--kernel", kernel,
            ])  # fmt: skip
        SAID[name] = said.getvalue()
        assert status == 0, SAID[name]
        return board

    try:
        yield deploy
    finally:
        for board in boards:
            board.down()
        patch.undo()


@pytest.fixture(scope="module")
def csd0(deployed: Callable[..., Board]) -> Board:
    """Has no shared spool, and a kernel that zig compiled."""
    return deployed("csd0", "--no-shared-spool", "--disk", "300M", kernel="auto")


@pytest.fixture(scope="module")
def csd1(deployed: Callable[..., Board]) -> Board:
    """Shares its spool with the host, and has no kernel."""
    return deployed("csd1", kernel="none")


def pictures(directory: Path) -> ImageFiles:
    paths = sorted(map(str, directory.iterdir()))
    return ImageFiles(paths, list(range(IMAGES)), Compose([RandomResizedCrop(96), RandomHorizontalFlip(), ToTensor()]))


def make_loader(dataset: ImageFiles, strategy: str, **options: Any) -> DDLPLoader:
    torch.manual_seed(0)
    return DDLPLoader(dataset, BATCH, shuffle=True, seed=7, strategy=strategy, **options)


def train(
    loader: DDLPLoader, after: Callable[[int], None] = lambda step: None, step_s: float = STEP_S
) -> dict[int, torch.Tensor]:
    """Train one epoch. Returns each sample's pixels, and checks that every sample comes once."""
    found: dict[int, torch.Tensor] = {}
    for step, (pixels, targets) in enumerate(loader):
        for image, target in zip(pixels, targets):
            assert int(target) not in found, "a sample came twice"
            found[int(target)] = image
        after(step)
        time.sleep(step_s)
    assert len(found) == IMAGES, "samples are missing"
    return found


def same(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def rates(loader: DDLPLoader) -> dict[str, Any]:
    return loader._parts.life.rates.devices


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str, status: int) -> list[dict[str, Any]]:
    """What the doctor finds of csd0."""
    capsys.readouterr()
    got = cli.main(["doctor", "csd0", "--json", *arguments])
    out = capsys.readouterr().out
    assert got == status, out
    return json.loads(out)["checks"]


def test_a_healthy_board(csd0: Board, capsys: pytest.CaptureFixture[str]) -> None:
    said = {check["check"]: check["what"] for check in doctor(capsys, "--verify", status=0)}
    assert said["engine"].endswith("as here") and "not shared" in said["spool"] and said["device"]
    assert f"names, sizes and contents of all {IMAGES} files" in said["data"] and "make the same pixels" in said["pixels"]
    assert f"pillow 9.4.0 there, {PIL.__version__} here" in said["pixels"] and "give the same bits" in said["images"]
    assert said["kernel"].startswith("kernel of csd0: neon, cross-compiled with zig")
    assert cli.main(["status", "csd0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["status"]["versions"]["kernel"] == "neon"


@pytest.mark.slow  # test_a_healthy_board compares a few; tests/ddlp/deploy/test_parity.py all, with a process here
def test_the_committed_table_of_operators_is_what_the_board_makes(
    csd0: Board, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the table's Pillow on the host, all figures agree. Otherwise it has the same operators, all without difference."""
    every_operator(monkeypatch)
    capsys.readouterr()
    assert cli.main(["parity", "csd0", "--table"]) == 0
    made = capsys.readouterr().out
    committed = TABLE.read_text().split("## ddlp beside torchvision")[0]
    assert "pillow 9.4.0, machine armv7l" in committed and "pillow 9.4.0, machine armv7l" in made
    rows = [[line for line in text.splitlines() if line.startswith("| ")] for text in (made, committed)]
    if f"Host: {made.split('Host: ')[1].split('.  ')[0]}" in committed:
        assert rows[0] == rows[1]
    assert [row.split("|")[1] for row in rows[0]] == [row.split("|")[1] for row in rows[1]]


def test_the_cable_is_out(csd0: Board, capsys: pytest.CaptureFixture[str]) -> None:
    csd0.cable(False)
    try:
        checks = [check for check in doctor(capsys, status=1) if check["check"] != "this host"]
    finally:
        csd0.cable(True)
    assert checks[0]["check"] == "ssh" and "no SSH connection comes about" in checks[0]["what"]
    assert all(check["level"] == "bad" for check in checks) and "switched on" in checks[0]["way_out"]


def test_one_without_a_shared_spool(csd0: Board, images: Path) -> None:
    assert "not shared: batches travel over the network" in SAID["csd0"]
    dataset = pictures(images)
    loader = make_loader(dataset, "csd", csd="csd0")
    assert same(train(loader, step_s=0), train(make_loader(dataset, "cpu"), step_s=0)) and loader.report().batches_csd


@pytest.mark.slow  # pools/test_retire.py and faults/test_engine_dies.py kill engines here
def test_two_boards_of_which_one_is_killed_and_comes_back(csd0: Board, csd1: Board, images: Path) -> None:
    dataset = pictures(images)
    host = make_loader(dataset, "cpu")
    expected = [train(host, step_s=0) for _ in range(2)]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def told() -> list[str]:
            return [str(one.message) for one in caught if str(one.message).startswith("ddlp:")]

        two = make_loader(dataset, "wrr", csd=["csd0", "csd1"])
        assert same(train(two), expected[0]) and not told()
        assert two.report().batches_csd
        assert set(rates(two)) == {"csd0", "csd1"}, "both must have made batches"

        # One is killed in mid-epoch, like by a pulled plug. Then it boots, its engine starts, and it takes part again.
        def bring_back() -> None:
            csd1.start()
            assert cli.main(["start", "csd1"]) == 0

        booting = threading.Thread(target=bring_back)
        before: list[int] = []

        def while_it_runs(step: int) -> None:
            device = two._last.executor.ledger.devices["csd1"]  # type: ignore[union-attr]
            if step == 5:
                csd1.kill()
                until(lambda: not device.alive, 30, "csd1's end")
                before.append(rates(two)["csd1"].count)
                booting.start()
            if step == 20:
                until(lambda: device.alive, 120, "csd1's return")
                # Pretend that the host is so slow that a board's help pays until the end. Its real speed varies with the load.
                two._parts.life.rates.host.seconds = 60.0

        assert same(train(two, while_it_runs), expected[1])
        booting.join()
        assert [text for text in told() if "device csd1 is gone" in text], told()
        assert "csd1: it was gone, and is back" in two.report().notes
        assert rates(two)["csd1"].count > before[0], "it must have made batches again"


@pytest.mark.slow
def test_mte_over_two_boards(csd0: Board, csd1: Board, images: Path) -> None:
    dataset = pictures(images)
    loader = make_loader(dataset, "mte", csd=["csd0", "csd1"], ratio=0.5)
    assert same(train(loader), train(make_loader(dataset, "cpu"), step_s=0))
    assert loader.report().batches_csd >= IMAGES // BATCH // 10  # in the second half, where the host helps


def test_what_is_uninstalled_leaves_nothing(csd0: Board) -> None:
    assert csd0.engines()
    assert cli.main(["deploy", "--name", "csd0", "--uninstall"]) == 0
    assert not csd0.engines() and csd0.files() == BEFORE["csd0"]
