"""`Storage`: what lies in a storage, listed or looked up when a data set is made."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from csd_engine.data.objects.store import PATIENCE, REFUSED, ObjectStore
from csd_engine.data.objects.stored import Stored
from csd_engine.data.objects.urls import obstore_module
from ddlp.data.objects.manifest import Manifest, parse_index
from ddlp.errors import DDLPError

__all__ = ["INDEX", "Storage"]

INDEX = "index.txt"  # beside the directories of a web server, which has no listing
_PAGE = 1000  # objects of one answer to a listing
_ASKED = 32  # objects whose sizes are asked for at once
_QUIET_S = 3.0  # a listing that takes longer prints its progress at this interval
_AT_FIRST = {**PATIENCE, "max_retries": 4}  # a wrong address should be told soon


class Storage(ObjectStore):
    """Objects below one URL, which are found and read. Arguments are those of `ObjectStore`.

    Raises:
        DDLPError: the URL is of an unknown kind, or has credentials in it; or obstore is missing.
    """

    raises = DDLPError

    def manifest(self, index: str | None) -> Manifest:
        """List the objects, or read the index file.

        Args:
            index: the key of the index file; None: list.

        Raises:
            DDLPError: the storage can't be reached or read, the index is damaged, or there is no image; in one line.
        """
        store = self._make(_AT_FIRST)
        try:
            if index is None:
                manifest = Manifest.of(self._listed(store))
            else:
                content = bytes(obstore_module(self.raises).get(store, index).bytes())
                manifest = Manifest.of(parse_index(content, self.url + index))
        except ValueError as error:
            raise self.raises(self.plain(error)) from None
        except Exception as error:
            raise self.raises(self._not_listed(error, index)) from None
        if not manifest.objects:
            raise self.raises(
                f"Below {self.url} is no image in a directory. The first directory below the URL is an image's "
                f"class: {self.url}cat/1.jpg is of class cat."
            )
        return manifest

    def _listed(self, store: Any) -> Iterator[Stored]:
        printed_s, count = time.monotonic(), 0
        for page in obstore_module(self.raises).list(store, chunk_size=_PAGE):
            for entry in page:
                yield Stored(entry["path"], entry["size"], entry["e_tag"] or "")
            count += len(page)
            if time.monotonic() - printed_s > _QUIET_S:
                printed_s = time.monotonic()
                print(f"ddlp: listing {self.url}: {count:,} objects", file=sys.stderr, flush=True)

    def stored(self, keys: Sequence[str]) -> list[Stored]:
        """Return these objects' sizes and ETags. Many are asked for at once.

        Raises:
            DDLPError: the storage can't be reached, one of them is missing or may not be read; in one line.
        """
        store, left, objects = self._make(_AT_FIRST), deque(keys), {}
        answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

        def ask() -> None:
            while left:
                try:
                    key = left.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    answers.put((key, obstore_module(self.raises).head(store, key)))
                except BaseException as error:
                    answers.put((key, error))

        for _ in range(min(_ASKED, len(keys))):
            threading.Thread(target=ask, name="ddlp-objects", daemon=True).start()
        printed_s = time.monotonic()
        try:
            for count in range(len(keys)):
                key, answer = answers.get()
                if isinstance(answer, Exception):
                    raise self.raises(self._not_asked(answer, self.url + key)) from None
                if isinstance(answer, BaseException):
                    raise answer
                objects[key] = Stored(key, answer["size"], answer["e_tag"] or "")
                if time.monotonic() - printed_s > _QUIET_S:
                    printed_s = time.monotonic()
                    print(f"ddlp: {self.url}: sizes of {count + 1:,} of {len(keys):,} objects", file=sys.stderr, flush=True)
        finally:
            left.clear()
        return [objects[key] for key in keys]

    def _not_asked(self, error: Exception, what: str) -> str:
        """One line: why an object can't be found, and what to do."""
        if type(error).__name__ in REFUSED:
            return self._refused(what, "read", type(error).__name__)
        if isinstance(error, FileNotFoundError):
            return f"There is no {what}. Check the bucket, the names and the numbers in braces."
        return f"{what} can't be read: {self.plain(error)}. Check the URL, the region and the credentials."

    def _refused(self, what: str, how: str, why: str) -> str:
        return (
            f"{what} may not be {how} with these credentials ({why}). Check those of the environment; for a public bucket give "
            'config={"skip_signature": True}.'
        )

    def _not_listed(self, error: Exception, index: str | None) -> str:
        """One line: why the objects can't be listed, and what to do."""
        kind, what = type(error).__name__, self.url if index is None else self.url + index
        refused = next((code for code in ("401 Unauthorized", "403 Forbidden") if index is None and code in str(error)), "")
        if refused or kind in REFUSED:
            return self._refused(what, "listed" if index is None else "read", refused or kind)
        if isinstance(error, FileNotFoundError) or (index is None and "404 Not Found" in str(error)):
            way = (
                "Check the bucket's name and region" if index is None
                else "Write one there: find . -type f -printf '%s %P\\n' > index.txt, or name another in index="
            )  # fmt: skip
            return f"There is no {what}. {way}."
        return f"{what} can't be read: {self.plain(error)}. Check the URL, the region and the credentials."
