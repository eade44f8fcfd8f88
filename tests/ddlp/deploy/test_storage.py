"""Deployed engines that request objects themselves: with the device's own credentials, and for the hosts that may."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from torchvision.datasets import ImageFolder

from csd_engine.errors import EngineRefused
from ddlp import DDLPLoader, ImageObjects
from ddlp.devices import address_book as book
from ddlp.sources.engine import dataset_upload
from tests.ddlp.deploy.local_device import Device, ddlp
from tests.ddlp.dropin.small_sets import RANDOM, write_images
from tests.object_server import BUCKET, ObjectServer, files_below

obstore = pytest.importorskip("obstore")

TRAIN = f"s3://{BUCKET}/train/"
SECRET = "not to be seen anywhere"  # of ObjectServer.config


@pytest.fixture
def files(base: Path) -> Path:
    """The same images as files, which no engine may read."""
    write_images(base / "files")
    return base / "files"


@pytest.fixture
def server(files: Path) -> Iterator[ObjectServer]:
    """For the host alone."""
    with ObjectServer(files_below(files, "train/")) as one:
        yield one


@pytest.fixture
def theirs(files: Path) -> Iterator[ObjectServer]:
    """For the device alone."""
    with ObjectServer(files_below(files, "train/")) as one:
        yield one


@pytest.fixture
def secrets(base: Path, theirs: ObjectServer) -> Path:
    """The device's file with the endpoint and credentials."""
    path = base / "secrets"
    path.write_text("".join(f"AWS_{name.upper()}={value}\n" for name, value in theirs.config(region="eu-north-1").items()))
    path.chmod(0o600)
    return path


def arguments(device: Device, *more: str) -> list[str]:
    return [
        "deploy", "board", "--name", "csd0", *device.sshd.options, "--spool", str(device.spool), "--listen-port",
        str(device.port), "--reserve-bytes", "1M", "--workers", "1", "--kernel", "none", *more,
    ]  # fmt: skip


def images_asked(server: ObjectServer) -> set[str]:
    return {line.split()[1] for line in server.requests if ".jpg" in line.partition("\r")[0].lower()}


def epoch(server: ObjectServer, files: Path) -> DDLPLoader:
    """Train with the device; the batches are those of the files, and the device has made them."""
    dataset = ImageObjects(TRAIN, RANDOM, config=server.config())
    loader = DDLPLoader(dataset, 4, shuffle=True, seed=3, strategy="csd", csd="csd0")
    plain = DDLPLoader(ImageFolder(str(files), RANDOM), 4, shuffle=True, seed=3)
    both = []
    for one in (loader, plain):
        torch.manual_seed(1)
        both.append(sorted((targets.tolist(), images.numpy().tobytes()) for images, targets in one))
    assert both[0] == both[1]
    return loader


def test_the_device_requests_the_objects_with_its_own_credentials(
    device: Device, server: ObjectServer, theirs: ObjectServer, files: Path, secrets: Path, base: Path, capsys, monkeypatch
) -> None:
    given = arguments(device, "--root", TRAIN[:-1], "--environment", str(secrets))
    told = ddlp(capsys, *given)
    assert f"data {TRAIN} answers: class0/000.jpg is there" in told and "no bits were compared" in told
    assert f"--environment {secrets}: only" in told and book.load("csd0").urls == (TRAIN,)
    theirs.requests.clear()
    loader = epoch(server, files)
    assert loader.report().batches_csd == len(loader)
    assert len(images_asked(theirs)) == 41 and len(images_asked(server)) < 41  # the probes' samples alone
    assert "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0")
    told += ddlp(capsys, "doctor", "csd0") + ddlp(capsys, "status", "csd0") + ddlp(capsys, "logs", "csd0")
    assert told.count(f"data {TRAIN} answers") == 2 and "there are no images to compare" in told

    # Another host has a directory alone.
    monkeypatch.setenv("DDLP_HOME", str(base / "another book"))
    more = ddlp(capsys, *arguments(device, "--root", str(device.data_there), "--host-root", str(device.data_here)))
    assert f"ok   obstore {obstore.__version__}" in more  # the engine that it shares needs it
    theirs.requests.clear()
    loader = epoch(server, files)
    assert loader.report().batches_csd == len(loader) and not theirs.requests
    with monkeypatch.context() as patch:
        patch.setattr(dataset_upload, "below", lambda *_: True)  # it asks for them all the same
        with pytest.raises(EngineRefused, match=f"{TRAIN} is below none of the URLs that the engine may read for this host"):
            epoch(server, files)
    assert not theirs.requests

    monkeypatch.setenv("DDLP_HOME", str(base / "book"))
    assert epoch(server, files).report().batches_csd and len(images_asked(theirs)) == 41
    for path in (*device.home.rglob("*"), *(base / "book").rglob("*"), *(base / "another book").rglob("*")):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    told += ddlp(capsys, "deploy", "--name", "csd0", "--uninstall", "--all")
    assert SECRET not in told and not device.home.exists() and secrets.exists()


def test_what_is_wrong_is_told_before_anything_is_changed(device: Device, theirs: ObjectServer, secrets: Path, capsys) -> None:
    directory = device.data_there
    given = arguments(device, "--root", TRAIN, "--root", str(directory), "--environment", str(secrets))
    secrets.chmod(0o644)
    assert "has mode 644: others than its owner" in ddlp(capsys, *given, status=1)
    secrets.chmod(0o600)
    bare = device.sshd.home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (packages,) = bare.glob("lib/python*/site-packages")
    for one in Path(numpy.__file__).parents[1].iterdir():
        if one.name.lower().startswith(("numpy", "pil", "zmq", "pyzmq")):
            (packages / one.name).symlink_to(one)
    told = ddlp(capsys, *given, "--python", f"{bare}/bin/python", status=1)
    assert "no obstore: the engine requests objects of a --root URL with it" in told and "no numpy" not in told
    told = ddlp(capsys, *given, "--python", f"{bare}/bin/python", "--install", "apt", status=1)
    assert "Debian has no package of obstore" in told and not (device.home / "engines").exists()


def test_a_storage_that_refuses_is_told(device: Device, theirs: ObjectServer, secrets: Path, base: Path, capsys) -> None:
    there = base / "one"
    there.mkdir()
    roots = "--root", "s3://forbidden/train", "--root", str(there)
    told = ddlp(capsys, *arguments(device, *roots, "--environment", str(secrets)))
    assert "warn data s3://forbidden/train/ can't be listed" in told and "403 Forbidden" in told and str(secrets) in told
    told = ddlp(capsys, "doctor", "csd0")
    assert "warn data s3://forbidden/train/ can't be listed" in told and SECRET not in told
    secrets.write_text(f"AWS_REGION=eu-north-1\nPATH={SECRET}\n")
    ddlp(capsys, "stop", "csd0")
    told = ddlp(capsys, "start", "csd0", status=1)
    assert "line 2: it sets no variable of a storage's client" in told and SECRET not in told
