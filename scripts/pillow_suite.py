"""Pillow's own tests with postponed images: each must have the same outcome as with Pillow's images.

Gets the source distribution of the installed Pillow by pip, and runs its tests twice: as they are, and after
`ddlp.postponed.install()`. Prints the tests whose outcome differs.

    python -m scripts.pillow_suite                       # the network, 47 MB, some minutes
    python -m scripts.pillow_suite --sdist pillow-13.0.0.tar.gz -k jpeg
"""

from __future__ import annotations

import argparse
import collections
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import PIL

ROOT = Path(__file__).resolve().parents[1]
_RUN = """
import sys, pytest
if sys.argv.pop(1) == "postponed":
    import ddlp.postponed
    if not ddlp.postponed.install():
        sys.exit(f"no postponed images here: {ddlp.postponed.why_not()}")
sys.exit(pytest.main(sys.argv[1:]))
"""


def main() -> int:
    """Run the tests both ways. Return 1 if a test's outcome differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sdist", type=Path, help="source distribution of the installed Pillow (default: pip downloads it)")
    parser.add_argument("-k", default="", metavar="WORDS", help="only tests whose names match, as pytest's -k")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddlp-pillow-") as place:
        folder = _unpacked(options.sdist or _fetched(Path(place)), Path(place))
        plain, postponed = (_outcomes(folder, how, options.k) for how in ("plain", "postponed"))
    print(f"Pillow {PIL.__version__}, its own tests\n{'':12}{'Pillow':>10}{'postponed':>12}")
    counts = collections.Counter(plain.values()), collections.Counter(postponed.values())
    for outcome in ("passed", "failed", "skipped"):
        print(f"{outcome:12}{counts[0][outcome]:10}{counts[1][outcome]:12}")
    other = sorted(name for name in plain.keys() | postponed.keys() if plain.get(name) != postponed.get(name))
    for name in other:
        print(f"{name}: {plain.get(name)}, postponed {postponed.get(name)}")
    return 1 if other or not plain else 0


def _fetched(place: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", "pillow", "--no-deps"]
    subprocess.run([*pip, f"pillow=={PIL.__version__}"], cwd=place, check=True)
    return next(place.glob("*.tar.gz"))


def _unpacked(sdist: Path, place: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        archive.extractall(place)
    folder = place / f"pillow-{PIL.__version__}"
    if not (folder / "Tests").is_dir():
        raise SystemExit(f"{sdist} has no tests of the installed Pillow {PIL.__version__}; give that version's --sdist")
    return folder


def _outcomes(folder: Path, how: str, words: str) -> dict[str, str]:
    """Run the tests. Return the outcome of each by its name."""
    report = folder / f"{how}.xml"
    arguments = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-k", words, "Tests"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    with (folder / f"{how}.txt").open("w") as output:
        subprocess.run([sys.executable, "-c", _RUN, how, *arguments], cwd=folder, env=environment, stdout=output, stderr=output)
    if not report.exists():
        raise SystemExit(f"the tests did not run:\n{(folder / f'{how}.txt').read_text()[-2000:]}")
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[f"{case.get('classname')}.{case.get('name')}"] = outcome
    return found


if __name__ == "__main__":
    sys.exit(main())
