"""What prevents direct reads, on recorded systems: the parts of /proc and /sys that are read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ddlp.transfer.gds.needs import ask_p2pdma, gpus, nvidia_fs, place_of, ways_out

OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22-I3-B03-01)\n"
OLD_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
ROOT = "22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro\n"
PROC = "23 22 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw\n"


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's settings of cuFile must not matter."""
    monkeypatch.delenv("CUFILE_USE_PCIP2PDMA", raising=False)
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", str(tmp_path / "none"))


class System:
    """A recorded system with kernel 6.8, one GPU and nothing that prevents direct reads. ``files`` are written over it."""

    def __init__(self, root: Path, mounts: str, **files: str) -> None:
        self.root = root
        self.write("proc/self/mountinfo", ROOT + PROC + mounts)
        self.write("proc/sys/kernel/osrelease", "6.8.0-49-generic\n")
        self.write("proc/sys/kernel/arch", "x86_64\n")
        self.write("proc/driver/nvidia/version", OPEN_DRIVER)
        self.write("proc/driver/nvidia/params", 'RegistryDwords: "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"\n')
        self.write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: NVIDIA H100 PCIe\n")
        self.write("sys/module/nvme_core/parameters/multipath", "N\n")
        self.write("run/udev/data/b259:1", "")
        for name, text in files.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def link(self, name: str, target: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def nvme(self, number: str = "259:1", transport: str = "pcie") -> System:
        """Add an NVMe drive with one partition of this device number."""
        disk = "devices/pci0000:00/0000:00:1d.0/0000:3d:00.0/nvme/nvme0/nvme0n1"
        self.write(f"sys/{disk}/nvme0n1p1/partition", "1\n")
        self.link(f"sys/{disk}/device", "../../nvme0")
        self.write(f"sys/{disk.rpartition('/')[0]}/transport", f"{transport}\n")
        self.link(f"sys/dev/block/{number}", f"../../{disk}/nvme0n1p1")
        return self

    def ways(self, directory: str, **options: bool) -> tuple[str, ...]:
        return ways_out(directory, self.root, **options)


def mounted(point: str, number: str, kind: str, source: str, options: str) -> str:
    return f"90 22 {number} / {point} rw,noatime shared:9 - {kind} {source} rw,{options}\n"


NVME_EXT4 = mounted("/nvme", "259:1", "ext4", "/dev/nvme0n1p1", "data=ordered")
NVME_XFS = mounted("/nvme", "259:1", "xfs", "/dev/nvme0n1p1", "attr2,inode64")


def test_nvme_ext4_and_nvidia_fs_want_nothing(tmp_path: Path) -> None:
    system = System(tmp_path, NVME_EXT4).nvme()
    system.write("proc/modules", "nvidia_fs 286720 0 - Live 0x0000000000000000 (OE)\nnvme 57344 2 nvidia_fs, Live 0x0\n")
    system.write("proc/driver/nvidia-fs/modules", "nvme: 1\n")
    assert nvidia_fs(tmp_path) and system.ways("/nvme/spool") == ()
    place = place_of("/nvme/spool", tmp_path)
    assert place is not None and (place.kind, place.mount_point, str(place.disk)) == ("ext4", "/nvme", "nvme0n1 (NVMe)")
    system.write("proc/driver/nvidia-fs/modules", "wekafsio: 1\n")
    (way,) = system.ways("/nvme/spool")
    assert "lists no nvme" in way and "DOCA" in way


def test_nvme_xfs_and_p2pdma_want_cufile_to_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(tmp_path, NVME_XFS).nvme()
    assert not nvidia_fs(tmp_path) and ask_p2pdma(tmp_path) == ()
    (way,) = system.ways("/nvme/spool")
    assert way.startswith("set CUFILE_USE_PCIP2PDMA=true")
    assert system.ways("/nvme/spool", p2pdma_on=True) == ()
    monkeypatch.setenv("CUFILE_USE_PCIP2PDMA", "true")
    assert system.ways("/nvme/spool") == ()
    system.write("proc/driver/nvidia/version", OLD_DRIVER)
    (way,) = system.ways("/nvme/spool")
    assert way.startswith("load nvidia-fs") and "not the open one" in way


def test_an_old_system_with_a_sata_drive(tmp_path: Path) -> None:
    system = System(tmp_path, "")
    disk = "devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda"
    system.write(f"sys/{disk}/sda2/partition", "2\n")
    system.link("sys/dev/block/8:2", f"../../{disk}/sda2")
    system.write("proc/sys/kernel/osrelease", "5.15.0-130-generic\n")
    system.write("proc/driver/nvidia/version", OLD_DRIVER)
    system.write("proc/driver/nvidia/params", 'RegistryDwords: ""\n')
    system.write("sys/module/nvme_core/parameters/multipath", "Y\n")
    system.write("sys/class/iommu/dmar0/x", "")
    system.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda2 ro quiet\n")
    ordered, driver, iommu = system.ways("/home/spool")
    assert "mount / with data=ordered written out" in ordered and "default or not" in ordered
    for wanted in ("5.15.0-130-generic", "open kernel driver from 565", "this is 535.104", "not the open one"):
        assert wanted in driver
    assert "RMForceStaticBar1=1" in driver and "multipath=N" in driver and driver.startswith("load nvidia-fs")
    assert "iommu=pt" in iommu
    system.write("proc/self/mountinfo", ROOT.replace("errors=remount-ro", "data=ordered"))
    assert "/ is on sda (SATA or SCSI), and only NVMe" in system.ways("/home/spool")[0]
    system.write("proc/self/mountinfo", ROOT.replace("errors=remount-ro", "data=writeback"))
    assert "its options say data=writeback" in system.ways("/home/spool")[0]
    system.write("proc/cmdline", "root=/dev/sda2 iommu=pt\n")
    assert len(system.ways("/home/spool")) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (mounted("/spool", "0:25", "tmpfs", "tmpfs", "size=4g"), "on tmpfs, that is in the host's memory"),
        (
            mounted("/spool", "0:50", "overlay", "overlay", "lowerdir=/l,upperdir=/u"),
            "mounted into the container: /spool/x is on overlay",
        ),
        (mounted("/spool", "0:51", "nfs4", "nas:/spool", "vers=4.2,proto=tcp,nconnect=4"), "mount NFS with proto=rdma"),
        (mounted("/spool", "0:51", "nfs4", "nas:/spool", "vers=4.2,proto=rdma"), "NFS over RDMA"),
        (mounted("/spool", "0:52", "cifs", "//nas/spool", "vers=3.1.1"), "on cifs, a network file system"),
        (mounted("/spool", "0:53", "btrfs", "/dev/nvme0n1p1", "ssd"), "ext4 or XFS: /spool/x is on btrfs"),
        (mounted("/spool", "0:54", "lustre", "mds@tcp:/f", "flock"), "Lustre, which has support of its own"),
    ],
)
def test_other_file_systems_are_named_as_what_they_are(line: str, said: str, tmp_path: Path) -> None:
    ways = System(tmp_path, line).ways("/spool/x")
    assert said in ways[0]
    place = place_of("/spool/x", tmp_path)
    assert place is not None and place.disk is None


