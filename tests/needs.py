"""What tests need of this machine and scripts/test.sh can't bring.

Where it is missing they are skipped, with a line that says what to install. With CI set in the environment they fail instead.
If DDLP_LACKING names a file, each test that was skipped so gets a line there: Debian's packages, a tab, the test. `.ci/run`
installs the packages and runs these tests again.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from typing import NoReturn

import pytest

from csd_engine.kernels import compilers

# Programs and files, and Debian's packages that have them.
_PACKAGES = {
    "cc": "gcc libc6-dev",
    "gcc": "gcc libc6-dev",
    "arm-linux-gnueabihf-gcc": "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "x86_64-linux-gnu-gcc": "gcc-x86-64-linux-gnu libc6-dev-amd64-cross",
    "qemu-arm-static": "qemu-user-static",
    "qemu-aarch64-static": "qemu-user-static",
    "/usr/include/jpeglib.h": "libjpeg-dev",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
    "ip": "iproute2",
    "systemd-analyze": "systemd",
    "slurmctld": "slurmctld slurmd slurm-client munge",
}
_LACKS, _INSTALL = "this machine lacks ", "apt-get install "


def which(program: str) -> str | None:
    """Where a program or file is, also one that only root usually runs; None if it is missing."""
    if os.path.isabs(program):
        return program if os.path.exists(program) else None
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _is_there(name: str) -> bool:
    if name in ("cc", "gcc") or name.endswith("-gcc"):
        return compilers.works(name)  # Debian's compilers also come without the C library's headers
    return which(name) is not None


def need(*names: str) -> None:
    """Skip the test if one of these programs and files is missing (names: `_PACKAGES`)."""
    missing = [name for name in names if not _is_there(name)]
    if missing:
        lacks(", ".join(missing), _INSTALL + " ".join(dict.fromkeys(_PACKAGES[name] for name in missing)))


def lacks(what: str, way_out: str) -> NoReturn:
    """Skip the test because something is missing; `way_out` says why, or what to do."""
    reason = f"{_LACKS}{what}: {way_out}"
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (CI is set, so this test may not be skipped)", pytrace=False)
    pytest.skip(reason)


def need_zig() -> None:
    """Skip the test without zig, which scripts/test.sh installs."""
    if not compilers.zig("arm-linux-gnueabihf"):
        lacks("zig", "pip install ziglang")


def c_compiler() -> list[str]:
    """Return the command of this machine's C compiler, or of zig, which scripts/test.sh installs."""
    if not (command := compilers.find()):
        lacks("a C compiler", f"{_INSTALL}{_PACKAGES['cc']}")
    return [*shlex.split(command), "-O2"]  # without, zig adds checks of its own


def report(terminal: pytest.TerminalReporter) -> None:
    """Print what to install for the tests that were skipped for what is missing; add them to the file of DDLP_LACKING."""
    skipped = [test for test in terminal.stats.get("skipped", []) if isinstance(test.longrepr, tuple)]
    reasons = [(test.longrepr[2], test.nodeid) for test in skipped]
    lacking = [(reason.partition(_INSTALL)[2], name) for reason, name in reasons if _LACKS in reason]
    if path := os.environ.get("DDLP_LACKING"):
        with open(path, "a") as file:
            file.writelines(f"{packages}\t{name}\n" for packages, name in lacking)
    for packages, count in sorted(Counter(packages for packages, _ in lacking).items()):
        install = f"{_INSTALL}{packages}" if packages else "see SKIPPED above"
        terminal.write_line(f"skipped for what this machine lacks: {count:3} ({install})")
