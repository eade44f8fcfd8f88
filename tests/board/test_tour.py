"""The chapter of docs/tour.md on a device, on the board that all tests share."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.board.boards import Board, state
from tests.tour import DEVICE, Chapter, Day, tour

EMULATOR = "./scripts/csd_emulator.sh "


@pytest.mark.slow  # test_two_boards.py deploys and trains too; here it takes the full time, in processes of its own
def test_a_device(board: Board, tmp_path: Path) -> None:
    """`up` and `down` are the fixture's, with a name of its own; all else is typed as it is written, with that name."""
    *before, device = tour()
    assert device.title == DEVICE
    its_own = [text.strip() for kind, text in device.blocks if text.startswith(EMULATOR)]
    assert its_own == [f"{EMULATOR}up", f"{EMULATOR}down --name csd0"]
    blocks = []
    for kind, text in device.blocks:
        if not text.startswith(EMULATOR):
            there = text.replace("/var/lib/ddlp-csd-emulator/csd0", str(state() / board.name))
            blocks.append((kind, there.replace("ddlp@csd0", f"ddlp@{board.name}")))
    day = Day(tmp_path)
    folder, script = (next(one for one in before if one.title == title) for title in ("A folder", "Your script, untouched"))
    day.follow(folder)
    day.follow(Chapter(script.title, script.blocks[:1]))  # train.py, which the device's script imports
    try:
        printed = day.follow(Chapter(DEVICE, tuple(blocks)))
    finally:
        if (tmp_path / "book/devices/csd0").exists():  # it has failed; the board is others' too
            day.follow(Chapter(DEVICE, (("bash", "ddlp deploy --name csd0 --uninstall"),)))
        shutil.rmtree(board.data / "photos", ignore_errors=True)
    assert re.findall(r"^epoch \d+: (\d+) samples", printed, re.MULTILINE) == ["160"]
