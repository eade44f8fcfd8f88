"""The whole kernel over damaged files, under sanitizers and beside Pillow; `python -m scripts.fuzz_kernel` runs for longer."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.fuzz_kernel import FLAGS, SOURCES, compare, fuzz, pillows_libjpeg


def needs_sanitizers(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler (cc)")
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }")
    if subprocess.run(
        ["cc", *FLAGS, "-o", str(tmp_path / "empty"), str(tmp_path / "empty.c")], stderr=subprocess.DEVNULL
    ).returncode:
        pytest.skip("the C compiler has no sanitizers (Debian, Ubuntu: apt install libasan8 libubsan1)")


def test_wild_steps_make_no_byte_go_astray(tmp_path):
    needs_sanitizers(tmp_path)
    program, driver = tmp_path / "wild_steps", Path(__file__).with_name("wild_steps.c")
    sources = [str(driver), *map(str, sorted(SOURCES.glob("*.c")))]
    subprocess.run(["cc", *FLAGS, f"-I{SOURCES}", "-o", str(program), *sources, "-lm", "-ldl"], check=True)
    done = subprocess.run([str(program), "3", "20000"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    found = re.search(r"(\d+) done, (\d+) refused", done.stdout)
    assert found and min(map(int, found.groups())) > 3000


def test_damaged_files_make_no_byte_go_astray(tmp_path):
    needs_sanitizers(tmp_path)
    if not pillows_libjpeg():
        pytest.skip("this Pillow has its libjpeg inside itself")
    done = fuzz(tmp_path, rounds=2500, seed=0)
    assert done.returncode == 0, done.stdout[-6000:]
    found = re.search(r"(\d+) made, (\d+) refused", done.stdout)
    assert found and min(map(int, found.groups())) > 1000


def test_damaged_tables_headers_and_bytes_have_pillows_pixels_or_are_left_to_it(kernel):
    found = compare(kernel, 5, lambda files: files >= 5000)
    assert found.differs is None, f"file {found.files}: {found.why}"
    assert 500 < found.alike < 4500
