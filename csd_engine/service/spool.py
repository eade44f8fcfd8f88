"""The engine's spool on disk: job directories, the quota and the reserve of free space. Each engine has its own spool.

SPOOL/ddlp-spool            marks the directory as a spool; without it, a directory that holds other files is refused
SPOOL/.lock                 held (flock) by the engine that uses it
SPOOL/.large                held by the worker that decodes a large image (csd_engine.prepare.large_image_lock)
SPOOL/job-N-HEX/            one job's batch files
SPOOL/spare-N-HEX           a removed batch's file that a new batch will overwrite (csd_engine.service.file_recycling)
SPOOL/here-HEX              random content: a host that can read it sees this spool
SPOOL/manifests/, arrays/   files that hosts have sent, by fingerprint; they outlive the jobs
SPOOL/files/                one directory for each host, with arrays for its jobs; the engine reads it, and removes it once
                            the host is gone
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Iterator, Optional, Union

from csd_engine.batchfile.writer import PART_SUFFIX
from csd_engine.data.safe_open import open_regular
from csd_engine.errors import EngineError, SpoolError
from csd_engine.machine.file_locks import fcntl
from csd_engine.machine.sizes import size_text
from csd_engine.service.file_recycling import SPARE, RecycledFiles

__all__ = [
    "FINGERPRINT", "JOB", "KEPT", "MADE", "MARK", "OURS", "PART", "Spool", "free_bytes", "host_directory", "look_at",
    "remove_tree",
]  # fmt: skip

MARK = "ddlp-spool"
KEPT = ("files", "manifests", "arrays")
# Regular expressions of names, for Python and for grep -E on a device.
JOB = "job-[0-9]+-[0-9a-f]{8}"
_SIGN = "here-[0-9a-f]{16}"
_TRIAL = r"\.ddlp-[0-9a-f]{16}(\.back)?"  # left by a test of ddlp.deploy.prove that did not end
_HOST = "[0-9a-f]{8}-[0-9a-f]{16}"  # a name that `host_directory` makes
FINGERPRINT = "[0-9a-f]{32}"  # of a file that a host has sent; an array's name has a suffix too
PART = rf"{FINGERPRINT}\.[0-9]+\.part"  # a file whose parts still come
# Files that engines and hosts make in a spool and in its `KEPT` directories. All other files there are the user's.
MADE = (
    rf"\./({JOB}|{SPARE}|{_SIGN}|{_TRIAL}|\.lock|\.large)|files/{_HOST}"
    rf"|manifests/({FINGERPRINT}|{PART})|arrays/({FINGERPRINT}\.npy|{PART})"
)
OURS = rf"{MADE}|\./({'|'.join(KEPT)}|lost\+found)"  # what a spool may hold before it has its mark

_LOOK_BYTES = 4096

PathLike = Union[str, "os.PathLike[str]"]


def free_bytes(directory: PathLike) -> int:
    """Return the bytes that this user may still write on the directory's file system."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def remove_tree(directory: PathLike) -> None:
    """Remove a directory and all its content. A missing or vanishing file is no error."""
    shutil.rmtree(directory, ignore_errors=True)


def look_at(path: PathLike, beneath: Optional[PathLike] = None) -> str:
    """Return a digest (32 hex digits) of a small file's content, or an empty text if the file cannot be read.

    Host and engine both call this. If one can read what the other has just written, both see the same file system.
    """
    directory = os.path.dirname(os.path.abspath(path))
    try:
        os.listdir(directory)  # makes a network file system's client ask its server again
        allowed = None if beneath is None else [os.path.realpath(beneath)]
        with open(open_regular(os.fspath(path), allowed), "rb") as stream:
            content = stream.read(_LOOK_BYTES)
    except (OSError, EngineError):
        return ""
    return hashlib.blake2b(content, digest_size=16).hexdigest() if content else ""


def host_directory(boot: str) -> str:
    """Return a new name for a host's directory in SPOOL/files. `boot`: 8 hex digits that change when the host boots."""
    return f"{boot}-{secrets.token_hex(8)}"


