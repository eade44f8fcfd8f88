"""Listings, and what a user is told; credentials are seen nowhere."""

from __future__ import annotations

import copy
import pickle
import socket
import sys
from typing import Any

import pytest

from ddlp import DDLPError, ImageObjects
from tests.object_server import BUCKET

S3 = f"s3://{BUCKET}/train/"
SECRETS = "not to be seen anywhere", "AKIAFORTHETEST"


def refused(url: str, *say: str, **options: Any) -> None:
    with pytest.raises(DDLPError) as caught:
        ImageObjects(url, **options)
    text = str(caught.value)
    assert "\n" not in text and caught.value.__cause__ is None, text
    assert all(part in text for part in say), text
    assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("pages", [1, 3])
def test_a_listing_makes_the_list(server, images, pages):
    for k in range((pages - 1) * 1000):
        server.objects[f"train/more/{k}.jpg"] = b"x"
    dataset = ImageObjects(S3, config=server.config())
    assert len(dataset) == 41 + (pages - 1) * 1000 and dataset.classes[:3] == ["class0", "class1", "class2"]
    assert dataset.samples[0] == (f"{S3}class0/000.jpg", 0) and dataset.class_to_idx["class2"] == 2
    assert dataset.targets == [target for _, target in dataset.samples]
    assert sum("list-type=2" in one for one in server.requests) == pages and len(server.requests) == pages


def test_an_index_file_takes_the_listings_place(server):
    listed = ImageObjects(S3, config=server.config())
    for dataset in (ImageObjects(f"{server.url}/{BUCKET}/train"), ImageObjects(S3, config=server.config(), index="index.txt")):
        assert [url.removeprefix(dataset.url) for url, _ in dataset.samples] == [url[len(S3) :] for url, _ in listed.samples]
        assert dataset.targets == listed.targets


def test_what_is_wrong_is_told_in_one_line(server, monkeypatch):
    config = server.config()
    web = f"{server.url}/{BUCKET}/"
    refused("s3://other/train/", "s3://other/train/", "bucket", config=config)
    refused("s3://forbidden/train/", "s3://forbidden/train/", "credentials", "skip_signature", config=config)
    refused(f"s3://{BUCKET}/none/", "no image in a directory", config=config)
    refused(web, f"There is no {web}index.txt", "find .")
    server.objects["index.txt"] = b"nonsense"
    refused(web, "line 1, 'nonsense'", "SIZE PATH")
    server.objects["index.txt"] = b"5 ../../etc/passwd"
    refused(web, "leads elsewhere")
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    refused(S3, "can't be read", config={**config, "endpoint": f"http://127.0.0.1:{port}"})
    refused("/data/train", "no URL of objects", "ImageFolder")
    refused("ftp://server/x", "no URL of objects")
    refused(f"https://someone:{SECRETS[0]}@server/x/", "credentials")
    refused(f"https://server/x/?sig={SECRETS[0]}", "credentials")
    refused(S3, "Correct config=", config={**config, "nonsense": "x"})
    monkeypatch.setitem(sys.modules, "obstore", None)
    refused(S3, "pip install 'ddlp[cloud]'", config=config)


def test_credentials_are_in_no_text_and_no_pickle(server, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the environment")
    options = {"default_headers": {"Authorization": f"Bearer {SECRETS[0]}"}, "user_agent": "the test"}
    dataset = ImageObjects(S3, config=server.config(region="eu-north-1"), client_options=options)
    other = ImageObjects(S3, config={**server.config(), "secret_access_key": "another"})
    assert dataset.fingerprint == other.fingerprint
    told = [repr(dataset), repr(vars(dataset)), str(dataset.reader.where(0)), pickle.dumps(dataset).decode("latin-1")]
    error = ValueError(f"GET https://x/y?X-Amz-Signature=12&b=3 {SECRETS} of the environment\nmore")
    told.append(dataset._storage.plain(error))
    for text in told:
        assert not [secret for secret in (*SECRETS, "of the environment", "Amz", "more") if secret in text], text
    again = pickle.loads(pickle.dumps(dataset))
    assert again.samples == dataset.samples and "eu-north-1" in str(again._storage._config) and "Bearer" in str(options)
    assert copy.deepcopy(dataset)._storage is dataset._storage
    assert not [one for one in server.requests if "not to be seen anywhere" in one.split("Authorization")[0]]
