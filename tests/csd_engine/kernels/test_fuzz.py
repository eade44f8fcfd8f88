"""The whole kernel over damaged files, under sanitizers and beside Pillow; `python -m tests.fuzz.kernel` runs for longer."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.kernel import build, compare, fuzz, pillows_libjpeg


@pytest.mark.parametrize("driver, rounds", [("wild_steps.c", 2000), ("wild_pixels.c", 2000)])
def test_wild_numbers_make_no_byte_go_astray(sanitized, tmp_path, driver, rounds):
    program = build(Path(__file__).with_name(driver), sanitized, tmp_path)
    done = subprocess.run([str(program), "3", str(rounds)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    found = re.search(r"(\d+) done, (\d+) refused", done.stdout)
    assert found and min(map(int, found.groups())) > 300


def test_damaged_files_make_no_byte_go_astray(sanitized, tmp_path):
    if not pillows_libjpeg():
        pytest.skip("this Pillow has its libjpeg inside itself")
    done = fuzz(sanitized, tmp_path, rounds=2500, seed=0)
    assert done.returncode == 0, done.stdout[-6000:]
    found = re.search(r"(\d+) made, (\d+) refused, \d+ turned, (\d+) in a batch", done.stdout)
    assert found and min(map(int, found.groups()[:2])) > 1000 and int(found[3]) > 100


def test_damaged_tables_headers_and_bytes_have_pillows_pixels_or_are_left_to_it(kernel):
    found = compare(kernel, 5, lambda files: files >= 5000)
    assert found.differs is None, f"file {found.files}: {found.why}"
    assert 500 < found.alike < 4500
