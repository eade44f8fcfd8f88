"""Finds what prevents direct reads from a directory into GPU memory, in /proc and /sys and without CUDA.

The results are possible reasons, in the order of causes. Only a read can tell whether reads are direct
(`ddlp.transfer.gds.probe`). Sources: NVIDIA's GPUDirect Storage troubleshooting guide and release notes, 1.13 to 1.18.

Functions that look at the system take the root of the file tree, so that they can look at a recorded one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ddlp.transfer.gds.cufile import read_settings, wants_p2pdma

__all__ = ["Disk", "Place", "ask_p2pdma", "gpus", "nvidia_fs", "place_of", "ways_out", "why_not"]

_KERNEL = (6, 2)
_DRIVER = 565
_OWN_SUPPORT = {"lustre": "Lustre", "wekafs": "WekaFS", "gpfs": "IBM Storage Scale", "beegfs": "BeeGFS"}
_NETWORK = ("9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "fuse.glusterfs", "smb3", "virtiofs")
_MOVE = "give one on a local NVMe drive (spool=, $DDLP_SPOOL)"


@dataclass(frozen=True)
class Disk:
    """A block device below a file system.

    Attributes:
        name: as in /sys/block: "nvme0n1".
        kind: "NVMe", "NVMe over rdma", "SATA or SCSI", "virtual disk", "loop device", "device mapper", "RAID", ...
        below: what a device mapper or RAID volume lies on.
    """

    name: str
    kind: str
    below: tuple[Disk, ...] = ()

    def __str__(self) -> str:
        on = f" on {', '.join(map(str, self.below))}" if self.below else ""
        return f"{self.name} ({self.kind}{on})"


@dataclass(frozen=True)
class Place:
    """The file system that a directory is on.

    Attributes:
        directory: as it was given, absolute and without links.
        mount_point: where the file system is mounted.
        kind: "ext4", "xfs", "tmpfs", "overlay", "nfs4", ...
        options: its mount options.
        disk: the block device; None where there is none below.
    """

    directory: str
    mount_point: str
    kind: str
    options: frozenset[str]
    disk: Disk | None


def why_not() -> tuple[str, str] | None:
    """Why this process can't read into GPU memory, and what to do; None if it may. Imports neither torch nor kvikio."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"NVIDIA's driver is not here ({error})", "On a machine with an NVIDIA GPU, install its driver"
    if importlib.util.find_spec("kvikio") is None:
        return "kvikio is not installed", "pip install ddlp[gpu] (ddlp[gpu-cu12] for a torch built with CUDA 12)"
    return None


def place_of(directory: str | os.PathLike[str], root: str | os.PathLike[str] = "/") -> Place | None:
    """Find a directory's file system in /proc/self/mountinfo (see proc(5)); None if that can't be read."""
    root = Path(root)
    path = os.path.realpath(directory)
    mount: list[str] | None = None
    at = ""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        fields = line.split(" ")
        if len(fields) < 10 or "-" not in fields[6:]:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(at):  # a later mount hides an earlier one at the same place
            mount, at = fields, point
    if mount is None:
        return None
    kind, _, super_options = mount[mount.index("-", 6) + 1 :][:3]
    options = frozenset(mount[5].split(",")) | frozenset(super_options.split(","))
    device = root / "sys/dev/block" / mount[2]
    return Place(path, at, kind, options, _disk(device.resolve(), root) if device.exists() else None)


def _disk(device: Path, root: Path) -> Disk:
    """The disk of a device's folder below /sys/devices; of a partition, the disk that it is part of."""
    if (device / "partition").exists():
        device = device.parent
    name = device.name
    below = tuple(_disk(lower.resolve(), root) for lower in sorted((device / "slaves").glob("*")))
    kind = "block device"
    if name.startswith("nvme"):
        transport = _read(device / "device/transport").strip() or "pcie"
        kind = "NVMe" if transport == "pcie" else f"NVMe over {transport}"
    else:
        for prefix, what in (
            ("sd", "SATA or SCSI"), ("vd", "virtual disk"), ("xvd", "virtual disk"), ("loop", "loop device"),
            ("dm-", "device mapper"), ("md", "RAID"), ("mmcblk", "SD card"),
        ):  # fmt: skip
            if name.startswith(prefix):
                kind = what
                break
    return Disk(name, kind, below)


