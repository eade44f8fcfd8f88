"""An optional C library: one call decodes a JPEG's region, resamples and flips it into the batch, with Pillow's exact bits.

Nothing here is required. Without the compiled library, or if its pixels differ from this Pillow's, Pillow does the work.
`DDLP_KERNEL=off` switches it off, `DDLP_KERNEL=/path/to/file.so` names another library.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Optional, Tuple

if TYPE_CHECKING:
    from csd_engine.kernels.library import Kernel

__all__ = ["kernel", "why_not"]

_lock = threading.RLock()
_loading = False  # under the lock
_outcome: Optional[Tuple[Optional["Kernel"], str]] = None  # the kernel, and why there is none


def _in_child() -> None:
    """A fork does not wait for a thread of its parent that was loading the kernel."""
    global _lock, _loading
    _lock, _loading = threading.RLock(), False


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)


def kernel() -> Optional[Kernel]:
    """Return the kernel, loaded and compared with Pillow at the first call of the process; None: Pillow does the work."""
    return (_outcome or _find())[0]


def why_not() -> str:
    """Return in one line why there is no kernel and how to get one; "" if there is one."""
    return (_outcome or _find())[1]


def _find() -> Tuple[Optional[Kernel], str]:
    global _outcome, _loading
    from csd_engine.kernels.build import KernelError  # imported here: `python -m csd_engine.kernels.build` runs that module

    with _lock:
        if _loading:  # its first comparison opens images, and who postpones those asks for the kernel
            return None, "it is being loaded"
        if _outcome is None:
            _loading = True
            try:
                _outcome = _load(), ""
            except KernelError as error:
                _outcome = None, str(error)
            finally:
                _loading = False
        return _outcome


def _load() -> Kernel:
    from csd_engine.kernels.build import LIBRARY, KernelError, sources_hash

    setting = os.environ.get("DDLP_KERNEL", "")
    if setting == "off":
        raise KernelError("switched off by DDLP_KERNEL=off. Unset it to use the kernel")
    path = setting or LIBRARY
    if not os.path.exists(path):
        raise KernelError(
            f"{path} is missing. "
            + (
                "Correct DDLP_KERNEL"
                if setting
                else "With a C compiler (apt install gcc libc6-dev; without root: pip install ziglang): "
                "python -m csd_engine.kernels.build"
            )
        )
    try:
        from PIL import _imaging
    except ImportError as error:  # every use of Pillow will fail in the same way
        raise KernelError(f"Pillow does not run: {error}. Install it again") from error
    # Imported only now: numpy and Pillow's plugins are not needed to report that there is no library.
    from csd_engine.kernels.library import Kernel, rebuild
    from csd_engine.kernels.selfcheck import first_difference

    candidate = Kernel(path, _imaging.__file__)
    if not setting and candidate.sources != sources_hash():  # an update did not build the library again
        raise KernelError(f"{path} was built from other sources than lie beside it. Build it again: {rebuild(path)}")
    difference = first_difference(candidate)
    if difference:
        raise KernelError(f"{path} does not agree with Pillow: {difference}. Pillow does the work; please report this")
    return candidate