def test_volumes_above_drives(tmp_path: Path) -> None:
    mounts = mounted("/lvm", "253:0", "xfs", "/dev/mapper/vg-lv", "attr2") + mounted("/raid", "9:0", "xfs", "/dev/md0", "attr2")
    mounts += mounted("/vm", "252:1", "xfs", "/dev/vda1", "attr2") + mounted("/far", "259:1", "xfs", "/dev/nvme0n1p1", "attr2")
    system = System(tmp_path, mounts).nvme(transport="rdma")
    for number, name in (("253:0", "dm-0"), ("9:0", "md0")):
        system.link(f"sys/devices/virtual/block/{name}/slaves/nvme0n1p1", "../../../../../dev/block/259:1")
        system.link(f"sys/dev/block/{number}", f"../../devices/virtual/block/{name}")
    system.write("sys/devices/pci0/virtio2/block/vda/vda1/partition", "1\n")
    system.link("sys/dev/block/252:1", "../../devices/pci0/virtio2/block/vda/vda1")
    assert "/lvm is on dm-0 (device mapper on nvme0n1 (NVMe over rdma))" in system.ways("/lvm")[0]
    assert "/raid is on md0 (RAID on nvme0n1 (NVMe over rdma)); PCI P2PDMA supports none" in system.ways("/raid")[0]
    assert "pass an NVMe drive through" in system.ways("/vm")[0]
    assert system.ways("/far")[0].startswith("set CUFILE_USE_PCIP2PDMA")


def test_the_innermost_and_latest_mount_counts(tmp_path: Path) -> None:
    mounts = mounted("/mnt", "0:60", "tmpfs", "t", "x") + mounted("/mnt/my\\040disk", "259:1", "ext4", "/dev/n", "data=ordered")
    mounts += mounted("/mnt/over", "0:61", "tmpfs", "t", "x") + mounted("/mnt/over", "0:62", "nfs", "n:/", "proto=tcp")
    system = System(tmp_path, mounts + "garbage\n").nvme()
    kinds = {name: place_of(f"/mnt/{name}", system.root) for name in ("my disk/spool", "over/x", "overland", "")}
    assert {name: place and place.kind for name, place in kinds.items()} == {
        "my disk/spool": "ext4", "over/x": "nfs", "overland": "tmpfs", "": "tmpfs",
    }  # fmt: skip


def test_the_kernels_configuration_and_the_container(tmp_path: Path) -> None:
    system = System(tmp_path, NVME_XFS).nvme()
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(b"CONFIG_PCI=y\n# CONFIG_PCI_P2PDMA is not set\n"))
    assert "built with CONFIG_PCI_P2PDMA (this one, 6.8.0-49-generic, is not)" in system.ways("/nvme")[0]
    (tmp_path / "proc/config.gz").write_bytes(b"no gzip")
    assert ask_p2pdma(tmp_path) == ()
    system.write("boot/config-6.8.0-49-generic", "# CONFIG_PCI_P2PDMA is not set\n")
    assert len(ask_p2pdma(tmp_path)) == 1
    system.write("boot/config-6.8.0-49-generic", "CONFIG_PCI_P2PDMA=y\n")
    assert ask_p2pdma(tmp_path) == ()
    (tmp_path / "run/udev/data/b259:1").unlink()
    (tmp_path / "run/udev/data").rmdir()
    (tmp_path / "run/udev").rmdir()
    assert "--volume /run/udev:/run/udev:ro" in system.ways("/nvme")[-1]
    assert gpus(tmp_path) == 1


def test_nothing_recorded_is_no_error(tmp_path: Path) -> None:
    assert place_of("/tmp", tmp_path) is None and gpus(tmp_path) == 0
    assert "none is loaded" in ways_out("/tmp", tmp_path)[0]
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert gpus(tmp_path) == 1


def test_this_system_can_be_read(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    if place is None and " / / " not in Path("/proc/self/mountinfo").read_text():
        pytest.skip("in a chroot, whose root is no mount point")
    assert place is not None and str(tmp_path.resolve()).startswith(place.mount_point)
    assert all(isinstance(way, str) and way for way in ways_out(tmp_path))
