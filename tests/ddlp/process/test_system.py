"""Which system this is, from /proc: the same name each time, another one elsewhere, and a name even if /proc says nothing."""

from __future__ import annotations

import os
from pathlib import Path

from ddlp.process.system import boot, own_prefix, processes


def system(root: Path, boot_id: str, namespace: str) -> Path:
    (root / "proc/sys/kernel/random").mkdir(parents=True)
    (root / "proc/sys/kernel/random/boot_id").write_text(f"{boot_id}\n")
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to(namespace)
    return root


def test_machines_and_containers_are_told_apart(tmp_path: Path) -> None:
    one = system(tmp_path / "one", "c4a8", "pid:[4026531836]")
    container = system(tmp_path / "container", "c4a8", "pid:[4026532201]")
    other = system(tmp_path / "other", "77e0", "pid:[4026531836]")
    assert boot(one) == boot(container) != boot(other)
    assert len({processes(one), processes(container), processes(other)}) == 3


def test_where_nothing_is_told_there_is_a_name_all_the_same(tmp_path: Path) -> None:
    assert len(boot(tmp_path)) == 8 and processes(tmp_path) == boot(tmp_path)


def test_here() -> None:
    assert own_prefix() == f"ddlp-{os.getuid()}-{boot()}-" and processes().startswith(boot())
