"""The SBOM names each package that constraints.txt pins. An audit that could not run is reported as such."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from scripts import sbom


def test_a_package_that_is_missing_or_differs_is_named() -> None:
    wanted = sbom.pins("# x\nNumPy==2.0 ; python_full_version >= '3.8'\nold==1.0 ; python_full_version < '3.8'\nruff==0.17\n")
    assert wanted == {"numpy": "2.0", "ruff": "0.17"}
    as_pinned = [{"name": "numpy", "version": "2.0"}, {"name": "Ruff", "version": "0.17"}]
    assert not list(sbom.differences(wanted, {"components": as_pinned}))
    found = list(sbom.differences(wanted, {"components": [{"name": "numpy", "version": "2.1"}]}))
    assert found == ["numpy: pinned to 2.0, the SBOM has 2.1", "ruff: pinned to 0.17, the SBOM has none"]


def test_the_tools_that_check_the_project_are_pinned() -> None:
    names = sbom.pins(sbom.CONSTRAINTS.read_text())
    assert {"ruff", "mypy", "pytest", "vermin", "codespell", *sbom.TOOLS} <= set(names)


@pytest.mark.skipif(not os.environ.get("DDLP_AUDIT_VENV"), reason="DDLP_AUDIT_VENV, with cyclonedx-py in it, is not set")
def test_the_sbom_names_every_pinned_package_that_is_installed(tmp_path: Path) -> None:
    out = tmp_path / "sbom.json"
    assert sbom.main([str(out), "--no-audit"]) == 0
    told = {one["name"].lower().replace("_", "-"): one["version"] for one in json.loads(out.read_text())["components"]}
    wanted = sbom.installed(sbom.pins(sbom.CONSTRAINTS.read_text()))
    assert wanted and not set(wanted.items()) - {(name.replace(".", "-"), version) for name, version in told.items()}


@pytest.mark.parametrize(
    ("report", "status"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', 0),
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}]}', 1),
        ('{"dependencies": [{"name": "a", "skip_reason": "not found on PyPI"}]}', 3),
        ("", 3),
    ],
)
def test_an_audit_that_could_not_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], report: str, status: int
) -> None:
    tool = tmp_path / "bin" / "pip-audit"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\nprint({report!r})\n")
    tool.chmod(0o755)
    assert sbom.audit(tool.parent, {"components": [{"name": "a", "version": "1"}]}) == status
    out, err = capsys.readouterr()
    assert {0: "0 known", 1: "CVE-1, mended in 2", 3: "not found on PyPI" if report else "did not run"}[status] in out + err
