"""The kernel on a device: compiled there, else cross-compiled on this host, else none, and then Pillow does the work.

The host's compilers are those of Debian, else zig, which `pip install ziglang` brings.

A kernel is one file beside the engine's sources, and a line that says how it was made. Both are removed with their build. The
device first loads the file under another name, and compares its results with Pillow's there. Only then does the file get the
name under which the engine finds it.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from csd_engine.kernels.build import KernelError, build_kernel
from csd_engine.kernels.compilers import system, works, zig
from csd_engine.kernels.report import MADE, KernelReport
from ddlp.deploy.place import engine_module
from ddlp.deploy.shell import Shell, Slow

__all__ = ["CHOICES", "NotMade", "bring", "cross_compile", "look"]

CHOICES = ("auto", "device", "cross", "none")
_BUILD_TIMEOUT_S = 900.0  # a slow board
_LOOK_TIMEOUT_S = 120.0
_NO_COMPILER = 7  # exit status of our script
_ON_THE_DEVICE, _CROSS = "compiled on the device", "cross-compiled"

# The kernel is not linked to libc. Otherwise its symbols would need the versions of this host's glibc, and the device's may be
# older. Every Python process has already loaded the functions of libc that the kernel needs.
_ANY_GLIBC = ("-nolibc",)

# Target system -> its compiler on this host, and Debian's package of that compiler.
_COMPILERS = {
    "arm-linux-gnueabihf": ("arm-linux-gnueabihf-gcc", "gcc-arm-linux-gnueabihf"),
    "aarch64-linux-gnu": ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    "x86_64-linux-gnu": ("x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
}


class NotMade(Exception):
    """One way to make a kernel failed: the reason, and what to do about it."""

    def __init__(self, why: str, way_out: str = "") -> None:
        super().__init__(why)
        self.way_out = way_out


def look(shell: Shell, python: str, home: str, code: str = "current", library: str = "") -> KernelReport:
    """Ask the device which kernel it has; none if its engine is too old to have one.

    Args:
        shell: to it.
        python: the interpreter there.
        home: our directory there.
        code: the directory below `home` that holds the engine's package.
        library: a file to try in place of the one that the engine would load, or ``off``.

    Raises:
        ShellError: the connection failed.
    """
    given = f"DDLP_KERNEL={shlex.quote(library)} " if library else ""
    command = engine_module(python, home, "csd_engine.kernels.report", code=code, before=given)
    done = shell.run(command, timeout_s=_LOOK_TIMEOUT_S)
    try:
        return KernelReport(**json.loads(done.out))
    except (ValueError, TypeError):
        if done.status < 0 or done.status > 128:
            return KernelReport(why_not=f"the library makes Python end with status {done.status} there")
        said = done.err.strip().splitlines()
        return KernelReport(why_not=f"its engine says nothing about one ({said[-1] if said else f'status {done.status}'})")


def bring(
    shell: Shell, python: str, home: str, number: str, choice: str, waiting: Callable[[int], None]
) -> tuple[bool, str]:
    """Give an engine that was unpacked on the device its kernel, unless it has one.

    Args:
        shell: to the device.
        python: the interpreter there.
        home: our directory there.
        number: the engine's build.
        choice: ``auto``; ``device`` or ``cross``: in this way only; ``none``: take away what is there.
        waiting: as for `Shell.run`.

    Returns:
        Whether something there was changed; and a line for a person: which kernel it is, or why there is none and what would
        bring it.

    Raises:
        ShellError: the connection failed. If no kernel can be made, nothing is raised: the line says why.
    """
    code = f"engines/{number}"
    where = f"{home}/{code}/csd_engine/kernels"
    if choice == "none":
        line = "none, as you chose (--kernel none): Pillow does the work"
        return _remove(shell, where), line
    report = look(shell, python, home, code)
    if not report.system:  # a library that crashes Python leaves no answer: ask without it
        report = look(shell, python, home, code, "off")
    ways = {"device": (_ON_THE_DEVICE, _compile_there), "cross": (_CROSS, _compile_here)}
    wanted = [ways[choice]] if choice in ways else list(ways.values())
    if report.variant and any(report.made.startswith(how) for how, _ in wanted):
        return False, str(report)
    failed = []
    for _, way in wanted:
        try:
            how = way(shell, python, home, code, report, waiting)
            tried = look(shell, python, home, code, f"{where}/_kernel.new")
            if not tried.variant:
                raise NotMade(f"{how}, it does not work there ({tried.why_not})")
        except NotMade as error:
            shell.run(f"rm -f {shlex.quote(where)}/_kernel.new", timeout_s=60)
            failed.append(error)
            continue
        command = f"cd {shlex.quote(where)} && printf '%s\\n' {shlex.quote(how)} > {MADE} && mv -f _kernel.new _kernel.so"
        shell.must(command, "putting the kernel into its place", timeout_s=60)
        return True, str(dataclasses.replace(tried, made=how))
    if report.variant:  # the old one works, but was made in another way than is asked for now
        return False, f"{report}; not changed, because {'; '.join(map(str, failed))}"
    line = f"none: Pillow does the work, because {', and '.join(map(str, failed))}"
    ways_out = [error.way_out for error in failed if error.way_out]
    if ways_out:
        line += f". To make it faster: {', or '.join(ways_out)}; then deploy again"
    # Remove an old kernel that does not work: it could crash the workers.
    return _remove(shell, where), line


def _remove(shell: Shell, where: str) -> bool:
    """Take the library away; True if there was one."""
    command = f"cd {shlex.quote(where)} && ls _kernel.so 2> /dev/null; rm -f _kernel.so {MADE}"
    return bool(shell.must(command, "removing the kernel", timeout_s=60).strip())


def _compile_there(
    shell: Shell, python: str, home: str, code: str, _: KernelReport, waiting: Callable[[int], None]
) -> str:
    """Compile on the device; returns how."""
    new = f"{home}/{code}/csd_engine/kernels/_kernel.new"
    build = engine_module(python, home, "csd_engine.kernels.build", "--output", new, code=code)
    script = (
        "for cc in cc gcc clang; do command -v $cc > /dev/null && break; cc=; done; "
        f'[ -n "$cc" ] || exit {_NO_COMPILER}; {build} --compiler "$cc" > /dev/null && '
        'echo "$cc" && { $cc -dumpfullversion || $cc -dumpversion; } 2> /dev/null'
    )
    way_out = "apt-get install gcc libc6-dev there"
    try:
        done = shell.run(script, timeout_s=_BUILD_TIMEOUT_S, waiting=waiting)
    except Slow as error:
        raise NotMade(str(error).partition(". ")[0]) from None
    if done.status == _NO_COMPILER:
        raise NotMade("there is no C compiler on the device", way_out)
    if done.status:
        raise NotMade(f"compiling there failed ({_error_line(done.err or done.out)})", way_out)
    return f"{_ON_THE_DEVICE} with {' '.join(done.out.split())}"


def _compile_here(
    shell: Shell, _python: str, home: str, code: str, report: KernelReport, _waiting: Callable[[int], None]
) -> str:
    """Compile here for the device, and copy the library there; returns how."""
    with tempfile.TemporaryDirectory(prefix="ddlp-kernel-") as scratch:
        library = Path(scratch) / "kernel.so"
        how = cross_compile(report.system, library)
        shell.put(library.read_bytes(), f"{home}/{code}/csd_engine/kernels/_kernel.new", 0o755)
    return how


def cross_compile(target: str, library: Path) -> str:
    """Compile the kernel for a computer of another kind; returns the compiler's name and version.

    Args:
        target: GNU name of its system, `KernelReport.system`.
        library: the file to write.

    Raises:
        NotMade: there is no compiler for it here, or it failed.
    """
    if target not in _COMPILERS:
        raise NotMade("this host knows of no compiler for its system")
    compiler, package = ("cc", "gcc") if target == system() else _COMPILERS[target]
    way_out = f"apt-get install {package} or pip install ziglang on this host"
    command = compiler if works(compiler) else zig(target)
    if not command:
        raise NotMade(f"there is no {compiler} on this host", way_out)
    try:
        # zig links to symbols of an old glibc by itself.
        build_kernel(str(library), command, _ANY_GLIBC if command == compiler else ())
    except KernelError as error:
        raise NotMade(f"{shlex.split(command)[0]} failed ({_error_line(str(error))})", way_out) from None
    if command != compiler:
        return f"{_CROSS} with zig {importlib.metadata.version('ziglang')}"
    version = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    return f"{_CROSS} with {compiler} {version}"


def _error_line(text: str) -> str:
    """The most telling line of a tool's output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines or ["it says nothing"]
    return telling[0][-300:]
