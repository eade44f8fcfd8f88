import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import _imaging

from csd_engine.kernels import build, compilers
from csd_engine.kernels.library import Kernel
from tests.fuzz.kernel import FLAGS, objects
from tests.needs import c_compiler, lacks, need


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    """The kernel built from these sources: a copy of the installed one if it is that, by the present flags; else a new one."""
    path = tmp_path_factory.mktemp("kernel") / "kernel.so"
    installed, flags = Path(build.LIBRARY), max(Path(one.__file__).stat().st_mtime for one in (build, compilers))
    if installed.exists() and installed.stat().st_mtime > flags and build.sources_hash().encode() in installed.read_bytes():
        shutil.copy(installed, path)
    else:
        build.build_kernel(str(path), shlex.join(c_compiler()))
    return Kernel(str(path), _imaging.__file__)


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory):
    """The kernel's objects, compiled with the address and undefined-behaviour sanitizers."""
    directory = tmp_path_factory.mktemp("sanitized")
    need("cc")
    (directory / "empty.c").write_text("int main(void) { return 0; }")
    if subprocess.run(["cc", *FLAGS, "empty.c"], cwd=directory, stderr=subprocess.DEVNULL).returncode:
        lacks("sanitizers of cc", "apt-get install gcc libc6-dev")
    return objects(directory, flags=(*FLAGS, "-O0"))  # in less than half of the time


VARIANTS = ["c", "sse2", "avx2", "vnni"] if platform.machine() in ("x86_64", "AMD64", "i686") else ["c", "neon"]


@pytest.fixture(params=VARIANTS)
def variant(request, kernel):
    """Every variant for this processor in turn."""
    best = kernel.variant
    if not kernel.choose(request.param):
        pytest.skip(f"no {request.param} on this processor")
    yield request.param
    kernel.choose(best)
