"""`ddlp.ImageObjects`: images in object storage or on a web server, with classes, as a map-style data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ddlp.data.objects.storage import INDEX, Storage
from ddlp.data.objects.stored_images import StoredImages

__all__ = ["ImageObjects"]


class ImageObjects(StoredImages):
    """A map-style data set of image files in S3, Google Cloud Storage, Azure or on a web server. Samples are (image, class).

    The first directory below the URL is an image's class, as in an ImageFolder; the samples have an ImageFolder's order. One
    listing, when the data set is made, finds the objects. A loader keeps 8 to 256 requests in flight, as many as pay, and no
    file is written, unless it has a ``cache=``. Needs obstore: ``pip install 'ddlp[cloud]'``.

    Args:
        url: ``s3://bucket/prefix/``, ``gs://``, ``az://container/prefix/`` or ``https://server/directory/``.
        transform: is called with the PIL image (RGB). torchvision's operators run in the kernel, see ``loader.explain()``.
        target_transform: is called with the class's number, on the host.
        index: an object or file below the URL with a line ``SIZE PATH`` for each file, instead of a listing. Web servers have
            no listing: there it is ``index.txt`` by default.
        config: obstore's settings, such as ``{"region": "eu-north-1"}``, ``{"endpoint": "http://minio:9000"}`` or
            ``{"skip_signature": True}`` for a public bucket. By default they come from the environment.
        client_options: obstore's ``ClientConfig``, such as ``{"proxy_url": ...}``.
        credential_provider: obstore's, such as ``obstore.auth.boto3.Boto3CredentialProvider()``.
        memory_bytes: of objects that are in memory, or on their way, before a worker takes them up.

    Attributes:
        classes: the classes' names, sorted.
        class_to_idx: the number of each class.
        targets: the number of each sample's class.

    An object that has changed since the listing (its ETag or size), or is missing, is an error of its sample, like a damaged
    file: the loader's ``on_error`` applies. Credentials stay in this process: they are in no repr, message, report or pickle.
    So another process (a spawned worker) has those of its environment.

    Raises:
        DDLPError: obstore is missing, the URL is of another kind, nothing may be listed or is there; in one line.
    """

    def __init__(
        self,
        url: str,
        transform: Callable | None = None,
        target_transform: Callable | None = None,
        *,
        index: str | None = None,
        config: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
        credential_provider: Callable[[], Any] | None = None,
        memory_bytes: int = 256 << 20,
    ) -> None:
        storage = Storage(url, config, client_options, credential_provider)
        self._manifest = storage.manifest(INDEX if index is None and storage.web else index)
        super().__init__(storage, self._manifest, memory_bytes, self._manifest.targets, transform, target_transform)
        self.url = storage.url
        self.classes = self._manifest.classes
        self.class_to_idx = {label: k for k, label in enumerate(self.classes)}

    def __repr__(self) -> str:
        return f"ImageObjects({self.url!r}, {len(self)} images, {len(self.classes)} classes)"

    @property
    def samples(self) -> list[tuple[str, int]]:
        """The URL of each sample and the number of its class."""
        return [(self.url + stored.key, target) for stored, target in zip(self._manifest.objects, self.targets, strict=True)]
