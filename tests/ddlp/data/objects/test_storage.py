"""Listings, and what a user is told; credentials are seen nowhere."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest

from ddlp import DDLPError, ImageObjects
from ddlp.data.objects.storage import Storage
from tests.object_server import BUCKET, ObjectServer
from tests.ports import free_port

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
    refused(S3, "can't be read", config={**config, "endpoint": f"http://127.0.0.1:{free_port()}"})
    refused("/data/train", "no URL of objects", "ImageFolder")
    refused("ftp://server/x", "no URL of objects")
    refused(f"https://someone:{SECRETS[0]}@server/x/", "credentials")
    refused(f"https://server/x/?sig={SECRETS[0]}", "credentials")
    refused(S3, "Correct config=", config={**config, "nonsense": "x"})
    monkeypatch.setitem(sys.modules, "obstore", None)
    refused(S3, "pip install 'ddlp[cloud]'", config=config)


KEYS = {
    "s3": ("sse_customer_key_base64", "AWS_SSE_CUSTOMER_KEY_BASE64", "aws_secret_access_key", "session_token"),
    "az": ("azure_storage_master_key", "account_key", "azure_storage_sas_token", "AZURE_STORAGE_CLIENT_SECRET", "bearer_token"),
    "gs": ("google_service_account_key", "bearer_token"),
}  # fmt: skip


@pytest.mark.parametrize(("cloud", "name"), [(cloud, name) for cloud, names in KEYS.items() for name in names])
def test_only_listed_settings_are_pickled_and_told(cloud, name, monkeypatch):
    """A key by any name, also one that a later obstore may have; a proxy's password; a signed endpoint."""
    secret, password, signed = "c2VjcmV0IG9mIDMyIGJ5dGVz", "passw0rd", "signature0"
    for names, options in (
        ({name: secret, "endpoint": f"https://u:{password}@s3/"}, {"proxy_url": f"http://someone:{password}@proxy:8080"}),
        ({f"{name}_of_tomorrow": secret, "endpoint": f"https://s3/?sig={signed}"}, {"default_headers": {"X": secret.encode()}}),
        ({"region": "eu-north-1", "skip_signature": True}, {"timeout": "30s", "a_token_of_tomorrow": secret}),
    ):
        storage = Storage(f"{cloud}://bucket/x/", names, options)
        again = pickle.loads(pickle.dumps(storage))
        told = f"{again._config} {again._client_options} " + storage.plain(
            ValueError(f"with {secret} by http://someone:{password}@proxy:8080 at https://s3/?sig={signed}")
        )
        assert not [one for one in (secret, password, signed) if one in told], told
    assert again._config == {"region": "eu-north-1", "skip_signature": True} and again._client_options == {"timeout": "30s"}
    monkeypatch.setenv(name if name.isupper() else f"AWS_{name.upper()}", secret)
    monkeypatch.setenv("HTTPS_PROXY", f"http://someone:{password}@proxy:8080")
    told = storage.plain(ValueError(f"with {secret} by {password} and someone:{password}"))
    assert secret not in told and password not in told


@pytest.mark.parametrize("web", [False, True])
def test_a_server_sends_nobody_elsewhere(server, web):
    """It answers each request by one for an object of another host: no request comes there, and no token."""
    with ObjectServer(server.objects) as other:
        config = {**server.config(session_token="a token of the session"), "endpoint": server.url}
        dataset = ImageObjects(f"{server.url}/{BUCKET}/train", client_options={}) if web else ImageObjects(S3, config=config)
        server.elsewhere = other.url.replace("127.0.0.1", "localhost")
        with pytest.raises(OSError, match="another host, which is refused"):
            dataset[0]
        refused(f"{server.url}/{BUCKET}/train" if web else S3, "another host", **({} if web else {"config": config}))
        assert not other.requests
        server.elsewhere = server.url  # the same host: followed
        assert dataset[1][1] == 0


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
