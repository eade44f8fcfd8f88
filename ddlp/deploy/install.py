"""Installing Python, numpy, Pillow, pyzmq and obstore on a device: by apt, by pip, or from files that come with us."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ddlp.deploy.checks import APT_PACKAGES, PIP_NAMES, missing
from ddlp.deploy.findings import DeviceNotReady, bad
from ddlp.deploy.shell import CommandFailed, Done, Shell
from ddlp.deploy.survey import Survey
from ddlp.errors import DDLPError

__all__ = ["install_apt", "install_bundle", "install_pip", "make_bundle"]

INSTALL_TIMEOUT_S = 3600.0  # compiling numpy on a board takes that long
_PLATFORMS = {
    "arm64": ("manylinux_2_28_aarch64", "manylinux2014_aarch64"),
    "amd64": ("manylinux_2_28_x86_64", "manylinux2014_x86_64"),
}

Waiting = Callable[[int], None]
"""Called about once a second with the bytes sent so far."""


def _run(shell: Shell, script: str, doing: str, way_out: str, waiting: Waiting) -> None:
    _judge(shell, shell.run(script, timeout_s=INSTALL_TIMEOUT_S, waiting=waiting), doing, way_out)


def _judge(shell: Shell, done: Done, doing: str, way_out: str) -> None:
    """Raise CommandFailed with what the tool said last, unless it went well."""
    if done.status == 0:
        return
    lines = [line.strip() for line in (done.out + "\n" + done.err).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("E:", "ERROR", "error", "dpkg: error")) or "No space left" in line]
    said = " / ".join((telling or lines)[-4:])[-600:] or f"exit status {done.status}"
    if "No space left" in said:
        way_out = "Free some space there"
    raise CommandFailed(f"{doing} failed on {shell.destination}: {said}. {way_out}.")


def install_apt(shell: Shell, survey: Survey, waiting: Waiting) -> None:
    """Install what is missing with apt-get; raises DeviceNotReady where that can't be done, CommandFailed where it fails."""
    packages = " ".join(APT_PACKAGES[name] for name in missing(survey) if name in APT_PACKAGES)
    if not packages:
        raise DeviceNotReady(
            shell.destination,
            bad("--install apt", "Debian has no package of obstore", "Use --install pip, or --bundle DIR with its wheel."),
        )
    if not survey.apt:
        raise DeviceNotReady(
            shell.destination,
            bad("--install apt", "there is no apt-get on the device", "Use --install pip, or --bundle DIR."),
        )
    root = _root(shell, survey, f"apt-get install -y {packages}")
    apt = f"{root}env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0"
    get = f"{apt} install --no-install-recommends {packages}"
    # apt's package lists may be missing or out of date: if the first try fails, they are fetched.
    script = f"{get} < /dev/null > /dev/null 2>&1 || {{ {apt} update < /dev/null && {get} < /dev/null; }}"
    _run(
        shell,
        script,
        f"apt-get install {packages}",
        "See that it has a network and working sources, or use --bundle DIR",
        waiting,
    )


def _root(shell: Shell, survey: Survey, command: str) -> str:
    if survey.root is None:
        raise DeviceNotReady(
            shell.destination,
            bad(
                f"{survey.user} may not install packages there",
                "it is not root, and sudo asks for a password",
                f"Type it there yourself: sudo {command}; or deploy as root@...; or use --install pip.",
            ),
        )
    return survey.root


def _modules(survey: Survey) -> tuple[str, ...]:
    """The packages that pip has to install; raises DeviceNotReady if the device has no Python for pip."""
    names = missing(survey)
    if "python" in names:
        raise DeviceNotReady(
            "the device",
            bad("no Python 3.8", "pip needs one", "Use --install apt, or --bundle DIR with .deb files."),
        )
    return tuple(PIP_NAMES[name] for name in names)


def install_pip(shell: Shell, survey: Survey, waiting: Waiting) -> None:
    """Install what is missing with pip, into HOME/venv, which sees the system's packages as well."""
    names = shlex.join(_modules(survey))
    python = survey.python
    # -I below: pip may list a package as installed although it can't be imported.
    assert python is not None
    there = shlex.quote(python.path)
    way_out = "See that it has a network, or use --install apt or --bundle DIR"
    venv = shlex.quote(f"{survey.home}/venv")
    doing = f"pip install {names}"
    if survey.machine.startswith(("armv6", "armv7")) and missing(survey) != ("obstore",):
        doing += " (for 32-bit ARM PyPI has no wheels: pip compiles, which takes long; prefer --install apt)"
    if "obstore" in missing(survey):
        names = f"--only-binary=obstore {names}"  # a compiler of Rust and an hour are no way for a device
        way_out += (
            f". Where PyPI has no obstore for this Python on {survey.machine}, leave the --root URL out: this host then sends "
            "the objects' bytes"
        )
    if python.own and python.pip:  # the user's own environment, or ours of an earlier run
        script = f"{there} -m pip install -q -I {names}"
    elif python.venv and python.ensurepip:
        script = f"{there} -m venv --system-site-packages {venv} && {venv}/bin/python -m pip install -q -I {names}"
    elif python.pip:
        # Debian marks its Python as externally managed, but --user does not change it. pip before 23.0.1 lacks the option.
        install = f"{there} -m pip install -q -I --user"
        script = (
            f"said=$({install} {names} 2>&1) || case $said in\n"
            f"*externally-managed-environment*) {install} --break-system-packages {names} ;;\n"
            '*) printf "%s\\n" "$said" >&2; false ;; esac'
        )
    else:
        raise DeviceNotReady(
            shell.destination,
            bad(
                f"{python.path} has neither pip nor ensurepip",
                "--install pip needs one of them",
                "apt-get install python3-venv there; or use --install apt; or --bundle DIR (it brings pip along).",
            ),
        )
    _run(shell, f"umask 022; {script} < /dev/null", doing, way_out, waiting)