def gpus(root: str | os.PathLike[str] = "/") -> int:
    """How many GPUs NVIDIA's driver shows; 1 where it tells no number (WSL, some containers)."""
    root = Path(root)
    shown = len(list((root / "proc/driver/nvidia/gpus").glob("*")))
    return shown or int((root / "dev/nvidiactl").exists() or (root / "dev/dxg").exists())


def nvidia_fs(root: str | os.PathLike[str] = "/") -> bool:
    """Whether the kernel module nvidia-fs is loaded."""
    root = Path(root)
    listed = any(line.startswith("nvidia_fs ") for line in _read(root / "proc/modules").splitlines())
    return listed or (root / "proc/driver/nvidia-fs/version").exists()


def ask_p2pdma(root: str | os.PathLike[str] = "/") -> tuple[str, ...]:
    """What this system lacks for the kernel's PCI P2PDMA, the way without nvidia-fs; empty if nothing is seen."""
    root = Path(root)
    wants = []
    release = _read(root / "proc/sys/kernel/osrelease").strip()
    version = re.match(r"(\d+)\.(\d+)", release)
    if version and (int(version[1]), int(version[2])) < _KERNEL:
        wants.append(f"a kernel from {_KERNEL[0]}.{_KERNEL[1]} on (this is {release})")
    elif re.search(r"^# CONFIG_PCI_P2PDMA is not set", _kernel_config(root, release), re.MULTILINE):
        wants.append(f"a kernel built with CONFIG_PCI_P2PDMA (this one, {release}, is not)")
    driver = _read(root / "proc/driver/nvidia/version")
    number = re.search(r"\s(\d{3,})\.\d+", driver)
    if not ("Open Kernel Module" in driver and number and int(number[1]) >= _DRIVER):
        has = "none is loaded" if not number else f"this is {number[0].strip()}"
        if number and "Open Kernel Module" not in driver:
            has += ", not the open one"
        wants.append(f"NVIDIA's open kernel driver from {_DRIVER} on ({has})")
    x86 = _read(root / "proc/sys/kernel/arch").strip() in ("x86_64", "")  # told from Linux 6.1 on
    if x86 and "RMForceStaticBar1=1" not in _read(root / "proc/driver/nvidia/params"):
        wants.append('"options nvidia NVreg_RegistryDwords=RMForceStaticBar1=1;RmForceDisableIomapWC=1;" in /etc/modprobe.d')
    if _read(root / "sys/module/nvme_core/parameters/multipath").strip() == "Y":
        wants.append('"options nvme_core multipath=N" in /etc/modprobe.d')
    return tuple(wants)


def ways_out(
    directory: str | os.PathLike[str], root: str | os.PathLike[str] = "/", *, p2pdma_on: bool | None = None
) -> tuple[str, ...]:
    """What would make reads from a directory direct: each an imperative with its reason, causes first.

    Empty if no obstacle is seen. That is no proof.

    Args:
        directory: the spool, or where batch files lie.
        root: of the file tree that /proc, /sys, /boot and /run are looked up in.
        p2pdma_on: cuFile is told to use PCI P2PDMA; None: as its settings and environment have it.
    """
    root = Path(root)
    if p2pdma_on is None:
        p2pdma_on = wants_p2pdma(read_settings())
    place = place_of(directory, root)
    ways = [] if place is None else _of_place(place)
    if place is not None and place.disk is not None and not ways:
        ways += _of_disk(place, place.disk)
    if place is None or place.kind not in _OWN_SUPPORT:
        ways += _of_driver(root, p2pdma_on, place)
    if not os.access(root / "run/udev", os.R_OK):
        ways.append(
            "make /run/udev readable: without it kvikio goes round cuFile (in a container: --volume /run/udev:/run/udev:ro)"
        )
    if any((root / "sys/class/iommu").glob("*")) and "iommu=pt" not in _read(root / "proc/cmdline"):
        ways.append("boot with iommu=pt, or switch the IOMMU off: it is on, and keeps devices from reaching each other")
    return tuple(ways)


