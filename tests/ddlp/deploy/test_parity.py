"""Operators compared between this process and another Python, in which one of them was changed."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import csd_engine
from csd_engine.kernels import kernel
from csd_engine.tools.parity import pack_cases, read_results, run_cases
from csd_engine.transforms.parse import CONTAINERS, LEAVES
from ddlp.cli import main
from ddlp.deploy.parity import all_cases, compare, file_sources, operator_rows, pixel_sources
from ddlp.devices import address_book as book
from tests.ddlp.deploy.quick import every_operator
from tests.ddlp.deploy.sshd import Sshd


def test_every_operator_has_a_row():
    # User: what a user's file does is unknown. SizedViews: it only joins the images of other operators.
    names = {name for name in [*LEAVES, *CONTAINERS] if name not in ("User", "SizedViews")}
    text = json.dumps(operator_rows())
    assert {name for name in names if f'"op": "{name}"' in text} == names


@pytest.fixture(scope="module")
def here():
    """What this process makes of all cases."""
    sources, cases = all_cases()
    return run_cases(sources, [case for _, case in cases])


def test_every_case_runs_here_and_random_ones_draw(here):
    result, (_, cases) = here, all_cases()
    assert {cases[number][0] for number in result.errors} == {"decode JPEG cut off"}
    by_row = {}
    for number, (name, case) in enumerate(cases):
        if case.source == "tall" and number in result.pixels:
            by_row.setdefault(name, set()).add(result.digest(number))
    assert all(len(digests) > 1 for name, digests in by_row.items() if "Random" in name or "Cutout" in name)


def test_a_kernel_takes_part_and_makes_what_pillow_makes(need_kernel, here):
    found = kernel()
    sources, cases = all_cases()
    plain = [case for _, case in cases]
    jpeg = next(case for case in reversed(plain) if case.source == "JPEG 4:2:0")
    run_cases(sources, [jpeg])
    assert found.context().content() == sources["JPEG 4:2:0"].tobytes()
    request = pack_cases(sources, plain, [here.digest(number) for number in range(len(plain))])
    done = subprocess.run(
        [sys.executable, "-m", "csd_engine.tools.parity"], input=request, stdout=subprocess.PIPE, check=True,
        env={**os.environ, "DDLP_KERNEL": "off"},
    )  # fmt: skip
    there = read_results(done.stdout)
    assert (here.versions["kernel"], there.versions["kernel"]) == (found.variant, "none")
    assert there.same == set(here.pixels) and set(there.errors) == set(here.errors)


def test_files_are_of_the_kind_that_they_say():
    files = file_sources(pixel_sources())
    sampled = {"JPEG 4:2:0": (2, 2), "JPEG 4:2:2": (2, 1), "JPEG 4:4:4": (1, 1), "JPEG 4:4:0": (1, 2), "JPEG 4:1:1": (4, 1)}
    for name, (across, down) in sampled.items():
        content = files[name].tobytes()
        at = content.index(b"\xff\xc0") + 11
        assert content[at] == across << 4 | down, name
        assert Image.open(io.BytesIO(content)).convert("RGB").size
    assert b"\xff\xc2" in files["JPEG progressive"].tobytes() and b"\xff\xdd" in files["JPEG restart markers"].tobytes()
    again = file_sources(pixel_sources())
    assert all(again[name].tobytes() == files[name].tobytes() for name in files)


def test_rows_say_how_much_differs(here):
    cases, there = all_cases()[1], copy.deepcopy(here)
    number = next(n for n, (name, _) in enumerate(cases) if name == "Resize bicubic")
    there.pixels[number] = there.pixels[number].copy()
    there.pixels[number][3, 4, 0] ^= 2
    there.pixels[number][0, 0] ^= 1
    boxed = next(n for n, (name, _) in enumerate(cases) if name.startswith("Cutout"))
    there.boxes[boxed] = there.boxes[boxed] + 7
    failed = next(n for n, (name, _) in enumerate(cases) if name == "decode WebP")
    del there.pixels[failed]
    there.errors[failed] = "UnidentifiedImageError: cannot identify image file"
    found = {row.name: row for row in compare(here, there, cases).differing}
    assert list(found) == ["decode WebP", "Resize bicubic", "Cutout (boxes)"]
    assert (found["Resize bicubic"].differ, found["Resize bicubic"].largest) == (4, 2)
    assert (found["Cutout (boxes)"].differ, found["Cutout (boxes)"].largest) == (12, 7)
    assert "fails on the device only: Unidentified" in str(found["decode WebP"])


@pytest.fixture
def device(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device `board0` in the address book. Returns its engine's files, which a test may change."""
    monkeypatch.setenv("DDLP_HOME", str(tmp_path / "book"))
    home = tmp_path / "there"
    shutil.copytree(Path(csd_engine.__file__).parent, home / "engines/1/csd_engine")
    (home / "current").symlink_to("engines/1")
    book.save(
        book.DeviceRecord(
            "board0", "board", sshd.options, "tcp://127.0.0.1:1", (), None, str(tmp_path), str(home), sys.executable, "", "x"
        )
    )
    return home / "engines/1/csd_engine"


@pytest.mark.slow
def test_an_operator_that_differs_is_named(device, capsys, monkeypatch):
    every_operator(monkeypatch)
    steps = device / "transforms/primitives.py"
    text = steps.read_text()
    assert "return luma if" in text
    changed = text.replace("return luma if", "luma = luma.point(lambda v: v + (v < 200) * 3)\n        return luma if")
    assert "return KernelStep(StepKind.GRAY, " in changed
    steps.write_text(changed.replace("return KernelStep(StepKind.GRAY, ", "return None and ("))
    assert main(["parity", "board0"]) == 1
    said = capsys.readouterr().out
    assert "Grayscale, 1 channel: " in said and "% of values differ, by at most 3" in said
    assert "Resize" not in said and "Pad" not in said
    assert main(["parity", "board0", "--table"]) == 1
    table = capsys.readouterr().out
    assert f"numpy {np.__version__}, pillow {Image.__version__}" in table and "| Resize bicubic | 122,880 | 0 | 0 |" in table
    assert re.search(r"^\| Grayscale, 3 channels \| [\d,]+ \| [\d,]+ \(\d+\.\d+%\) \| 3 \|$", table, re.MULTILINE)


def test_a_device_that_can_t_compare_is_told(device, capsys):
    (device / "tools" / "parity.py").write_text("print('hello')")
    assert main(["parity", "board0"]) == 1
    assert "answered the comparison of operators with something else" in capsys.readouterr().err
    (device / "tools" / "parity.py").write_text("import something_that_is_not_there")
    assert main(["parity", "board0"]) == 1
    assert "comparing operators failed on board: " in capsys.readouterr().err
