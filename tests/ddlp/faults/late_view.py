"""`late_view.py SPOOL MOUNTPOINT LATE_S WAY`: a read-only FUSE file system that shows a spool late, as NFS may. Needs root.

A batch file that is younger than LATE_S is answered with "no such file" (WAY=absent) or as a short file (WAY=short), and
the kernel is told to cache that answer for a minute, as an NFS client does. Speaks to /dev/fuse directly.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time

ENTRY = struct.Struct("<QQQQII")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
REMEMBERED_S = 60
SHORT_BYTES = 4096


class View:
    def __init__(self, spool: str, late_s: float, way: str) -> None:
        self._spool, self._late_s, self._way = spool, late_s, way
        self._paths = {1: ""}
        self._nodes = {"": 1}

    def _attributes(self, path: str) -> tuple[bytes, bool]:
        """A file's attributes, and whether the kernel shall cache them although they will change soon."""
        real = os.path.join(self._spool, path)
        status = os.lstat(real)
        late = path.endswith(".safetensors") and time.time() - status.st_mtime < self._late_s
        size, mode = status.st_size, status.st_mode
        if path == "files":  # the host writes there: show the real directory
            mode = stat.S_IFLNK | 0o777
        if late and self._way == "absent":
            raise FileNotFoundError(errno.ENOENT, "late")
        if late:
            size = SHORT_BYTES
        times = [int(status.st_mtime)] * 3
        return ATTRIBUTES.pack(
            self._node(path), size, (size + 511) // 512, *times, 0, 0, 0, mode, 1, status.st_uid, status.st_gid, 0, 4096, 0
        ), late

    def _node(self, path: str) -> int:
        if path not in self._nodes:
            self._nodes[path] = len(self._nodes) + 1
            self._paths[self._nodes[path]] = path
        return self._nodes[path]

    def answer(self, opcode: int, node: int, body: bytes) -> bytes | None:
        """The reply to a request, or None if it needs none. Raises OSError for an error reply."""
        path = self._paths.get(node, "")
        real = os.path.join(self._spool, path)
        if opcode == 26:  # INIT
            return struct.pack("<IIIIHHIIHH32x", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 0, 0)
        if opcode == 1:  # LOOKUP
            child = os.path.join(path, os.fsdecode(body.rstrip(b"\0")))
            try:
                attributes, late = self._attributes(child)
            except FileNotFoundError:
                remembered = REMEMBERED_S if child.endswith(".safetensors") else 0
                return ENTRY.pack(0, 0, remembered, 0, 0, 0) + bytes(ATTRIBUTES.size)
            seconds = REMEMBERED_S if late else 0
            return ENTRY.pack(self._node(child), 0, seconds, seconds, 0, 0) + attributes
        if opcode == 3:  # GETATTR
            attributes, late = self._attributes(path)
            return struct.pack("<QII", REMEMBERED_S if late else 0, 0, 0) + attributes
        if opcode == 5:  # READLINK
            return os.fsencode(real)
        if opcode in (14, 27):  # OPEN, OPENDIR
            return struct.pack("<QII", os.open(real, os.O_RDONLY), 0, 0)
        if opcode == 15:  # READ
            descriptor, offset, size = struct.unpack_from("<QQI", body)
            return os.pread(descriptor, size, offset)
        if opcode == 28:  # READDIR
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._directory(path, offset, size)
        if opcode in (18, 29):  # RELEASE, RELEASEDIR
            os.close(struct.unpack_from("<Q", body)[0])
            return b""
        if opcode == 17:  # STATFS
            return struct.pack("<QQQQQIII28x", 0, 0, 0, 0, 0, 4096, 255, 4096)
        if opcode == 25:  # FLUSH
            return b""
        if opcode in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET
            return None
        raise OSError(errno.ENOSYS, "")

    def _directory(self, path: str, offset: int, size: int) -> bytes:
        entries = b""
        for number, name in enumerate(sorted(os.listdir(os.path.join(self._spool, path)))[offset:], offset + 1):
            text = os.fsencode(name)
            entry = struct.pack("<QQII", number, number, len(text), 0) + text
            entry += bytes(-len(entry) % 8)
            if len(entries) + len(entry) > size:
                break
            entries += entry
        return entries


def main() -> None:
    spool, mountpoint, late_s, way = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"late_view", os.fsencode(mountpoint), b"fuse", 1, options):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    view = View(spool, float(late_s), way)
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            continue
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        failure, reply = 0, None
        try:
            reply = view.answer(opcode, node, request[40:])
        except OSError as error:
            failure, reply = -(error.errno or errno.EIO), b""
        if reply is not None:
            try:
                os.write(device, struct.pack("<IiQ", 16 + len(reply), failure, unique) + reply)
            except OSError:
                pass  # the process that asked was interrupted


if __name__ == "__main__":
    main()
