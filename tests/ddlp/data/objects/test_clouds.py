"""S3, Google Cloud Storage and Azure, as servers of others speak their protocols: moto and Azurite.

obstore speaks Google's XML API, whose listing and objects are S3's. So moto answers it too, as long as nothing is signed.
`tests/ddlp/data/objects/clouds.sh` installs both servers and runs this.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import ImageFolder

from ddlp import Cache, DDLPError, DDLPLoader, ImageObjects
from ddlp.sources.engine.link import EngineLink
from tests.ddlp.data.objects.test_engines import check, loader_of
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM
from tests.engine_process import EngineProcess, until
from tests.ports import free_port

obstore = pytest.importorskip("obstore")

_COMMANDS = {"s3": "moto_server", "gs": "moto_server", "az": "azurite-blob"}
_ACCOUNT = "devstoreaccount1"  # Azurite's, with its key: everybody has them
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_ODD = "train/class1/sp ace+%25 ü#.jpg"


@dataclass
class Cloud:
    """A server with the images below ``train/`` of the bucket ``photos``.

    Attributes:
        scheme: of its URLs.
        config: what a data set needs to read them.
        environment: the same for an engine.
        store: writes.
    """

    scheme: str
    config: dict[str, Any]
    environment: dict[str, str]
    store: Any = field(repr=False)

    @property
    def url(self) -> str:
        return f"{self.scheme}://photos/train/"


@pytest.fixture(params=_COMMANDS)
def cloud(request, images, tmp_path) -> Iterator[Cloud]:
    scheme: str = request.param
    command = shutil.which(_COMMANDS[scheme])
    if command is None:
        pytest.skip(f"{_COMMANDS[scheme]} is not on PATH; run ./tests/ddlp/data/objects/clouds.sh")
    port = str(free_port())
    start = [command, "-H", "127.0.0.1", "-p", port]
    if scheme == "az":
        start = [command, "--blobHost", "127.0.0.1", "--blobPort", port, "--location", str(tmp_path / "azurite")]
        start += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    with open(tmp_path / "server.log", "wb") as log, subprocess.Popen(start, stdout=log, stderr=log) as server:
        try:
            until(lambda: reached(int(port)), 30, "the server answers")
            found = (azurite if scheme == "az" else moto)(scheme, f"http://127.0.0.1:{port}")
            for key, body in [*images.items(), (_ODD, images["train/class1/001.jpg"])]:
                obstore.put(found.store, key, body)
            yield found
        finally:
            server.terminate()


def reached(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def moto(scheme: str, server: str) -> Cloud:
    """Return a new bucket of S3, and of its objects what Google's servers would answer to requests without a signature."""
    urllib.request.urlopen(urllib.request.Request(f"{server}/photos", method="PUT")).close()
    pair = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    public = {"allow_http": True, "default_headers": {"x-amz-acl": "public-read"}}
    store = obstore.store.from_url("s3://photos/", config={**pair, "endpoint": server}, client_options=public)
    if scheme == "s3":
        environment = {f"AWS_{name.upper()}": value for name, value in pair.items()}
        return Cloud(scheme, {**pair, "endpoint": server}, {**environment, "AWS_ENDPOINT_URL": server}, store)
    environment = {"GOOGLE_BASE_URL": server, "GOOGLE_SKIP_SIGNATURE": "true"}
    return Cloud(scheme, {"base_url": server, "skip_signature": True}, environment, store)


def azurite(scheme: str, server: str) -> Cloud:
    """Return a new container of Azure's. obstore makes none: the request is signed here, as Azure's "Shared Key" describes."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    named = "\n".join(f"{name}:{value}" for name, value in headers.items())
    text = f"PUT{12 * chr(10)}{named}\n/{_ACCOUNT}/{_ACCOUNT}/photos\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)).decode()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{signature}"
    make = urllib.request.Request(f"{server}/{_ACCOUNT}/photos?restype=container", headers=headers, method="PUT")
    urllib.request.urlopen(make).close()
    config = {"account_name": _ACCOUNT, "account_key": _KEY, "endpoint": f"{server}/{_ACCOUNT}"}
    store = obstore.store.from_url("az://photos/", config=config, client_options={"allow_http": True})
    return Cloud(scheme, config, {f"AZURE_STORAGE_{name.upper()}": value for name, value in config.items()}, store)


@pytest.fixture
def files(images, tmp_path) -> Path:
    """The same images as files, with the odd name's."""
    for key, body in [*images.items(), (_ODD, images["train/class1/001.jpg"])]:
        path = tmp_path / "files" / key.removeprefix("train/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return tmp_path / "files"


@pytest.mark.some(2)
def test_samples_are_those_of_the_files(cloud, files):
    dataset = ImageObjects(cloud.url, RANDOM, config=cloud.config)
    assert len(dataset) == 42 and f"{cloud.scheme}://photos/{_ODD}" in [url for url, _ in dataset.samples]
    check(DDLPLoader(dataset, 4, shuffle=True, seed=3), ImageFolder(str(files), RANDOM))


@pytest.mark.some(1)
def test_objects_are_kept(cloud, files, tmp_path):
    dataset = ImageObjects(cloud.url, DETERMINISTIC, config=cloud.config)
    loader = DDLPLoader(dataset, 4, shuffle=True, seed=3, cache=Cache(str(tmp_path / "cache"), "1G", keeps="files"))
    check(loader, ImageFolder(str(files), DETERMINISTIC))
    assert loader.report().cache.hits == 42


@pytest.mark.some(1)
def test_a_changed_and_a_missing_object_are_errors_in_their_place(cloud, images):
    dataset = ImageObjects(cloud.url, config=cloud.config)
    changed, gone = sorted(images)[:2]
    obstore.put(cloud.store, changed, images[changed][:-1] + b"!")
    obstore.delete(cloud.store, gone)
    at = {url.partition("photos/")[2]: number for number, (url, _) in enumerate(dataset.samples)}
    with pytest.raises(OSError, match="ETag was .* and is .*Make the data set anew"):
        dataset[at[changed]]
    with pytest.raises(FileNotFoundError, match=f"{cloud.scheme}://photos/{gone}"):
        dataset[at[gone]]
    assert dataset[at[_ODD]][0].size == dataset[at["train/class1/001.jpg"]][0].size
    with pytest.raises(DDLPError, match=f"There is no {cloud.scheme}://nowhere/train/"):
        ImageObjects(f"{cloud.scheme}://nowhere/train/", config=cloud.config)


@pytest.mark.some(1)
def test_an_engine_requests_them_by_its_own_environment(cloud, files, tmp_path, monkeypatch):
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "engine").mkdir()
    engine = EngineProcess(tmp_path / "engine", "--root", cloud.url)
    try:
        for name in cloud.environment:
            monkeypatch.delenv(name)
        monkeypatch.setattr(EngineLink, "send_parcel_part", lambda self, frames: False)  # it gets no bytes from here
        loader = loader_of(ImageObjects(cloud.url, RANDOM, config=cloud.config), engine)
        check(loader, ImageFolder(str(files), RANDOM))
        assert loader.report().batches_csd == len(loader)
    finally:
        engine.end()
