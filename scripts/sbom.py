#!/usr/bin/env python3
"""What the project's environment is made of (an SBOM in CycloneDX), and which of it has known vulnerabilities.

    .venv/bin/python -m scripts.sbom sbom.cdx.json               # writes the SBOM, then asks PyPI about vulnerabilities
    .venv/bin/python -m scripts.sbom sbom.cdx.json --no-audit

Run it with the Python of the environment. cyclonedx-py and pip-audit are in an environment of their own, with the versions of
constraints.txt; it is made the first time, which needs the network.

Exit status: 0 the SBOM has all pinned packages that are installed, in their pinned versions, and nothing is known against any
package; 1 a package is missing or has another version, or has a vulnerability; 3 the audit could not run, or left packages out.

DDLP_AUDIT_VENV   another place for that environment (default: .venv-audit in the project)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
TOOLS = ("cyclonedx-bom", "pip-audit")
AUDIT_TIMEOUT_S = 900.0


def tools() -> Path:
    """The directory of the tools' commands, which are installed if they are not there.

    Raises:
        CalledProcessError: pip can't install them.
    """
    place = Path(os.environ.get("DDLP_AUDIT_VENV") or ROOT / ".venv-audit")
    if not (place / "bin" / "pip-audit").exists():
        venv.create(place, with_pip=True, clear=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "-c", str(CONSTRAINTS), *TOOLS], check=True)
    return place / "bin"


def pins(text: str) -> dict[str, str]:
    """Package -> version of the lines of constraints.txt that hold for this Python and computer."""
    lines = [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]
    held = [one for one in lines if one.marker is None or one.marker.evaluate()]
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in held}


def installed(names: dict[str, str]) -> dict[str, str]:
    """Those of the packages that this environment has, with the versions that they are pinned to."""

    def is_here(name: str) -> bool:
        try:
            return bool(version(name))
        except PackageNotFoundError:
            return False

    return {name: pin for name, pin in names.items() if is_here(name)}


def differences(wanted: dict[str, str], sbom: dict[str, Any]) -> Iterator[str]:
    """Yield where the SBOM differs from the packages' pins."""
    told: dict[str, str] = {canonicalize_name(one["name"]): one.get("version", "no version") for one in sbom["components"]}
    for name, pin in sorted(wanted.items()):
        if told.get(name) != pin:
            yield f"{name}: pinned to {pin}, the SBOM has {told.get(name, 'none')}"


def audit(bin: Path, sbom: dict[str, Any]) -> int:
    """Ask PyPI about the SBOM's packages and print what is known. Returns the exit status."""
    # ddlp itself comes from no index, so nothing can be asked about it.
    packages = [f"{one['name']}=={one['version']}" for one in sbom["components"] if one["name"] != "ddlp" and "version" in one]
    asked = bin.parent / "asked.txt"
    asked.write_text("".join(f"{re.sub('[+].*', '', one)}\n" for one in packages))  # torch 2.14.1+cpu is PyPI's 2.14.1
    quiet = ["--progress-spinner=off", "--format=json"]
    command = [str(bin / "pip-audit"), "-r", str(asked), "--no-deps", "--disable-pip", *quiet]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_TIMEOUT_S)
        found = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        print(f"sbom: the audit did not run: no answer within {AUDIT_TIMEOUT_S:.0f} s", file=sys.stderr)
        return 3
    except (ValueError, KeyError):  # it writes its report only if it got one
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        print(f"sbom: the audit did not run: {last[-300:]}", file=sys.stderr)
        return 3
    skipped = [one for one in found if "skip_reason" in one]
    bad = [(one, what) for one in found for what in one.get("vulns", [])]
    for one, what in bad:
        mended = ", ".join(what["fix_versions"]) or "no version yet"
        print(f"sbom: {one['name']} {one['version']}: {what['id']}, mended in {mended}")
    print(f"sbom: audited {len(found) - len(skipped)} packages, {len(bad)} known vulnerabilities")
    if skipped:
        names = ", ".join(one["name"] for one in skipped[:5]) + (", ..." if len(skipped) > 5 else "")
        print(f"sbom: left out {len(skipped)} packages ({names}): {skipped[0]['skip_reason']}", file=sys.stderr)
    return 1 if bad else 3 if skipped else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="FILE", help="the SBOM is written here, in JSON")
    parser.add_argument("--no-audit", action="store_true", help="only the SBOM: nothing is asked of PyPI")
    options = parser.parse_args(arguments)
    try:
        bin = tools()
        environment = [sys.executable, "--output-reproducible", "--of", "JSON", "-o", options.out]
        subprocess.run([bin / "cyclonedx-py", "environment", *environment], check=True)
    except subprocess.CalledProcessError as error:
        print(f"sbom: no SBOM: {error} (its message is above)", file=sys.stderr)
        return 3
    sbom = json.loads(options.out.read_text())
    wanted = installed(pins(CONSTRAINTS.read_text()))
    wrong = list(differences(wanted, sbom))
    for line in wrong:
        print(f"sbom: {line}")
    as_pinned = len(wanted) - len(wrong)
    print(f"sbom: {options.out}: {len(sbom['components'])} packages, {as_pinned} of them as constraints.txt pins them")
    status = 0 if options.no_audit else audit(bin, sbom)
    return 1 if wrong else status


if __name__ == "__main__":
    sys.exit(main())
