"""Each row of `ddlp parity` beside torchvision's own call: at the ends of its parameters here, in between by the bench."""

import math
from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks import torchvision_rows
from benchmarks.common import BenchFailed
from benchmarks.torchvision_calls import rows_without_a_call
from benchmarks.torchvision_rows import all_names, compare_row
from csd_engine.transforms import warps
from tests.benchmarks.bench import bench

ENDS = 4  # v1's operator and v2's, each with the least and the largest parameters


def test_every_row_has_torchvisions_or_timms_call():
    missing = [name for name in rows_without_a_call() if find_spec("timm") or not name.startswith("timm's")]
    assert missing == ["Cutout (boxes)"]  # ddlp's own, in no other library
    assert len([name for name in all_names() if name.startswith("decode ")]) == 24


@pytest.mark.parametrize("part", range(8))
@pytest.mark.some(3)
def test_no_row_differs_by_ddlps_fault(part):
    for name in all_names()[part::8]:
        found = compare_row(name, 1 if "Blur" in name and "JPEG" not in name else ENDS)
        assert found.right, found
        assert found.values or found.refused, found


FAULTS = {  # what a row's numbers would be with this change, and a row that must notice
    "sines off by a last bit": (
        lambda patch: patch(warps, "sine_cosine", lambda x: (math.nextafter(math.sin(x), 9), math.cos(x))),
        "RandomAffine bilinear",
    ),
    "another pixel": (
        lambda patch: patch(torchvision_rows, "run_cases", changed(torchvision_rows.run_cases)), "Pad edge",
    ),
}  # fmt: skip


def changed(run_cases):
    def run(*arguments):
        result = run_cases(*arguments)
        result.pixels[0] = np.array(result.pixels[0])
        result.pixels[0].flat[0] ^= 1
        return result

    return run


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_ours_is_called_ours(fault, monkeypatch):
    change, name = FAULTS[fault]
    change(monkeypatch.setattr)
    found = compare_row(name, 30)
    assert not found.right and found.whose["ddlp"] and 0 < found.differ < found.values / 100
    result = torchvision_rows.Table({}, [found])
    assert torchvision_rows.aims(result)[0].text.endswith("MISSED") and "ddlp: " in torchvision_rows.table(result)


def test_what_is_lapacks_is_called_lapacks():
    """Without distortion the map is the identity. torchvision's has dust of 1e-17, by which values are cut to one less."""
    found = compare_row("RandomPerspective bilinear", 1)
    assert found.right and found.largest <= 1 and set(found.whose) <= {"LAPACK"}


@pytest.mark.slow  # the rows by themselves are tested above
def test_the_command(capsys):
    assert bench(["torchvision_rows", "--draws", "2", "--rows", "Invert", "decode BMP"]) == 0
    said = capsys.readouterr().out
    assert "| decode BMP |  | 125,751 | 0 | 0 |  |" in said and "| Invert |" in said and "| all | |" in said
    assert bench(["torchvision_rows", "--rows", "Nothing"]) == 1
    assert "no row begins so" in capsys.readouterr().err
    with pytest.raises(BenchFailed, match="1 or more"):
        torchvision_rows.run(type("Options", (), {"draws": 0})())
