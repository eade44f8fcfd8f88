"""What a survey of a device means: findings, each with its way out. Pure: looks at the survey alone."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping

from ddlp.deploy.findings import Finding, bad, ok, warn
from ddlp.deploy.shell import number_in
from ddlp.deploy.survey import Directory, PrivateFile, Python, Survey

__all__ = ["APT_PACKAGES", "MIB", "PIP_NAMES", "check", "check_python", "missing", "replaced"]

MIB = 1 << 20
APT_PACKAGES = {"python": "python3", "numpy": "python3-numpy", "PIL": "python3-pil", "zmq": "python3-zmq"}
PIP_NAMES = {"numpy": "numpy", "PIL": "Pillow", "zmq": "pyzmq", "obstore": "obstore"}
_TESTED = {"numpy": (1, 24), "PIL": (9, 4), "zmq": (24,), "obstore": (0, 12)}
_OBSTORE_PYTHON = (3, 11)  # and newer: PyPI's wheels of obstore 0.12
_HOME_BYTES = 16 * MIB  # the engine, twice, and its logs
_WORKER_BYTES = 64 * MIB  # an interpreter with numpy and Pillow, and one large image
_ENGINE_BYTES = 64 * MIB
_CLOCK_S = 30.0


def missing(survey: Survey) -> tuple[str, ...]:
    """What has to be installed: of ``python`` and the modules that the engine needs."""
    if survey.python is None or not survey.python.new_enough:
        return ("python", *survey.modules)
    return survey.python.missing


def check(survey: Survey, reserve_bytes: int) -> Iterator[Finding]:
    """Everything about a device that can be told before anything is put there.

    Args:
        survey: of it.
        reserve_bytes: free bytes that the engine leaves on the spool's disk.
    """
    yield _check_machine(survey)
    yield from check_python(survey)
    yield _check_memory(survey)
    yield _check_clock(survey)
    yield _check_home(survey)
    yield _check_spool(survey.place_spool, survey.foreign, reserve_bytes)
    for root in survey.roots:
        yield _check_root(root)
    if survey.environment is not None:
        yield _check_environment(survey.environment, survey.user)
    yield _check_boot(survey)


def _check_machine(survey: Survey) -> Finding:
    what = f"{survey.machine}, {survey.os or survey.system}, {survey.cores} core{'s' * (survey.cores > 1)}"
    if survey.system != "Linux":
        return bad(f"{survey.system} on {survey.machine}", "the engine needs Linux", "Take a device that runs Linux.")
    return ok(what)


def check_python(survey: Survey) -> Iterator[Finding]:
    """The interpreter and what it must be able to import."""
    python = survey.python
    if python is None:
        yield bad("no Python", "the engine needs Python 3.8 or newer", _install(survey, missing(survey)))
        return
    version = ".".join(map(str, python.version))
    if not python.version:
        yield bad(
            f"{python.path} does not run", "the engine needs a Python that does",
            f"{_install(survey, ('python',))} If another one is there already: --python /path/to/python3.",
        )  # fmt: skip
    elif not python.new_enough:
        yield bad(
            f"Python {version} at {python.path}", "the engine needs 3.8 or newer",
            f"{_install(survey, missing(survey))} If a newer one is there already: --python /path/to/python3.",
        )  # fmt: skip
    else:
        yield ok(f"Python {version} at {python.path}")
        yield from _check_modules(survey, python)


def _check_modules(survey: Survey, python: Python) -> Iterator[Finding]:
    for name in survey.modules:
        called, version = PIP_NAMES[name], python.modules.get(name)
        if version is None:
            why = (
                f"it is there, but can't be imported ({python.broken[name]})"
                if name in python.broken
                else "the engine requests objects of a --root URL with it" if name == "obstore" else "the engine needs it"
            )
            yield bad(f"no {called}", why, _install(survey, python.missing))
        elif name == "PIL" and not python.jpeg:
            yield bad(f"Pillow {version} without JPEG", "the engine decodes JPEG with it", _install(survey, python.missing))
        elif name == "zmq" and not python.curve:
            yield bad(f"pyzmq {version} without CURVE", "the link is encrypted with it", _install(survey, python.missing))
        elif _numbers(version) < _TESTED[name]:
            oldest = ".".join(map(str, _TESTED[name]))
            yield warn(f"{called} {version}", f"older than what is tested ({oldest})", "Bring it up to date when you can.")
        else:
            yield ok(f"{called} {version}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(number for part in version.split(".")[:2] if (number := number_in(part)) is not None)


def replaced(python: Python | None, loaded: Mapping[str, str]) -> str:
    """The packages whose installed version differs from the one that the running engine has loaded; empty: none.

    Args:
        python: as it was found there.
        loaded: the versions that the engine tells.
    """
    if python is None:
        return ""
    now = {PIP_NAMES[name].lower(): version for name, version in python.modules.items()}
    now["python"] = ".".join(map(str, python.version))  # without a suffix such as + or rc1
    was = {**loaded, "python": "".join(re.findall(r"^[\d.]+", loaded.get("python", "")))}
    return ", ".join(
        f"{name} {was[name]} -> {version}"
        for name, version in now.items()
        if version and was.get(name) not in (None, "", version)
    )


def _install(survey: Survey, names: tuple[str, ...]) -> str:
    """How to install these packages with the tools that the device has."""
    packages = " ".join(APT_PACKAGES[name] for name in names if name in APT_PACKAGES)
    ways = []
    if survey.apt and packages:
        rights = "" if survey.uid == 0 else "sudo "
        ways.append(f"{rights}apt-get install -y {packages} (there; --install apt does it for you)")
    if "python" not in names:
        ways.append(f"--install pip (pip install {' '.join(PIP_NAMES[name] for name in names)}, in an environment of ours)")
    ways.append("without a network: --bundle DIR, a directory of .whl or .deb files for it")
    advice = "; or ".join(ways) + "."
    python = survey.python
    if "obstore" in names:
        advice += " Debian has no package of obstore."
        if python is not None and python.version < _OBSTORE_PYTHON:
            needed = ".".join(map(str, _OBSTORE_PYTHON))
            advice += f" What is tested of it needs Python {needed} or newer: --python PATH names another interpreter."
        advice += " Without a --root URL this host sends the objects' bytes, and nothing need be installed for it."
    return advice


def _check_memory(survey: Survey) -> Finding:
    total, available = survey.memory_bytes // MIB, survey.available_bytes // MIB
    what = f"{total} MB of memory, {available} MB free"
    if not total:
        return warn("memory unknown", "/proc/meminfo can't be read", "")
    if survey.supervisor is None and survey.available_bytes < _ENGINE_BYTES + _WORKER_BYTES:
        needed = (_ENGINE_BYTES + _WORKER_BYTES) // MIB
        return warn(what, f"an engine with one worker takes up to {needed} MB", "End what else runs there.")
    return ok(what)


def _check_clock(survey: Survey) -> Finding:
    ahead_s = survey.clock_ahead_s
    if abs(ahead_s) <= _CLOCK_S:
        return ok(f"its clock is within {max(1, round(abs(ahead_s)))} s of this host's")
    return warn(
        f"its clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this host's",
        "the ages of files in a shared directory are misjudged, and far off apt and pip refuse certificates",
        "Set it there: timedatectl set-ntp true; or as root: date -s @SECONDS, with SECONDS from date +%s here.",
    )


def _check_home(survey: Survey) -> Finding:
    place = survey.place_home
    if not place.writable or (place.exists and not place.is_directory):
        return bad(f"{place.path} can't be written", "the engine is put there", "Give another directory: --home DIR.")
    if survey.foreign_home:
        return bad(
            f"{place.path} holds files that are not ddlp's: {survey.foreign_home}",
            "ddlp takes a directory of its own alone: it removes there what it has put there, by its names",
            f"Give another one, or one below it: --home {posixpath.join(place.path, 'ddlp')}.",
        )
    if place.free_bytes is not None and place.free_bytes < _HOME_BYTES:
        return bad(
            f"{place.free_bytes // MIB} MB free for {place.path}", f"the engine and its log take {_HOME_BYTES // MIB} MB",
            "Free some space there, or give a new directory on another disk: --home DIR.",
        )  # fmt: skip
    return ok(f"{place.path} can be written")


def _check_spool(place: Directory, foreign: str, reserve_bytes: int) -> Finding:
    if not place.writable or (place.exists and not place.is_directory):
        return bad(
            f"spool {place.path} can't be written", "finished batches are put there",
            "Make it, and give this user write access; or give another one: --spool DIR.",
        )  # fmt: skip
    if foreign:
        return bad(
            f"spool {place.path} holds files that are not ddlp's: {foreign}",
            "the engine takes a directory of its own alone: it removes files there, and hosts read some",
            f"Give another one, or one below it: --spool {posixpath.join(place.path, 'ddlp')}.",
        )
    free = place.free_bytes
    if free is not None and free <= reserve_bytes:
        return bad(
            f"{free // MIB} MB free for the spool {place.path}",
            f"the engine leaves {reserve_bytes // MIB} MB of that disk free, so it would make no batch",
            "Free some space there, or let it leave less: --reserve-bytes 100M; or give a spool on another disk: --spool DIR.",
        )
    if free is not None and free < reserve_bytes + 1024 * MIB:
        return warn(
            f"{(free - reserve_bytes) // MIB} MB for batches in the spool {place.path}",
            "a batch of 256 images of 224 x 224 takes 37 MB, and the engine stops when it is full",
            "Free some space there.",
        )
    return ok(f"spool {place.path}" + ("" if free is None else f", {free // MIB} MB free"))


def _check_root(place: Directory) -> Finding:
    if not place.exists:
        return bad(f"{place.path} is not there", "the engine reads the data set there", "Mount it, or correct --root.")
    if not place.is_directory or not place.readable:
        return bad(
            f"{place.path} can't be read", "the engine reads the data set there",
            "Correct --root, or let this user read it (chmod o+rx, or another user in user@host).",
        )  # fmt: skip
    return ok(f"data {place.path}")


def _check_environment(file: PrivateFile, user: str) -> Finding:
    what = f"--environment {file.path}"
    if not file.is_file:
        why = "it is no file" if file.exists else "there is no such file, or this user may not look for it"
        return bad(f"{what}: {why}", "the engine takes settings and credentials of storages from it",
                   "Write it there, a line NAME=VALUE for each; or correct the path; or --environment none.")  # fmt: skip
    if file.mode is not None and file.mode & 0o077:
        return bad(f"{what} has mode {file.mode:o}", "others than its owner may read or write it",
                   f"Type it there: chmod 600 {shlex.quote(file.path)}")  # fmt: skip
    if file.owner not in ("", user):  # root's is read by the account as well, which should not write it
        return bad(f"{what} belongs to {file.owner}", f"the engine of {user} must be able to read it, and nobody else",
                   f"As root, there: chown {user} {shlex.quote(file.path)}")  # fmt: skip
    return ok(f"{what}: only {file.owner or 'its owner'} reads it")


def _check_boot(survey: Survey) -> Finding:
    if survey.systemd is not None:
        return ok(f"systemd ({survey.systemd}) keeps the engine running")
    return warn(
        "no systemd",
        "a supervisor of ours keeps the engine running, but nothing starts it when the device boots",
        "After a reboot: ddlp start NAME.",
    )
