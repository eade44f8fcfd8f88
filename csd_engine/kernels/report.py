"""`python -m csd_engine.kernels.report`: this computer's kernel, loaded and checked as the engine's workers do it, as JSON.

It also tells for which system a library for this computer must be compiled.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass

from csd_engine.kernels import kernel, why_not
from csd_engine.kernels.compilers import system

__all__ = ["MADE", "KernelReport", "main", "report"]

MADE = "_kernel.txt"  # beside a library that was copied here: a line that says how it was made


@dataclass(frozen=True)
class KernelReport:
    """What is known of a computer's kernel.

    Attributes:
        variant: the instruction set of its inner loops: "vnni", "avx2", "sse2", "neon", "c"; empty: there is no kernel.
        libjpeg: Pillow's libjpeg, by which it decodes: "libjpeg-turbo 2.1.5".
        why_not: why there is no kernel, and how to get one.
        made: how the library was made, from the file beside it, else from the library itself; empty: not known.
        system: GNU name of the system that this interpreter is compiled for, "arm-linux-gnueabihf"; empty: we don't know it.
    """

    variant: str = ""
    libjpeg: str = ""
    why_not: str = ""
    made: str = ""
    system: str = ""

    def __str__(self) -> str:
        if not self.variant:
            return f"none, Pillow does the work ({self.why_not})"
        return f"{self.variant}, {self.made or 'compiled at installation'}, decodes with Pillow's {self.libjpeg}"


def _libjpeg() -> str:
    from PIL import features

    return f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}"


def report() -> KernelReport:
    """Return what is known of this computer's kernel."""
    try:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), MADE), encoding="utf-8") as stream:
            line = stream.read().strip()
    except OSError:
        line = ""
    native = kernel()
    return KernelReport(
        variant="" if native is None else native.variant,
        libjpeg="" if native is None else _libjpeg(),
        why_not=why_not(),
        made=line or ("" if native is None else native.made),
        system=system(),
    )


def main() -> int:
    """Print the report; return the exit status."""
    print(json.dumps(asdict(report())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
