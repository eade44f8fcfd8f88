"""What a survey of a device means: each fault with its way out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddlp.deploy import checks
from ddlp.deploy.findings import Finding, Level
from ddlp.deploy.survey import Directory, PrivateFile, Python, Survey, modules

GIB = 1 << 30
PYTHON = Python(
    "/usr/bin/python3",
    (3, 11, 2),
    {"numpy": "1.24.2", "PIL": "9.4.0", "zmq": "24.0.1"},
    {},
    True,
    True,
    True,
    False,
)
SECRETS = PrivateFile("/etc/ddlp env", True, True, 0o600, "user")
PLACE = Directory("/spool", True, True, True, True, 50 * GIB)
GOOD = Survey(
    system="Linux", machine="armv7l", os="Debian GNU/Linux 12", user="user", uid=1000, home="/home/user/.ddlp/csd0",
    cores=2, memory_bytes=GIB // 2, available_bytes=GIB // 3, clock_ahead_s=0.3, place_home=PLACE, place_spool=PLACE,
    claimed=False, foreign_home="", foreign="", roots=(dataclasses.replace(PLACE, path="/data"),), environment=None,
    modules=modules(()), python=PYTHON, apt=True, root=None, systemd="user", current=None, whole=0,
    builds=(), settings=None, server_key=None, clients={}, operators=(), supervisor=None, state="",
)  # fmt: skip


def found(**changes: Any) -> list[Finding]:
    every = checks.check(dataclasses.replace(GOOD, **changes), GIB)
    return [one for one in every if one.level is not Level.OK]


def python(**changes: Any) -> Python:
    return dataclasses.replace(PYTHON, **changes)


def versions(**changes: str | None) -> dict[str, str | None]:
    return {**PYTHON.modules, **changes}


def test_a_good_device() -> None:
    assert found() == []
    assert all(one.what for one in checks.check(GOOD, GIB))


@pytest.mark.parametrize(
    ("changes", "level", "what", "way_out"),
    [
        (dict(python=None), "bad", "no Python", "sudo apt-get install -y python3 python3-numpy python3-pil python3-zmq"),
        (dict(python=None, uid=0), "bad", "no Python", "apt-get install -y python3"),
        (dict(python=python(version=(3, 7, 3))), "bad", "Python 3.7.3 at /usr/bin/python3", "--python /path/to/python3"),
        (dict(python=python(version=())), "bad", "does not run", "--bundle DIR"),
        (dict(python=python(modules=versions(PIL=None))), "bad", "no Pillow", "apt-get install -y python3-pil"),
        (dict(python=python(modules=versions(numpy=None)), apt=False), "bad", "no numpy", "--install pip (pip install numpy"),
        (dict(python=python(jpeg=False)), "bad", "without JPEG", "python3-pil"),
        (dict(python=python(curve=False)), "bad", "without CURVE", "python3-zmq"),
        (dict(python=python(modules=versions(PIL="8.1.2"))), "warn", "Pillow 8.1.2", "up to date"),
        (dict(system="FreeBSD"), "bad", "FreeBSD", "Linux"),
        (dict(available_bytes=60 << 20), "warn", "60 MB free", "End what else runs"),
        (dict(clock_ahead_s=-7200.0), "warn", "7200 s behind", "timedatectl"),
        (dict(clock_ahead_s=95.0), "warn", "95 s ahead of", "timedatectl"),
        (dict(place_home=dataclasses.replace(PLACE, writable=False)), "bad", "can't be written", "--home DIR"),
        (dict(place_home=dataclasses.replace(PLACE, free_bytes=5 << 20)), "bad", "5 MB free", "--home DIR"),
        (dict(foreign_home="thesis"), "bad", "/spool holds files that are not ddlp's: thesis", "--home /spool/ddlp"),
        (dict(place_spool=dataclasses.replace(PLACE, writable=False)), "bad", "spool /spool can't be written", "--spool DIR"),
        (dict(place_spool=dataclasses.replace(PLACE, is_directory=False)), "bad", "can't be written", "--spool DIR"),
        (dict(foreign="job-4711"), "bad", "spool /spool holds files that are not ddlp's: job-4711", "--spool /spool/ddlp"),
        (dict(place_spool=dataclasses.replace(PLACE, free_bytes=GIB)), "bad", "1024 MB free", "--reserve-bytes 100M"),
        (dict(place_spool=dataclasses.replace(PLACE, free_bytes=GIB + (99 << 20))), "warn", "99 MB for batches", "Free some"),
        (dict(roots=(dataclasses.replace(PLACE, exists=False),)), "bad", "is not there", "Mount it"),
        (dict(roots=(dataclasses.replace(PLACE, readable=False),)), "bad", "can't be read", "chmod"),
        (dict(environment=dataclasses.replace(SECRETS, exists=False, is_file=False)), "bad", "no such file", "Write it there"),
        (dict(environment=dataclasses.replace(SECRETS, is_file=False)), "bad", "it is no file", "--environment none"),
        (dict(environment=dataclasses.replace(SECRETS, mode=0o640)), "bad", "has mode 640", "chmod 600 '/etc/ddlp env'"),
        (dict(environment=dataclasses.replace(SECRETS, owner="root")), "bad", "belongs to root", "chown user '/etc/ddlp env'"),
        (dict(environment=SECRETS, user="root"), "bad", "belongs to user", "chown root"),
        (dict(systemd=None), "warn", "no systemd", "ddlp start"),
    ],
)
def test_each_fault_has_its_way_out(changes: dict[str, Any], level: str, what: str, way_out: str) -> None:
    (finding,) = found(**changes)
    assert finding.level.value == level and what in finding.what and way_out in finding.way_out and finding.why
    assert str(finding).startswith(f"{level:4} ") and f"-> {finding.way_out}" in str(finding)


def test_obstore_is_wanted_with_urls_alone() -> None:
    wanted = modules(["/data", "s3://bucket/"])
    assert wanted == (*modules(["/data"]), "obstore")
    new, old = python(modules=versions(obstore=None)), python(version=(3, 9, 2), modules=versions(obstore=None))
    (finding,) = found(modules=wanted, python=new)
    assert finding.what == "no obstore" and "--root URL" in finding.why and "apt-get" not in finding.way_out
    assert "--install pip (pip install obstore" in finding.way_out and "Debian has no package" in finding.way_out
    assert "3.11 or newer" not in finding.way_out and "3.11 or newer: --python" in found(modules=wanted, python=old)[0].way_out
    both = found(modules=wanted, python=python(modules=versions(numpy=None, obstore=None)))
    assert all("apt-get install -y python3-numpy (there" in one.way_out for one in both) and len(both) == 2
    assert found(modules=wanted, python=python(modules=versions(obstore="0.12.1"))) == []
    assert checks.missing(dataclasses.replace(GOOD, python=None, modules=wanted)) == ("python", *wanted)


def test_a_file_with_credentials_is_the_engine_s_user_s() -> None:
    assert found(environment=SECRETS) == [] == found(environment=dataclasses.replace(SECRETS, mode=None, owner=""))
    assert found(environment=dataclasses.replace(SECRETS, owner="root"), user="root", uid=0) == []


def test_a_module_that_is_there_but_broken_says_why() -> None:
    (finding,) = found(python=python(modules=versions(PIL=None), broken={"PIL": "libjpeg.so.62: cannot open"}))
    assert "libjpeg.so.62" in finding.why


@pytest.mark.parametrize(
    ("loaded", "replaced"),
    [
        ({"python": "3.11.2", "numpy": "1.24.2", "pillow": "9.4.0", "pyzmq": "24.0.1", "machine": "armv7l"}, ""),
        ({"python": "3.11.2+", "pillow": "9.4.0"}, ""),
        ({}, ""),
        ({"python": "3.11.2", "pillow": "9.3.0"}, "pillow 9.3.0 -> 9.4.0"),
        ({"python": "3.11.21", "pyzmq": "24.0.1"}, "python 3.11.21 -> 3.11.2"),
    ],
)
def test_what_the_engine_has_loaded_and_is_another_now(loaded: dict[str, str], replaced: str) -> None:
    assert checks.replaced(PYTHON, loaded) == replaced and not checks.replaced(None, loaded)
