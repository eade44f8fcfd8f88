"""The engine's spool on disk: job directories, the quota and the reserve of free space. Each engine has its own spool.

SPOOL/ddlp-spool            marks the directory as a spool; without it, a directory that holds other files is refused
SPOOL/.lock                 held (flock) by the engine that uses it
SPOOL/.large                held by the worker that decodes a large image (csd_engine.prepare.large_image_lock)
SPOOL/job-N-HEX/            one job's batch files, and the samples' bytes that its host sends (csd_engine.service.parcels)
SPOOL/spare-N-HEX           a removed batch's file that a new batch will overwrite (csd_engine.service.file_recycling)
SPOOL/here-HEX              random content: a host that can read it sees this spool
SPOOL/manifests/, arrays/   files that hosts have sent, by fingerprint; they outlive the jobs
SPOOL/files/                one directory for each host, with arrays for its jobs; the engine reads it, and removes it once
                            the host is gone

The engine opens the spool once. It makes, opens, renames and removes files there through that descriptor, and follows no link:
another user who may write to the spool, or to a directory above it, cannot lead the engine elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import Dict, Iterator, Optional, Union

from csd_engine.batchfile.publishing import PART_SUFFIX
from csd_engine.errors import SpoolError
from csd_engine.machine.directory import Directory, Entry
from csd_engine.machine.file_locks import fcntl
from csd_engine.machine.sizes import free_bytes, size_text
from csd_engine.service.file_recycling import SPARE, RecycledFiles

__all__ = [
    "FINGERPRINT", "HOST", "JOB", "KEPT", "MADE", "MARK", "OURS", "PART", "SIGN", "Spool", "host_directory",
    "host_mark", "look_at", "remove_host_directory", "remove_tree",
]  # fmt: skip

MARK = "ddlp-spool"
KEPT = ("files", "manifests", "arrays")
# Regular expressions of names, for Python and for grep -E on a device.
JOB = "job-[0-9]+-[0-9a-f]{8}"
SIGN = "here-[0-9a-f]{16}"
_TRIAL = r"\.ddlp-[0-9a-f]{16}(\.back)?"  # left by a test of ddlp.deploy.prove that did not end
HOST = "[0-9a-f]{8}-[0-9a-f]{16}"  # a name that `host_directory` makes
FINGERPRINT = "[0-9a-f]{32}"  # of a file that a host has sent; an array's name has a suffix too
PART = rf"{FINGERPRINT}\.[0-9]+\.part"  # a file whose parts still come
# Files that engines and hosts make in a spool and in its `KEPT` directories. All other files there are the user's.
MADE = (
    rf"\./({JOB}|{SPARE}|{SIGN}|{_TRIAL}|\.lock|\.large)|files/{HOST}"
    rf"|manifests/({FINGERPRINT}|{PART})|arrays/({FINGERPRINT}\.npy|{PART})"
)
OURS = rf"{MADE}|\./({'|'.join(KEPT)}|lost\+found)"  # what a spool may hold before it has its mark

_LOOK_BYTES = 4096
_HOST_FILES = rf"lock|look|{FINGERPRINT}\.(manifest|npy)|tmp[a-z0-9_]{{8}}"
_FILES_MODE = 0o775  # less the umask: a group that hosts and engine have in common may write there

PathLike = Union[str, "os.PathLike[str]"]


def remove_tree(directory: PathLike) -> None:
    """Remove a directory and all its content. A missing or vanishing file is no error."""
    shutil.rmtree(directory, ignore_errors=True)


def look_at(directory: Directory, name: str) -> str:
    """Return a digest (32 hex digits) of a small file's content, or an empty text if the file cannot be read.

    Host and engine both call this. If one can read what the other has just written, both see the same file system.
    """
    try:
        directory.names()  # makes a network file system's client ask its server again
        content = _content(directory, name)
    except OSError:
        return ""
    return hashlib.blake2b(content, digest_size=16).hexdigest() if content else ""


def _content(directory: Directory, name: str) -> bytes:
    """Return the first bytes of a regular file. Raises OSError."""
    with open(directory.open(name, os.O_RDONLY), "rb") as stream:
        return stream.read(_LOOK_BYTES) if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) else b""


def host_directory(boot: str) -> str:
    """Return a new name for a host's directory in SPOOL/files. `boot`: 8 hex digits that change when the host boots."""
    return f"{boot}-{secrets.token_hex(8)}"


