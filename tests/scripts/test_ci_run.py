""".ci/run: first README's commands on the machine as it is; then the packages that tests lacked, and these tests again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci/run"
LACKING = "openssh-server\\ttests/a.py::test_1[x y]\\ngcc libc6-dev\\ttests/b.py::test_2\\n\\ttests/c.py::test_3\\n"
INSTALL = "apt-get -qq install -y --no-install-recommends gcc libc6-dev openssh-server"


def steps(project: Path, lacking: str, *, user: int = 0, ci: str = "", status: int = 0) -> list[str]:
    """Run .ci/run in a project whose other programs only log. `status`: of the tests that run again."""
    log = project / "log"
    scripts = {
        ".ci/run": SCRIPT.read_text(),
        "scripts/test.sh": "#!/bin/sh\n"
        f'if [ -n "$1" ]; then for one; do :; done; sed "s/^/again CI=$CI /" "${{one#@}}" >>{log}; exit {status}; fi\n'
        f'echo test.sh >>{log}; printf "{lacking}" >>"$DDLP_LACKING"\n',
        "scripts/quickstart.sh": f"#!/bin/sh\necho quickstart >>{log}\n",
        "bin/apt-get": f'#!/bin/sh\necho "apt-get $*" >>{log}\n',
        "bin/id": f"#!/bin/sh\necho {user}\n",
    }
    for name, text in scripts.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
        (project / name).chmod(0o755)
    (project / "tmp").mkdir()
    environment = {**os.environ, "PATH": f"{project}/bin:{os.environ['PATH']}", "TMPDIR": str(project / "tmp"), "CI": ci}
    done = subprocess.run([project / ".ci/run"], env=environment, stdout=subprocess.PIPE, text=True, timeout=300)
    assert (done.returncode == 0) == (status == 0), done.stdout
    assert not list((project / "tmp").iterdir())
    return log.read_text().splitlines()


def again(ci: str = "") -> list[str]:
    return [f"again CI={ci} tests/{test}" for test in ("a.py::test_1[x y]", "b.py::test_2", "c.py::test_3")]


@pytest.mark.parametrize("ci", ["", "true"])
def test_what_is_missing_is_installed_last(tmp_path: Path, ci: str) -> None:
    first, *then = steps(tmp_path, LACKING, ci=ci)
    assert first == "test.sh" and sorted(then[:3]) == [f"{INSTALL} --download-only", "apt-get -qq update", "quickstart"]
    assert then[3] == INSTALL and sorted(then[4:]) == again(ci)


def test_nothing_is_installed_where_nothing_is_missing(tmp_path: Path) -> None:
    assert steps(tmp_path, "") == ["test.sh", "quickstart"]


@pytest.mark.parametrize("ci", ["", "true"])
def test_an_ordinary_user_installs_nothing(tmp_path: Path, ci: str) -> None:
    """With CI set the tests run once more, and fail for what they lack."""
    first, second, *then = steps(tmp_path, LACKING, user=1000, ci=ci)
    assert (first, second) == ("test.sh", "quickstart") and sorted(then) == (again(ci) if ci else [])


def test_one_that_fails_then_is_a_failure(tmp_path: Path) -> None:
    assert sorted(steps(tmp_path, LACKING, status=1)[5:]) == again()
