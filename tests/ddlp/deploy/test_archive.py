"""The archive of the engine: the same bytes each time, the whole package, nothing else."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from csd_engine.machine.build import build
from ddlp.deploy.place import archive, code_bytes


def test_the_archive(tmp_path: Path) -> None:
    first = archive()
    assert first[4:8] == bytes(4), "gzip's time stamp"
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        assert {(entry.mtime, entry.uid, entry.mode) for entry in tar} == {(0, 0, 0o644)}
        assert "csd_engine/kernels/src/ddlp.h" in tar.getnames()
        tar.extractall(tmp_path)  # the archive is our own; Python 3.11.2 has no filter=
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) == code_bytes()
    code = "import csd_engine, csd_engine.machine.build as b; print(csd_engine.__file__, b.build())"
    (tmp_path / "csd_engine" / "kernels" / "_kernel.so").write_bytes(b"compiled, and so different from computer to computer")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "csd_engine" / "__init__.py"), build()]
