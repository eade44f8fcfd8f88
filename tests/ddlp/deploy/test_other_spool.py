"""A device that gets another spool, and a spool that this host cannot see for a while."""

from __future__ import annotations

import os
from pathlib import Path

from ddlp.devices import address_book as book
from tests.ddlp.deploy.local_device import Device, ddlp, epoch


def test_in_the_spool_before_nothing_of_ours_is_left(device: Device, capsys, base: Path) -> None:
    def change(spool: Path) -> str:
        told = ddlp(capsys, "deploy", "--name", "csd0", "--spool", str(spool))
        assert book.load("csd0").device_spool == str(spool)
        assert epoch(device, csd="csd0", strategy="csd") and device.report.batches_csd
        return told

    ddlp(capsys, *device.arguments())
    assert epoch(device, csd="csd0", strategy="csd") and list(device.spool.glob("manifests/*"))
    (device.spool / "mine").write_text("not ddlp's")
    assert f"{device.spool}: what was ddlp's there is removed" in change(base / "other")
    assert os.listdir(device.spool) == ["mine"]
    change(base / "third")
    assert not (base / "other").exists(), "ddlp created it"
    (base / "same").symlink_to(base / "third")
    assert f"{base}/third: left as it is, an engine uses it" in change(base / "same")
    assert "old spool" not in ddlp(capsys, "deploy", "--name", "csd0")
