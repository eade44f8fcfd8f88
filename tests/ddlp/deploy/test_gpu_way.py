"""What doctor says about the path from storage to GPU memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddlp.cli import main
from ddlp.deploy.diagnosis import of_probe
from ddlp.deploy.findings import Level
from ddlp.transfer.gds.probe import Probe


@pytest.mark.parametrize(
    ("found", "level", "what"),
    [
        (Probe("posix", "no driver", gpu=False), Level.OK, "no NVIDIA GPU here"),
        (
            Probe("gds", "a probe read came", (), 6.5),
            Level.OK,
            "gds: /spool is read straight into GPU memory (a probe read came, 6.5 GB/s",
        ),
        (
            Probe("cufile-compat", "not loaded", ("load it", "mount it")),
            Level.WARN,
            "cufile-compat: no GPUDirect Storage from /spool; cuFile copies",
        ),
        (Probe("posix", "kvikio is not installed", ("pip install ddlp[gpu]",)), Level.WARN, "posix: no GPUDirect Storage"),
    ],
)
def test_each_kind_is_told_with_its_ways_out(found: Probe, level: Level, what: str) -> None:
    (finding,) = of_probe("/spool", found)
    assert finding.level is level and finding.what.startswith(what)
    if level is Level.WARN:
        assert finding.why == found.reason and finding.way_out.lower() == "; and ".join(found.ways_out).lower()


def test_the_spool_that_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def look(spool: str) -> Probe:
        asked.append(spool)
        return Probe("posix", "no driver", gpu=False)

    monkeypatch.setattr("ddlp.deploy.doctor.probe", look)
    monkeypatch.setenv("DDLP_SPOOL", str(tmp_path / "set"))
    monkeypatch.chdir(tmp_path)
    for arguments in ([], ["--spool", "here"]):
        assert main(["doctor", *arguments]) == 0
    monkeypatch.delenv("DDLP_SPOOL")
    assert main(["doctor"]) == 0
    assert asked[:2] == [str(tmp_path / "set"), str(tmp_path / "here")] and os.path.isdir(asked[2])
    assert capsys.readouterr().out.count("no NVIDIA GPU here") == 3
    assert main(["doctor", "csd0", "--spool", "here"]) != 0
    assert "--spool is for this host alone" in capsys.readouterr().err