def _of_place(place: Place) -> list[str]:
    kind, where = place.kind, place.directory
    if kind == "ext4":
        modes = [option for option in place.options if option.startswith("data=")]
        if modes == ["data=ordered"]:
            return []
        said = f"its options say {modes[0]}" if modes else "cuFile looks for the option, default or not"
        return [f"mount {place.mount_point} with data=ordered written out: {said} (ext4)"]
    if kind == "xfs":
        return []
    if kind in _OWN_SUPPORT:
        return [f"see the maker's notes on GPUDirect Storage: {where} is on {_OWN_SUPPORT[kind]}, which has support of its own"]
    if kind in ("tmpfs", "ramfs", "devtmpfs"):
        return [f"{_MOVE}: {where} is on {kind}, that is in the host's memory, with no drive to read from"]
    if kind == "overlay":
        return [f"{_MOVE}, mounted into the container: {where} is on overlay, the container's own layers"]
    if kind in ("nfs", "nfs4"):
        if "proto=rdma" in place.options:
            return [f"load nvidia-fs and an NFS client with GPUDirect Storage (DOCA): {where} is on NFS over RDMA"]
        return [f"{_MOVE}, or mount NFS with proto=rdma: {where} is on {kind} over TCP, which goes through the host's memory"]
    if kind in _NETWORK:
        return [f"{_MOVE}: {where} is on {kind}, a network file system that cuFile has no direct path from"]
    return [f"{_MOVE} with ext4 or XFS: {where} is on {kind}, which cuFile does not read directly"]


def _of_disk(place: Place, disk: Disk) -> list[str]:
    where = f"{place.mount_point} is on {disk}"
    if disk.kind.startswith("NVMe"):
        return []
    if disk.kind == "RAID":
        return [f"use a drive without RAID below: {where}; PCI P2PDMA supports none, nvidia-fs RAID 0"]
    if disk.kind == "device mapper":
        return [f"use a partition of an NVMe drive itself: {where}, and LVM or encryption may stand between"]
    if disk.kind == "virtual disk":
        return [f"pass an NVMe drive through to this virtual machine: {where}, which no GPU reaches"]
    return [f"{_MOVE}: {where}, and only NVMe drives write into a GPU's memory"]


def _of_driver(root: Path, p2pdma_on: bool, place: Place | None) -> list[str]:
    """What the kernel's side wants: nvidia-fs, or PCI P2PDMA."""
    if nvidia_fs(root):
        users = _read(root / "proc/driver/nvidia-fs/modules")
        if users and "nvme" not in users and place is not None and place.kind in ("ext4", "xfs"):
            return [
                "install an nvme driver that works with nvidia-fs (DOCA or MLNX_OFED): nvidia-fs is loaded, and "
                "/proc/driver/nvidia-fs/modules lists no nvme"
            ]
        return []
    wants = ask_p2pdma(root)
    load = "load nvidia-fs (package nvidia-fs-dkms or nvidia-gds, then modprobe nvidia-fs)"
    if wants:
        return [f"{load}; or go without it by PCI P2PDMA, which wants " + ", and ".join(wants)]
    if not p2pdma_on:
        return ["set CUFILE_USE_PCIP2PDMA=true: this system seems to have what PCI P2PDMA wants, and it is off in cuFile"]
    return []


def _kernel_config(root: Path, release: str) -> str:
    with contextlib.suppress(OSError, EOFError):
        with gzip.open(root / "proc/config.gz", "rt") as stream:
            return stream.read()
    return _read(root / f"boot/config-{release}") or _read(root / f"lib/modules/{release}/config")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
