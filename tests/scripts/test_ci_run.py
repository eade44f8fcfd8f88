""".ci/run: first README's command on the machine as it is; then the packages that tests lacked, and these tests again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci/run"
LACKING = "openssh-server\\ttests/a.py::test_1[x y]\\ngcc libc6-dev\\ttests/b.py::test_2\\n\\ttests/c.py::test_3\\n"


@pytest.mark.parametrize("lacking", ["", LACKING], ids=["nothing is missing", "packages are missing"])
@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("ci", ["", "true"])
def test_what_is_missing_is_installed_last(tmp_path: Path, lacking: str, user: int, ci: str) -> None:
    said = tmp_path / "said"
    stubs = {
        ".ci/run": SCRIPT.read_text(),
        "scripts/test.sh": "#!/bin/sh\n"
        f'echo "test.sh CI=$CI $(cat $(echo "$1" | tr -d @) /dev/null | xargs -d "\\n" echo)" | sed "s/ *$//" >>{said}\n'
        f'[ -n "$1" ] || printf "{lacking}" >>"$DDLP_LACKING"\n',
        "scripts/quickstart.sh": f"#!/bin/sh\necho quickstart >>{said}\n",
        "bin/apt-get": f'#!/bin/sh\necho "apt-get $*" >>{said}\n',
        "bin/id": f"#!/bin/sh\necho {user}\n",
    }
    for name, text in stubs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp"), "CI": ci}
    done = subprocess.run([tmp_path / ".ci/run"], env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    install = ["apt-get -qq update", "apt-get -qq install -y --no-install-recommends gcc libc6-dev openssh-server"]
    again = [f"test.sh CI={ci} tests/a.py::test_1[x y] tests/b.py::test_2 tests/c.py::test_3"]
    second = (install if user == 0 else []) + (again if user == 0 or ci else [])
    assert said.read_text().splitlines() == ["test.sh CI=", *(second if lacking else []), "quickstart"]
    assert not list((tmp_path / "tmp").iterdir())
