"""`ddlp doctor` on an emulated ARM board. test_two_boards.py has a healthy one.

All tests here share one board. Each makes a fault, lets it be found, and repairs it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlp import cli
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord
from tests.board.boards import Board, raise_board
from tests.engine_process import make_jpegs


@dataclasses.dataclass
class Patient:
    """The board with its engine and a data set of its own, and the host's copy of that."""

    board: Board
    here: Path
    paths: list[str]

    @property
    def there(self) -> Path:
        """The board's data set, by a path of this host."""
        return self.board.data


@pytest.fixture(scope="module")
def patient(needs_boards: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDLP_HOME", str(tmp_path_factory.mktemp("book")))
        board = raise_board("d", "--disk", "100M")
        try:
            here = tmp_path_factory.mktemp("images")
            paths = make_jpegs(here, np.random.default_rng(5))
            shutil.copytree(here, board.data, dirs_exist_ok=True)
            arguments = ["deploy", board.name, "--name", "csd0", "-F", str(board.ssh_config), "--root", board.data_there]
            arguments += ["--host-root", str(here), "--spool", board.spool_there, "--host-spool", str(board.spool)]
            assert cli.main([*arguments, "--reserve-bytes", "10M"]) == 0
            yield Patient(board, here, paths)
        finally:
            board.down()


@pytest.fixture
def ask(patient: Patient, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run the doctor and return its answer; `wrong` is its first finding that prevents work."""

    def run(*arguments: str, status: int = 1) -> dict[str, Any]:
        capsys.readouterr()
        got = cli.main(["doctor", "csd0", "--json", *arguments])
        out = capsys.readouterr().out
        assert got == status, out
        answer = json.loads(out)
        answer["wrong"] = next((one for one in answer["checks"] if one["level"] == "bad"), None)
        return answer

    return run


@pytest.fixture
def change() -> Iterator[Callable[..., None]]:
    """Change the device's record for one test."""
    kept: list[DeviceRecord] = []

    def run(**changes: Any) -> None:
        kept.append(book.load("csd0"))
        book.save(dataclasses.replace(kept[-1], **changes))

    yield run
    for record in kept[:1]:
        book.save(record)


@pytest.mark.slow
def test_the_port_is_closed(
    patient: Patient, ask: Callable[..., dict[str, Any]], change: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    record = book.load("csd0")
    change(address=record.address.replace(patient.board.ip, patient.board.host_ip))  # nothing listens there
    wrong = ask()["wrong"]
    assert wrong["check"] == "handshake" and "is closed, though the engine runs" in wrong["why"]
    change(address=record.address)
    assert cli.main(["stop", "csd0"]) == 0
    answer = ask()
    assert cli.main(["start", "csd0"]) == 0
    assert answer["wrong"]["what"] == "the engine does not run" and answer["first"] == "ddlp start csd0"
    assert "handshake" in answer["not_asked"]


@pytest.mark.slow
def test_an_old_engine(patient: Patient, ask: Callable[..., dict[str, Any]]) -> None:
    """An engine with an older protocol, and an operator that has changed since it was deployed."""
    board, home = patient.board, book.load("csd0").home
    new = board.run(f"readlink {home}/current").stdout.strip()
    old = f"{home}/engines/{'0' * 32}"
    change = r"s/    luma = image.convert(.L.)/&.point(lambda v: v ^ 1)/; s/return KernelStep(StepKind.GRAY.*/return None/"
    board.run(
        f"cp -r {home}/{new} {old} && ln -sfn {old} {home}/current && cd {old}/csd_engine && "
        f"sed -i 's/^PROTOCOL = .*/PROTOCOL = 0/' protocol/codec.py && sed -i '{change}' transforms/primitives.py && "
        "grep -q '^PROTOCOL = 0' protocol/codec.py && grep -q 'v ^ 1' transforms/primitives.py"
    )
    try:
        cli.main(["stop", "csd0"])
        assert cli.main(["start", "csd0"]) == 0
        answer = ask()
    finally:
        board.run(f"ln -sfn {new} {home}/current; rm -r {old}")
        cli.main(["stop", "csd0"])
        assert cli.main(["start", "csd0"]) == 0
    (build,) = [one for one in answer["checks"] if one["check"] == "engine"]
    assert build["level"] == "warn" and "build 000000000000 is there" in build["what"]
    assert answer["wrong"]["check"] == "handshake" and "protocol" in answer["wrong"]["what"]
    assert answer["first"] == "ddlp deploy --name csd0 --upgrade"
    named = [one["what"] for one in answer["checks"] if one["check"] == "pixels"]
    assert named and all("Gray" in what or what.startswith(("RandomChoice", "RandomOrder")) for what in named)
    assert any(what.startswith("Grayscale, 1 channel: ") and "by at most 1" in what for what in named)
