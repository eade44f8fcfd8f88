import platform
import shutil

import pytest
from PIL import _imaging

from csd_engine.kernels.build import build_kernel
from csd_engine.kernels.library import Kernel


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    """The kernel built from these sources, whichever one is installed."""
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler (cc)")
    path = str(tmp_path_factory.mktemp("kernel") / "kernel.so")
    build_kernel(path)
    return Kernel(path, _imaging.__file__)


VARIANTS = ["c", "sse2", "avx2", "vnni"] if platform.machine() in ("x86_64", "AMD64", "i686") else ["c", "neon"]


@pytest.fixture(params=VARIANTS)
def variant(request, kernel):
    """Every variant for this processor in turn."""
    best = kernel.variant
    if not kernel.choose(request.param):
        pytest.skip(f"no {request.param} on this processor")
    yield request.param
    kernel.choose(best)
