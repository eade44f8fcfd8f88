"""`ddlp.TarObjects`: images in tar shards in object storage or on a web server, as a map-style data set."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from csd_engine.data.objects.urls import check_url
from ddlp.data.objects.parts import Parts
from ddlp.data.objects.shard_streams import shard_streams
from ddlp.data.objects.storage import Storage
from ddlp.data.objects.stored_images import StoredImages
from ddlp.data.tars import IMAGES, TarTargets, expand_numbers, find_index
from ddlp.errors import DDLPError

__all__ = ["TarObjects"]


class TarObjects(StoredImages):
    """A map-style data set of images in tar shards in S3, Google Cloud Storage, Azure or on a web server: (image, target).

    The shards are those of `TarImages`, and so are the samples. Each sample is a request for its bytes in the shard, in any
    order; as for `ImageObjects`, 8 to 256 requests are in flight, and no image is written to a file without a ``cache=``.
    Needs obstore: ``pip install 'ddlp[cloud]'``.

    Args:
        urls: the shards, uncompressed tar files: a list, or a string like ``"s3://bucket/train-{000..146}.tar"``, with the
            URLs that `ImageObjects` has. All lie in one bucket, or on one server.
        transform: is called with the PIL image (RGB). torchvision's operators run in the kernel, see ``loader.explain()``.
        target_transform: is called with the target, on the host.
        target, image: as for `TarImages`.
        index_dir: the directory for the index; by default ``~/.cache/ddlp`` ($XDG_CACHE_HOME).
        config, client_options, credential_provider, memory_bytes: as for `ImageObjects`.

    Attributes:
        urls: the shards' URLs.

    The index is made once, which reads all shards from their beginning to their end, many MiB at a time. It is made again if a
    shard's size or ETag has changed, and each time if the server gives no ETags. A shard that changes later is an error of its
    samples: the loader's ``on_error`` applies. Credentials stay in this process, as with `ImageObjects`.

    Raises:
        DDLPError: obstore is missing, a URL is of another kind, a shard is missing or may not be read; in one line.
        ValueError: as `TarImages`, for shards that are not as they must be.
        OSError: a shard can't be read, or has changed while the index was made.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        transform: Callable | None = None,
        target_transform: Callable | None = None,
        *,
        target: str = "cls",
        image: Sequence[str] = IMAGES,
        index_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
        credential_provider: Callable[[], Any] | None = None,
        memory_bytes: int = 256 << 20,
    ) -> None:
        self.urls = expand_numbers(urls) if isinstance(urls, str) else list(urls)
        url = _directory(self.urls)
        storage = Storage(url, config, client_options, credential_provider)
        shards = storage.stored([shard_url[len(url) :] for shard_url in self.urls])
        listed = [[storage.url + shard.key, shard.size, shard.tag or None] for shard in shards]
        streams = shard_streams(storage, shards, memory_bytes)
        self.index = find_index(listed, streams, image, target, index_dir)
        where = functools.partial(self.index.where, [shard.key for shard in shards])
        parts = Parts(shards, self.index.shards, self.index.offsets, self.index.sizes, where)
        super().__init__(
            storage, parts, memory_bytes, TarTargets(self.urls, self.index, target), transform, target_transform
        )

    def __repr__(self) -> str:
        return f"TarObjects({self.urls[0]!r} ..., {len(self)} images, {len(self.urls)} shards)"

    def where(self, index: int) -> str:
        """Return a sample's place for messages: its shard, and the image's name in the shard."""
        return self.index.where(self.urls, index)

    def key(self, index: int) -> str:
        """Return a sample's key."""
        return self.index.key(index)


def _directory(urls: Sequence[str]) -> str:
    """Return the URL of the directory that has all shards, with a slash at its end. Raises DDLPError."""
    if not urls:
        raise DDLPError(f"TarObjects: no shards in {urls!r}. Give a URL, or a list of them.")
    for url in urls:
        check_url(url, DDLPError)
        if "*" in url:
            raise DDLPError(f"TarObjects: {url}: a storage is not searched for names. Write numbers as train-{{000..146}}.tar.")
    directory = os.path.commonprefix(list(urls)).rpartition("/")[0] + "/"
    if directory.endswith("://"):
        raise DDLPError(f"TarObjects: {urls[0]} and {urls[-1]} are not in one bucket. Join one of each by ConcatDataset.")
    return directory