class Spool:
    """Space for batch files. It says whether another batch may be begun, and if not, why.

    Args:
        directory: the spool's directory; it is made if it is missing. Job directories that a killed engine left there are
            removed. Files that are not ddlp's are never removed.
        quota_batches: the most batch files at once, over all jobs.
        quota_bytes: the most bytes of these files.
        reserve_bytes: free bytes to leave on the file system.
        mapped: all hosts are on this computer and map the batch files. New batches then overwrite the files of removed
            ones. A network file system's client could show a host the old content.

    Raises:
        SpoolError: the spool cannot be made or written, another engine uses it, or the directory is no spool and holds
            other files.
    """

    def __init__(
        self, directory: PathLike, quota_batches: int, quota_bytes: int, reserve_bytes: int, mapped: bool = False
    ) -> None:
        self.directory = Path(os.path.abspath(directory))
        self.files = self.directory / "files"
        self.manifests = self.directory / "manifests"
        self.arrays = self.directory / "arrays"
        self.sign = self.directory / f"here-{secrets.token_hex(8)}"
        self.quota_batches, self.quota_bytes, self.reserve_bytes = quota_batches, quota_bytes, reserve_bytes
        self.batches = 0
        self.bytes = 0
        self._jobs = 0
        self._recycled: Optional[RecycledFiles] = None
        self._lock = -1
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._check_ours()
            self._lock = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1
            if isinstance(error, BlockingIOError):
                why, advice = "another engine uses it", "Give each engine a spool of its own with --spool."
            else:
                why, advice = str(error.strerror), "Create it, make it writable, or choose another one with --spool."
            raise SpoolError(f"spool {self.directory} cannot be used: {why}. {advice}") from None
        self._clear()
        try:
            if self.files.is_symlink():
                self.files.unlink()  # every host could read the link's target
            if not (self.directory / MARK).is_file():
                (self.directory / MARK).write_text("ddlp's engine makes and removes its files here.\n", "ascii")
            self.files.mkdir(exist_ok=True)
            self.sign.write_text(secrets.token_hex(16), "ascii")
            self._recycled = RecycledFiles(self.directory) if mapped else None
        except OSError as error:
            self.close()
            raise SpoolError(f"{self.files} cannot be made: {error.strerror}. Make the spool writable.") from None

    def _check_ours(self) -> None:
        """Raise SpoolError if the directory has no mark and holds other files: an engine would serve or remove them."""
        if (self.directory / MARK).is_file():
            return
        other = next((path for path in self._below() if not re.fullmatch(OURS, path)), None)
        if other is not None:
            raise SpoolError(
                f"spool {self.directory} cannot be used: it holds files that are not ddlp's: {os.path.normpath(other)}. Give a "
                f"directory of its own with --spool, for example {self.directory / 'ddlp'}."
            )

    def _below(self) -> Iterator[str]:
        """Yield ./NAME for each entry of the directory, and files/NAME and so on for each entry of the `KEPT` ones."""
        for above in (".", *KEPT):
            if (self.directory / above).is_dir():
                yield from (f"{above}/{name}" for name in sorted(os.listdir(self.directory / above)))

    def _clear(self) -> None:
        for left in self.directory.glob("job-*"):
            if re.fullmatch(JOB, left.name):
                remove_tree(left)
        for left in self.directory.glob("*"):  # yields nothing if the directory is gone
            if not re.fullmatch(f"{_SIGN}|{SPARE}", left.name):
                continue
            try:
                left.unlink()
            except OSError:
                pass

    def make_job_directory(self) -> Path:
        """Make a directory for a new job and return its path. Raises SpoolError."""
        self._jobs += 1
        path = self.directory / f"job-{self._jobs}-{secrets.token_hex(4)}"
        try:
            path.mkdir()
        except OSError as error:
            raise SpoolError(
                f"a job's directory cannot be made: {error.strerror}, {path}. Check the spool's owner and free space."
            ) from None
        return path

    def remove_job(self, name: str) -> None:
        """Remove a job's directory and all its content."""
        remove_tree(self.directory / name)

    def remove_batch(self, path: PathLike, file_bytes: int) -> None:
        """Remove a batch's file, complete or not, and take it off the count."""
        self.give_back(file_bytes)
        if self._recycled is not None:
            self._recycled.put(os.fspath(path), file_bytes)
            self._drop_recycled()
        for name in (os.fspath(path), os.fspath(path) + PART_SUFFIX):
            try:
                os.unlink(name)
            except OSError:
                pass

    def _drop_recycled(self) -> None:
        """Keep batches and recycled files together within the quota."""
        files = self._recycled
        while files and (self.batches + len(files) > self.quota_batches or self.bytes + files.bytes > self.quota_bytes):
            files.drop_first()

    def refusal(self, file_bytes: int) -> Optional[str]:
        """Return why batches of this size can never be made here, or None."""
        if file_bytes > self.quota_bytes or self.quota_batches < 1:
            return (
                f"a batch file takes {size_text(file_bytes)}, the engine's quota is {self.quota_batches} batches and "
                f"{size_text(self.quota_bytes)}. Raise --quota-bytes and --quota-batches or make batches smaller."
            )
        return None

    def shortage(self, file_bytes: int) -> str:
        """Return why no further batch of this size may be begun now, or an empty text if one may."""
        if self.batches >= self.quota_batches:
            return f"spool quota full: {self.batches} of {self.quota_batches} batches wait to be fetched"
        if self.bytes + file_bytes > self.quota_bytes:
            return f"spool quota full: {size_text(self.bytes)} of {size_text(self.quota_bytes)} wait to be fetched"
        free = self.free_bytes()
        if self._recycled and free - file_bytes < self.reserve_bytes:
            self._recycled.clear()
            free = self.free_bytes()
        if free - file_bytes < self.reserve_bytes:
            return (
                f"spool disk nearly full: {size_text(free)} free at {self.directory}, a batch takes {size_text(file_bytes)}, "
                f"{size_text(self.reserve_bytes)} stay reserved"
            )
        return ""

    def begin_batch(self, path: PathLike, file_bytes: int) -> bool:
        """Count a batch that is begun. Return whether its writer will overwrite a recycled file, which is now in place."""
        self.batches += 1
        self.bytes += file_bytes
        if not self._recycled:
            return False
        given = self._recycled.give(os.fspath(path) + PART_SUFFIX)
        self._drop_recycled()
        return given

    def give_back(self, file_bytes: int) -> None:
        """Take a batch that is gone off the count."""
        self.batches -= 1
        self.bytes -= file_bytes

    def free_bytes(self) -> int:
        """Return the free bytes of the spool's file system, or 0 if the system does not tell."""
        try:
            return free_bytes(self.directory)
        except OSError:
            return 0

    def room_bytes(self) -> int:
        """Return the free bytes above the reserve: files other than batches may use them."""
        return self.free_bytes() - self.reserve_bytes

    def close(self) -> None:
        """Remove the job directories and give the spool up. Files that hosts have sent stay."""
        if self._lock < 0:
            return
        self._clear()
        for name in (".large", ".lock"):
            try:
                os.unlink(self.directory / name)
            except OSError:
                pass
        os.close(self._lock)
        self._lock = -1