def install_bundle(shell: Shell, survey: Survey, bundle: Path, waiting: Waiting) -> None:
    """Send the .deb and .whl files of a directory, and install from them; the device needs no network.

    apt or dpkg installs all the .deb files, as root. The pip among the .whl files installs those that fit and are missing.
    """
    debs = sorted(bundle.glob("*.deb"))
    wheels = sorted(bundle.glob("*.whl"))
    if not debs and not wheels:
        raise DDLPError(f"there are no .deb and no .whl files in {bundle}. Make some: ddlp deploy --make-bundle {bundle}.")
    names = "" if debs else shlex.join(_modules(survey))
    root = _root(shell, survey, "dpkg -i *.deb") if debs else ""
    where = shlex.quote(f"{survey.home}/bundle")
    _send(shell, [*debs, *wheels], where, waiting)
    if debs:
        # apt finds the right order. Without apt, a second round installs packages that depend on those of the first.
        how = f"{root}env DEBIAN_FRONTEND=noninteractive"
        apt = f"{how} apt-get -qq -y -o Dpkg::Use-Pty=0 --no-install-recommends install ./*.deb < /dev/null"
        dpkg = f"{how} dpkg -i --skip-same-version *.deb < /dev/null"
        configure = f"{how} dpkg --configure -a < /dev/null"
        script = f"cd {where} && {apt if survey.apt else f'{{ {dpkg}; {configure}; {dpkg} && {configure}; }}'}"
        way_out = "Put the packages that it names into the bundle as well"
        _run(shell, script, "installing the bundle's packages", way_out, waiting)
        names = " ".join(PIP_NAMES[name] for name in survey.modules) if wheels else ""
    if wheels:
        assert survey.python is not None or debs
        python = shlex.quote(survey.python.path if survey.python is not None else "python3")
        venv = shlex.quote(f"{survey.home}/venv")
        # --no-compile: all of numpy takes a board minutes. The user owns the environment, so Python compiles at import.
        script = (
            f"cd {where} && umask 022 && set -- pip-*.whl && "
            f"{{ [ -e {venv}/bin/python ] || {python} -m venv --without-pip --system-site-packages {venv}; }} && "
            '{ [ -e "$1" ] && export PYTHONPATH="$PWD/$1"; '
            f"{venv}/bin/python -m pip install -q -I --no-compile --no-index --find-links . {names}; }}"
        )
        way_out = (
            f"The bundle needs wheels for Python {'.'.join(map(str, survey.python.version[:2])) if survey.python else '3'} on "
            f"{survey.machine} of {names}, and pip's own"
        )
        _run(shell, script, "pip install from the bundle", way_out, waiting)
    shell.run(f"rm -rf {where}", timeout_s=60)


def _send(shell: Shell, files: Sequence[Path], where: str, waiting: Waiting) -> None:
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path in files:
                tar.add(path, path.name)
        stream.seek(0)
        script = f"rm -rf {where} && mkdir -p {where} && tar -xf - -C {where}"
        done = shell.run(script, input=stream, timeout_s=INSTALL_TIMEOUT_S, waiting=waiting)
    _judge(shell, done, "sending the bundle", "See that tar is there, and do the same again")


def make_bundle(directory: Path, arch: str, python: str, modules: Sequence[str]) -> list[str]:
    """Download wheels of these modules and of pip for a device, with this host's pip; returns the files' names.

    Args:
        directory: made if missing.
        arch: ``arm64`` or ``amd64``.
        python: the device's version, ``3.11``.
        modules: that the engine needs, as `PIP_NAMES` has them.

    Raises:
        DDLPError: pip has no such wheels, or can't get them.
    """
    if arch not in _PLATFORMS:
        raise DDLPError(
            f"--arch {arch}: PyPI has wheels for {', '.join(_PLATFORMS)} alone. For 32-bit ARM collect .deb files on a "
            "machine of that kind: apt-get download python3-numpy python3-pil python3-zmq, and what they depend on."
        )
    directory.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--only-binary=:all:",
        "--implementation",
        "cp",
        "-d",
        str(directory),
    ]
    command += ["--python-version", python]
    for platform in _PLATFORMS[arch]:
        command += ["--platform", platform]
    command += [*(PIP_NAMES[name] for name in modules), "pip"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        raise DDLPError(
            f"pip has not found wheels for Python {python} on {arch}: {' '.join(done.stderr.split())[-500:]}. Is "
            "--python-version the device's, and is there a network?"
        )
    return sorted(path.name for path in directory.glob("*.whl"))