def host_mark(name: str) -> str:
    """Return what stands in the file `lock` of the host's directory of this name."""
    return f"ddlp's host process made {name} and removes it.\n"


def remove_host_directory(files: Directory, name: str) -> None:
    """Remove a host's directory in SPOOL/files, but only what is ddlp's there.

    The directory's name must be one that `host_directory` makes, and its lock must hold the directory's mark. Files that a host
    does not make there stay, and so does the directory then.
    """
    try:
        directory = files.below(name)
        if not re.fullmatch(HOST, name) or _content(directory, "lock") != host_mark(name).encode("ascii"):
            return
        for file_name in sorted(directory.names(), key="lock".__eq__):  # the lock last: what is left can be known again
            if re.fullmatch(_HOST_FILES, file_name):
                directory.unlink(file_name)
        os.rmdir(name, dir_fd=files.descriptor)
    except OSError:
        pass  # it is gone, or another user's


class Spool:
    """Space for batch files. It says whether another batch may be begun, and if not, why.

    Args:
        directory: the spool's directory; it is made if it is missing. Job directories that a killed engine left there are
            removed. Files that are not ddlp's are never removed.
        quota_batches: the most batch files at once, over all jobs.
        quota_bytes: the most bytes of these files, and of samples that hosts send with leases.
        reserve_bytes: free bytes to leave on the file system.
        mapped: all hosts are on this computer and map the batch files. New batches then overwrite the files of removed
            ones. A network file system's client could show a host the old content.

    Raises:
        SpoolError: the spool cannot be made or written, it is another user's or others may write to it, another engine uses
            it, or the directory is no spool and holds other files.
    """

    def __init__(
        self, directory: PathLike, quota_batches: int, quota_bytes: int, reserve_bytes: int, mapped: bool = False
    ) -> None:
        self.directory = Path(os.path.abspath(directory))
        self.files = self.directory / "files"
        self.manifests = self.directory / "manifests"
        self.arrays = self.directory / "arrays"
        self.sign = f"here-{secrets.token_hex(8)}"
        self.quota_batches, self.quota_bytes, self.reserve_bytes = quota_batches, quota_bytes, reserve_bytes
        self.batches = 0
        self.bytes = 0
        self.parcel_bytes = 0  # of samples that hosts send with leases
        self._jobs: Dict[str, Directory] = {}
        self._jobs_made = 0
        self._recycled: Optional[RecycledFiles] = None
        self._owner: Optional[int] = None  # whom the file system gives our files to, once it is asked
        self._lock = -1
        try:
            self._spool = self._open()
            self._check_owner(self._spool)
            self._check_ours()
            self._lock = self._spool.open(".lock", os.O_RDWR | os.O_CREAT, 0o600)
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
            if not self._is_marked():
                self._spool.write(MARK, "ddlp's engine makes and removes its files here.\n")
            self.kept("files")
            self._spool.write(self.sign, secrets.token_hex(16))
            self._recycled = RecycledFiles(self._spool) if mapped else None
        except OSError as error:
            self.close()
            raise SpoolError(f"{self.files} cannot be made: {error.strerror}. Make the spool writable.") from None
        except SpoolError:
            self.close()
            raise

    def _open(self) -> Directory:
        """Open the directory, and make it if it is missing. Raises OSError and SpoolError."""
        path = os.fspath(self.directory)
        if os.path.islink(path):
            if os.lstat(path).st_uid not in (os.geteuid(), 0):
                raise SpoolError(
                    f"spool {path} cannot be used: it is another user's link. Give the directory itself with --spool."
                )
            path = os.path.realpath(path)
        elif not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.mkdir(path, 0o755)
        return Directory(path)

    def kept(self, name: str) -> Directory:
        """Open one of the spool's `KEPT` directories, and make it if it is missing.

        Raises:
            SpoolError: it cannot be made, is a link or another user's, or others may write to it.
        """
        try:
            try:
                directory = self._spool.below(name)
            except FileNotFoundError:
                directory = self._spool.make(name, _FILES_MODE if name == "files" else 0o755)
            self._check_owner(directory, any_group=name == "files")
            return directory
        except OSError as error:
            link = os.path.islink(self.directory / name)
            why = "it is a link, and hosts could read where it leads" if link else str(error.strerror)
            raise SpoolError(
                f"the directory {self.directory / name} cannot be used: {why}. Remove it, or choose another spool with --spool."
            ) from None

    def _check_owner(self, directory: Directory, any_group: bool = False) -> None:
        """Raise SpoolError if another user could swap the directory's files. `any_group`: all of its group may write to it."""
        status = directory.status()
        why = ""
        if not self._is_ours(status):
            why, advice = f"it belongs to another user (uid {status.st_uid})", "Give it to the engine's user (chown)"
        elif status.st_mode & stat.S_ISVTX:
            pass  # each user may swap his own files alone
        elif status.st_mode & stat.S_IWOTH:
            why, advice = "all users may write to it", "Take that right away (chmod o-w)"
        elif status.st_mode & stat.S_IWGRP and not any_group and status.st_gid not in (os.getegid(), *os.getgroups()):
            why = f"the group {status.st_gid} may write to it, in which the engine's user is not"
            advice = "Take that right away (chmod g-w; hosts write to its directory files alone)"
        if why:
            raise SpoolError(
                f"spool {directory.path} cannot be used: {why}. Batches could be replaced, and files elsewhere be overwritten. "
                f"{advice}, or choose another one with --spool."
            )

    def _is_ours(self, status: os.stat_result) -> bool:
        """Return whether a file or directory is the engine's user's, or root's."""
        if self._owner is None and status.st_uid not in (os.geteuid(), 0):
            self._owner = self._owner_of_new_files()
        return status.st_uid in (os.geteuid(), 0, self._owner)

    def _owner_of_new_files(self) -> int:
        """Return the user id that a file gets here: a network file system may give all files to one user. -1: there is none."""
        name = f".ddlp-{secrets.token_hex(8)}"
        try:
            descriptor = self._spool.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            return -1
        owner = os.fstat(descriptor).st_uid
        os.close(descriptor)
        self._spool.unlink(name)
        return owner

    def _check_ours(self) -> None:
        """Raise SpoolError if the directory has no mark and holds other files: an engine would serve or remove them."""
        if self._is_marked():
            return
        other = next((path for path in self._below() if not re.fullmatch(OURS, path)), None)
        if other is not None:
            raise SpoolError(
                f"spool {self.directory} cannot be used: it holds files that are not ddlp's: {os.path.normpath(other)}. Give a "
                f"directory of its own with --spool, for example {self.directory / 'ddlp'}."
            )

    def _is_marked(self) -> bool:
        try:
            status = self._spool.status(MARK)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and self._is_ours(status)

    def _below(self) -> Iterator[str]:
        """Yield ./NAME for each entry of the directory, and files/NAME and so on for each entry of the `KEPT` ones."""
        yield from (f"./{name}" for name in self._spool.names())
        for above in KEPT:
            try:
                names = self._spool.below(above).names()
            except (FileNotFoundError, NotADirectoryError):
                continue
            yield from (f"{above}/{name}" for name in names)

    def _clear(self) -> None:
        """Remove the job directories, signs and recycled files of this engine, and of one that was killed."""
        for job in list(self._jobs):
            self.remove_job(job)
        try:
            names = self._spool.names()
        except OSError:
            return
        for name in names:
            if re.fullmatch(f"{SIGN}|{SPARE}", name):
                self._spool.unlink(name)
            elif re.fullmatch(JOB, name):
                try:
                    self._spool.remove(self._spool.below(name))
                except OSError:
                    pass  # no directory

    def make_job_directory(self) -> Directory:
        """Make and open a directory for a new job. Raises SpoolError."""
        self._jobs_made += 1
        name = f"job-{self._jobs_made}-{secrets.token_hex(4)}"
        try:
            self._jobs[name] = self._spool.make(name)
        except OSError as error:
            raise SpoolError(
                f"a job's directory cannot be made: {error.strerror}, {self.directory / name}. "
                "Check the spool's owner and free space."
            ) from None
        return self._jobs[name]

    def job_file(self, job: str, name: str) -> Entry:
        """Return a file of a job's directory, whether or not it exists."""
        return Entry(self._jobs[job], name)

    def remove_job(self, name: str) -> None:
        """Remove a job's directory and all its content."""
        directory = self._jobs.pop(name)
        self._spool.remove(directory)
        directory.close()

    def remove_host(self, name: str) -> None:
        """Remove the directory in SPOOL/files of a host that is gone. The host may have removed it already."""
        try:
            remove_host_directory(self._spool.below("files"), name)
        except OSError:
            pass

    def look(self, file: str) -> str:
        """Return `look_at` of files/HOST/NAME."""
        try:
            files = self._spool.below("files")
            files.names()  # see look_at
            return look_at(files.below(file.split("/")[1]), file.split("/")[2])
        except (OSError, IndexError):
            return ""

    def look_at_sign(self) -> str:
        """Return `look_at` of the spool's own sign."""
        return look_at(self._spool, self.sign)

    def remove_batch(self, file: Entry, file_bytes: int) -> None:
        """Remove a batch's file, complete or not, and take it off the count."""
        self.give_back(file_bytes)
        if self._recycled is not None:
            self._recycled.put(file, file_bytes)
            self._drop_recycled()
        for name in (file.name, file.name + PART_SUFFIX):
            file.directory.unlink(name)

    def _drop_recycled(self) -> None:
        """Keep batches and recycled files together within the quota."""
        files = self._recycled
        while files and (
            self.batches + len(files) > self.quota_batches
            or self.bytes + self.parcel_bytes + files.bytes > self.quota_bytes
        ):
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
        return self.shortage_of_bytes(file_bytes)

    def shortage_of_bytes(self, size: int) -> str:
        """Return why a file of so many bytes may not be begun now, or an empty text if it may."""
        if self.bytes + self.parcel_bytes + size > self.quota_bytes:
            samples = f", {size_text(self.parcel_bytes)} of samples to be prepared" if self.parcel_bytes else ""
            return f"spool quota full: {size_text(self.bytes)} of {size_text(self.quota_bytes)} wait to be fetched{samples}"
        free = self.free_bytes()
        if self._recycled and free - size < self.reserve_bytes:
            self._recycled.clear()
            free = self.free_bytes()
        if free - size < self.reserve_bytes:
            return (
                f"spool disk nearly full: {size_text(free)} free at {self.directory}, a batch takes {size_text(size)}, "
                f"{size_text(self.reserve_bytes)} stay reserved"
            )
        return ""

    def reserve_parcel(self, size: int) -> None:
        """Count the bytes of samples that a host sends."""
        self.parcel_bytes += size
        self._drop_recycled()

    def give_parcel_back(self, size: int) -> None:
        """Take the bytes of samples that are gone off the count."""
        self.parcel_bytes -= size

    def begin_batch(self, file: Entry, file_bytes: int) -> bool:
        """Count a batch that is begun. Return whether its writer will overwrite a recycled file, which is now in place."""
        self.batches += 1
        self.bytes += file_bytes
        if not self._recycled:
            return False
        given = self._recycled.give(Entry(file.directory, file.name + PART_SUFFIX))
        self._drop_recycled()
        return given

    def give_back(self, file_bytes: int) -> None:
        """Take a batch that is gone off the count."""
        self.batches -= 1
        self.bytes -= file_bytes

    def free_bytes(self) -> int:
        """Return the free bytes of the spool's file system, or 0 if the system does not tell."""
        try:
            return free_bytes(self._spool.descriptor)
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
            self._spool.unlink(name)
        os.close(self._lock)
        self._lock = -1
