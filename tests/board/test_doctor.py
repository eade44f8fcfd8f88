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


@pytest.mark.slow  # tests/ddlp/deploy/test_doctor.py: test_the_data_sets_differ
def test_files_are_missing_or_changed(patient: Patient, ask: Callable[..., dict[str, Any]]) -> None:
    missing, changed, longer = (patient.there / path for path in patient.paths[3:6])
    missing.unlink()
    changed.write_bytes(changed.read_bytes()[:-20] + bytes(20))  # same size
    longer.write_bytes(longer.read_bytes() + b"x")
    try:
        answer = ask()
    finally:
        for path in patient.paths[3:6]:
            shutil.copy2(patient.here / path, patient.there / path)
    data = {one["what"]: one["way_out"] for one in answer["checks"] if one["check"] == "data"}
    assert list(data) == [
        "1 file missing in /data: " + patient.paths[3],
        "1 file of another size in /data: " + patient.paths[5],
        "1 file with other contents in /data: " + patient.paths[4],
    ]
    assert all("rsync -a" in way_out for way_out in data.values()) and "--checksum" in list(data.values())[2]
    assert answer["not_asked"] == ["images"]


@pytest.mark.slow  # tests/ddlp/deploy/test_doctor.py: test_no_python_and_no_pillow
def test_no_pillow_and_no_python(patient: Patient, ask: Callable[..., dict[str, Any]]) -> None:
    board = patient.board
    board.run("mv /usr/lib/python3/dist-packages/PIL /root/PIL")
    answer = ask()
    assert (answer["wrong"]["check"], answer["wrong"]["what"]) == ("device", "no Pillow")
    assert "python3-pil" in answer["first"] and "ddlp deploy --name csd0" in answer["first"]
    assert answer["not_asked"] == ["pixels", "images"]
    board.run("mv /root/PIL /usr/lib/python3/dist-packages/PIL; mv /usr/bin/python3 /root/python3")
    answer = ask()
    board.run("mv /root/python3 /usr/bin/python3")
    assert (answer["wrong"]["check"], answer["wrong"]["what"]) == ("device", "no Python")
    assert "apt-get install -y python3" in answer["first"]


@pytest.mark.slow  # tests/ddlp/deploy/test_checks.py has what is said; each deploy asks the device's df
def test_no_space(patient: Patient, ask: Callable[..., dict[str, Any]]) -> None:
    board = patient.board
    board.run("cat /dev/zero > /root/filled", check=False)
    try:
        answer = ask()
    finally:
        board.run("rm /root/filled")
    assert answer["wrong"]["check"] == "device" and " MB free for " in answer["wrong"]["what"]
    assert "Free some space there" in answer["first"]


@pytest.mark.slow  # tests/ddlp/deploy: test_each_fault_has_its_way_out, test_spools
def test_the_clock_is_wrong_and_the_spool_another(
    patient: Patient, ask: Callable[..., dict[str, Any]], change: Callable[..., None], tmp_path: Path
) -> None:
    """The board has the host's clock, but its `date` is changed to print another time."""
    board = patient.board
    board.run('printf \'#!/bin/sh\\nexec /bin/date -d "-2 hours" "$@"\\n\' > /usr/local/bin/date; chmod +x /usr/local/bin/date')
    change(host_spool=str(tmp_path))
    try:
        answer = ask(status=0)
    finally:
        board.run("rm /usr/local/bin/date")
    (clock,) = [one for one in answer["checks"] if "its clock" in one["what"]]
    assert clock["level"] == "warn" and "s behind this host's" in clock["what"] and "date -s" in clock["way_out"]
    assert abs(float(clock["what"].split()[3]) - 7200) < 100
    (spool,) = [one for one in answer["checks"] if one["check"] == "spool"]
    assert spool["level"] == "warn" and "is not seen by the device" in spool["why"]


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


@pytest.mark.slow  # tests/ddlp/deploy/test_doctor.py: test_ssh_is_down_and_the_engine_is_not
def test_the_host_key_changed(patient: Patient, ask: Callable[..., dict[str, Any]]) -> None:
    """ssh refuses to connect but the engine still answers: doctor says that ssh must be repaired."""
    known = patient.board.ssh_config.parent / "known_hosts"
    kept = known.read_text()
    words = kept.split()
    key = words[2]
    words[2] = key[:-8] + ("A" if key[-8] != "A" else "B") + key[-7:]
    known.write_text(" ".join(words[:3]) + "\n")
    try:
        answer = ask()
    finally:
        known.write_text(kept)
    assert answer["wrong"]["check"] == "ssh" and "its host key is not the one that this host knows" in answer["wrong"]["what"]
    assert [one["level"] for one in answer["checks"] if one["check"] == "handshake"][0] == "ok"
    assert "data" in answer["not_asked"] and "ssh-keygen" in answer["first"]
