"""Finding, checking and switching off the kernel, each in a process of its own; building it."""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, _imaging

from csd_engine.kernels.build import KernelError, build_kernel, main
from csd_engine.kernels.library import Kernel
from csd_engine.kernels.selfcheck import first_difference, jpegs
from tests.fuzz.pixels import region
from tests.needs import c_compiler, lacks, need, need_zig

ROOT = Path(__file__).resolve().parents[3]


def ask(program: str, **environment: str) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd="/",  # the working directory comes before PYTHONPATH
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done
    return done.stdout.strip()


WHY = "from csd_engine.kernels import kernel, why_not; print(kernel() is None, why_not())"


def test_a_built_kernel_is_used(kernel):
    assert ask(WHY, DDLP_KERNEL=kernel.path) == "False"


def test_it_can_be_switched_off(kernel):
    assert ask(WHY, DDLP_KERNEL="off") == "True switched off by DDLP_KERNEL=off. Unset it to use the kernel"


def test_a_missing_library_says_what_would_bring_it(tmp_path):
    assert ask(WHY, DDLP_KERNEL=str(tmp_path / "none.so")) == f"True {tmp_path}/none.so is missing. Correct DDLP_KERNEL"
    copy = tmp_path / "csd_engine"
    shutil.copytree(ROOT / "csd_engine", copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    answer = ask(WHY, DDLP_KERNEL="", PYTHONPATH=str(tmp_path))
    assert answer.startswith("True ") and answer.endswith("python -m csd_engine.kernels.build"), answer


def test_something_else_is_not_loaded(tmp_path):
    other = tmp_path / "other.so"
    other.write_bytes(b"no library")
    assert "cannot be loaded" in ask(WHY, DDLP_KERNEL=str(other))
    answer = ask(WHY, DDLP_KERNEL=_imaging.__file__)  # a library, but not the kernel
    assert "cannot be loaded" in answer and answer.endswith(f"csd_engine.kernels.build --output {_imaging.__file__}"), answer


def test_a_library_of_other_sources_is_not_used(kernel, tmp_path):
    """An update that copied only the sources leaves such a library."""
    copy = tmp_path / "csd_engine"
    shutil.copytree(ROOT / "csd_engine", copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(kernel.path, copy / "kernels" / "_kernel.so")
    assert ask(WHY, DDLP_KERNEL="", PYTHONPATH=str(tmp_path)) == "False"
    with open(copy / "kernels" / "src" / "resample" / "axis.c", "a") as source:
        source.write("/* mended */\n")
    answer = ask(WHY, DDLP_KERNEL="", PYTHONPATH=str(tmp_path))
    assert answer.startswith("True ") and "was built from other sources" in answer, answer
    assert ask(WHY, DDLP_KERNEL=str(copy / "kernels" / "_kernel.so"), PYTHONPATH=str(tmp_path)) == "False"  # as asked for


def test_a_kernel_that_differs_from_pillow_is_not_used(kernel, tmp_path):
    """A kernel that rounds differently, as with a wrong compiler flag."""
    sources = tmp_path / "csd_engine"
    shutil.copytree(ROOT / "csd_engine", sources, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    axis = sources / "kernels" / "src" / "resample" / "axis.c"
    text = axis.read_text()
    assert "0.5" in text
    axis.write_text(text.replace("0.5", "0.45"))
    compiler = shlex.join(c_compiler())
    ask(f"from csd_engine.kernels.build import *; build_kernel(LIBRARY, {compiler!r}, ['-O0'])", PYTHONPATH=str(tmp_path))
    answer = ask(WHY, DDLP_KERNEL="", PYTHONPATH=str(tmp_path))
    assert answer.startswith("True ") and "does not agree with Pillow: other pixels" in answer, answer


def test_the_self_check_passes_with_every_variant(kernel, variant):
    assert first_difference(kernel) == ""


def test_the_self_check_decodes_every_common_kind(kernel):
    samplings, context = [], kernel.context()
    for name, data in jpegs():
        image = Image.open(io.BytesIO(data))
        image.load()
        restarts = sum(data.count(bytes([0xFF, 0xD0 + k])) for k in range(8))
        samplings.append(([layer[1:3] for layer in image.layer], restarts, image.info.get("progressive", 0)))
        width, height = image.size
        out = np.empty((height, width, 3), np.uint8)
        assert context.take(data) and context.sample(region(0, 0, width, height), out) and context.own_entropy, name
        assert np.array_equal(out, np.asarray(image.convert("RGB"))), name
    rest = [(1, 1), (1, 1)]
    assert samplings == [
        ([(2, 2), *rest], 0, 0), ([(2, 1), *rest], 0, 0), ([(1, 1), *rest], 0, 0), ([(1, 2), *rest], 0, 0), ([(1, 1)], 0, 0),
        ([(2, 2), *rest], 5, 0), ([(1, 1), *rest], 0, 1),
    ]  # fmt: skip


@pytest.mark.slow
def test_the_self_check_passes_with_the_newest_wheels_of_pillow(kernel, tmp_path):
    """Each brings a libjpeg-turbo of its own."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    listed = subprocess.run([*pip, "index", "versions", "Pillow"], stdout=subprocess.PIPE, text=True, timeout=300).stdout
    versions = re.findall(r"Available versions: (.*)", listed)
    if not versions:
        lacks("a package index", "pip reaches none")
    for version in versions[0].split(", ")[:3]:
        wheel = [*pip, "install", "-q", "--no-deps", "--only-binary", ":all:", "--target", str(tmp_path / version)]
        subprocess.run([*wheel, f"Pillow=={version}"], check=True, timeout=300)
        told = ask(f"import PIL; print(PIL.__version__); {WHY}", DDLP_KERNEL="", PYTHONPATH=f"{tmp_path / version}:{ROOT}")
        assert told.split("\n") == [version, "False"]


def test_without_libjpeg_there_is_no_kernel(kernel):
    for missing in ("/nonexistent.so", "/no/utf8/\udce9.so"):
        with pytest.raises(KernelError, match="cannot be loaded through '/no"):
            Kernel(kernel.path, missing)
    program = f"from csd_engine.kernels.library import Kernel; Kernel({kernel.path!r}, {kernel.path!r})"  # once a process
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "is not libjpeg-turbo 1.5 or newer" in caught.value.stderr


def test_a_large_files_memory_is_not_kept_for_small_ones(kernel, tmp_path):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 64 << 20)
    (tmp_path / "small").write_bytes(b"no image")
    context = kernel.context()
    with open(tmp_path / "large", "rb") as large, open(tmp_path / "small", "rb") as small:
        before = resident()
        context.read(large.fileno(), 64 << 20)
        assert resident() - before > 60 << 20
        context.read(small.fileno(), 8)
        assert resident() - before < 4 << 20
    assert context.content() == b"no image"


def test_a_forked_child_decodes_with_its_own_copies(kernel):
    program = """
import io, os
import numpy as np
from PIL import Image
from csd_engine.kernels import kernel
from csd_engine.kernels.selfcheck import first_difference
found = kernel()
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if kernel() is found and first_difference(found) == "" else 1)
    assert first_difference(found) == ""
    assert os.waitpid(pid, 0)[1] == 0
print("both")
"""
    assert ask(program, DDLP_KERNEL=kernel.path) == "both"


def test_importing_loads_nothing():
    program = "import sys, csd_engine.kernels; print([m for m in ('numpy', 'PIL', 'ctypes', 'subprocess') if m in sys.modules])"
    assert ask(program) == "[]"


def test_no_compiler_is_told_in_one_line(tmp_path, capsys):
    with pytest.raises(KernelError, match="there is no C compiler named 'nonesuch'. Install one"):
        build_kernel(str(tmp_path / "k.so"), "nonesuch")
    assert main(["--compiler", "nonesuch", "--output", str(tmp_path / "k.so")]) == 1
    assert capsys.readouterr().err.startswith("no kernel: there is no C compiler named 'nonesuch'")
    assert not list(tmp_path.iterdir())


def test_what_the_compiler_says_is_quoted(tmp_path):
    compiler = shlex.join(c_compiler())
    with pytest.raises(KernelError, match="(?s)(cc|zig) failed .exit status.*no-such-flag"):
        build_kernel(str(tmp_path / "k.so"), compiler, ["--no-such-flag"])
    with pytest.raises(KernelError, match="can't write"):
        build_kernel(str(tmp_path / "none" / "k.so"), compiler)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("compiler", ["nonesuch", *(pytest.param(one, marks=pytest.mark.slow) for one in ("cc", "zig"))])
def test_the_wheels_tag_says_whether_the_kernel_is_in_it(kernel, tmp_path, compiler):
    pytest.importorskip("setuptools.command.bdist_wheel", reason="needs setuptools 70.1 or newer")
    environment = {**os.environ, "CC": compiler}
    if compiler == "cc":  # as quickly as it can: what is compiled as it should be is the fixture's
        need("cc")
        environment["CC"] = str(tmp_path / "quick")
        (tmp_path / "quick").write_text('#!/bin/sh\nexec cc "$@" -O0\n')
        (tmp_path / "quick").chmod(0o755)
    if compiler == "zig":
        need_zig()
        environment.update(CC="", PATH=str(tmp_path))  # no compiler there
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "csd_engine", tmp_path / "csd_engine", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "csd_engine" / "kernels" / "_kernel.so").write_bytes(b"left behind by an editable install")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "bdist_wheel"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = subprocess.run([sys.executable, "-m", "zipfile", "-l", str(wheel)], stdout=subprocess.PIPE, text=True).stdout
    assert {"csd_engine/kernels/src/ddlp.h", "csd_engine/kernels/src/jpeg/decoder.h"} <= set(names.split())
    if compiler != "nonesuch":
        assert "-py3-none-linux_" in wheel.name and "csd_engine/kernels/_kernel.so" in names
        made = Kernel(str(next((tmp_path / "build").glob("lib*/csd_engine/kernels/_kernel.so"))), _imaging.__file__)
        assert first_difference(made) == ""
        if compiler == "zig":  # zig builds for other computers too: the wheel must then find out what this processor has
            assert re.fullmatch(r"compiled with zig [\d.]+", made.made) and made.variant == kernel.variant
            needed = re.findall(rb"GLIBC_(\d+)\.(\d+)", Path(made.path).read_bytes())
            assert needed and all((int(major), int(minor)) <= (2, 17) for major, minor in needed)
    else:
        assert wheel.name.endswith("-py3-none-any.whl") and "_kernel.so" not in names
        assert "no kernel, Pillow will do the work: there is no C compiler named 'nonesuch'" in done.stdout


FORK = """
import os, signal, threading
from csd_engine import kernels

held = threading.Event()

def hold():
    with kernels._lock:
        held.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(30)  # else a child that hangs would outlive the test
    kernels.kernel()
    os._exit(0)
raise SystemExit(os.waitpid(pid, 0)[1])
"""


def test_a_fork_does_not_wait_for_a_thread_of_its_parent():
    assert subprocess.run([sys.executable, "-c", FORK]).returncode == 0
