"""Which environment scripts/gpu_check.sh uses, tested with fake interpreters that print what they are asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Makes an environment whose interpreter has everything but a GPU; or prints where its packages are, if it may.
MAKER = """#!/bin/sh
echo "$*" >> "{calls}"
if [ "$2" = venv ]; then
  mkdir -p "$3/bin" "$3/site"
  cp "{environment}" "$3/bin/python"
elif [ -e "{broken}" ]; then
  exit 1
else
  echo /packages/of/{name}
fi
"""
ENVIRONMENT = """#!/bin/sh
[ "$2" != "import zmq" ] || [ -n "$PYTHONPATH" ] || exit 1
case "$*" in
  *"pip install"*) echo "$*" >> "{calls}" ;;
esac
case "$2" in
  *purelib*) echo "$(dirname "$(dirname "$0")")/site" ;;
  *is_available*) exit 1 ;;
  *torch.version.cuda*) echo 13 ;;
esac
"""


class Scene:
    """The script, with an environment below a directory."""

    def __init__(self, home: Path) -> None:
        self.home, self.venv, self.broken = home, home / "venv", home / "broken"
        self.beside = self.venv / "site" / "beside.pth"
        self.calls = home / "calls"
        (home / "environment").write_text(ENVIRONMENT.format(calls=self.calls))
        (home / "environment").chmod(0o755)

    def python(self, name: str) -> str:
        path = self.home / name
        path.write_text(MAKER.format(environment=self.home / "environment", broken=self.broken, calls=self.calls, name=name))
        path.chmod(0o755)
        return str(path)

    def check(self, python: str) -> str:
        """What the script prints before it ends. It always ends, because there is no GPU."""
        done = subprocess.run(
            [ROOT / "scripts/gpu_check.sh", "--tests"],
            env={**os.environ, "DDLP_GPU_PYTHON": python, "DDLP_GPU_VENV": str(self.venv)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 1, done.stderr
        return done.stderr


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_environment_is_made_once_and_again_for_another_interpreter(scene: Scene) -> None:
    first, second = scene.python("first"), scene.python("second")
    assert "making it again" not in scene.check(first)
    assert scene.beside.read_text() == "/packages/of/first\n"
    (scene.venv / "kept").touch()
    assert "making it again" not in scene.check(first) and (scene.venv / "kept").exists()
    assert f"DDLP_GPU_PYTHON={second}; making it again" in scene.check(second)
    assert scene.beside.read_text() == "/packages/of/second\n" and not (scene.venv / "kept").exists()


def test_one_that_was_not_made_to_the_end_is_made_again(scene: Scene) -> None:
    first = scene.python("first")
    scene.broken.touch()
    assert "must have torch, torchvision, numpy and Pillow; one is missing" in scene.check(first)
    scene.broken.unlink()
    assert "making it again" in scene.check(first)
    assert scene.beside.read_text() == "/packages/of/first\n"


def test_somebody_elses_directory_is_left_alone(scene: Scene) -> None:
    scene.venv.mkdir()
    (scene.venv / "theirs").touch()
    assert "this script did not make it" in scene.check(scene.python("first"))
    assert os.listdir(scene.venv) == ["theirs"]


def test_no_gpu_is_said_with_what_to_do(scene: Scene) -> None:
    said = scene.check(scene.python("first"))
    assert "torch finds no GPU here" in said and "DDLP_GPU_PYTHON=/path/to/python" in said and "CUDA Version" in said


def test_what_only_the_callers_path_has_is_installed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that the script starts do not have that path."""
    monkeypatch.setenv("PYTHONPATH", "/unpacked/wheels")
    scene.check(scene.python("first"))
    assert any("pip install" in line and line.endswith(" pyzmq") for line in scene.calls.read_text().splitlines())
