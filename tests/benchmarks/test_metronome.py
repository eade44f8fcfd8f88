"""The metronome measures a core's speed between two times, and leaves nothing behind."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import BenchFailed
from benchmarks.metronome import Metronome
from tests.engine_process import alive, until


def test_it_beats_and_leaves_nothing(small_sets):
    cpu = min(os.sched_getaffinity(0))
    with Metronome(small_sets / "110kb", [cpu]) as metronome:
        [process], [file] = metronome._processes, list(Path(metronome._beats.name).iterdir())
        assert os.sched_getaffinity(process.pid) == {cpu}
        began = time.monotonic()
        while file.stat().st_size < 10 * 16:
            time.sleep(0.02)
        ended = time.monotonic()
        beats = np.fromfile(file)[: 2 * 10].reshape(-1, 2)
        assert ended - began > 5 * 0.05  # it pauses between two beats
        assert (np.diff(beats[:, 0]) > 0.05).all() and (beats[:, 1] > 0).all()
        # A span with beats in it, and a span without: there the nearest beats count.
        within = metronome.speeds(beats[3, 0], beats[7, 0])
        assert within == {cpu: pytest.approx(np.mean(1 / beats[3:7, 1]))}
        assert metronome.speeds(beats[5, 0] + 1e-4, beats[5, 0] + 2e-4) == {cpu: pytest.approx(np.mean(1 / beats[4:7, 1]))}
    assert process.poll() is not None and not file.parent.exists()


def test_what_can_not_start_is_said(tmp_path, capfd):
    with pytest.raises(BenchFailed, match="did not start"):
        Metronome(tmp_path / "none", [min(os.sched_getaffinity(0))]).__enter__()
    assert "none" in capfd.readouterr().err


def test_it_ends_with_its_parent(small_sets):
    """The parent is killed, so it cannot clean up."""
    code = "import sys; from pathlib import Path; from benchmarks.metronome import Metronome\n"
    code += f"with Metronome(Path({str(small_sets / '110kb')!r}), [{min(os.sched_getaffinity(0))}]) as one:\n"
    code += "    print(one._processes[0].pid, one._beats.name, flush=True); sys.stdin.read()"
    asking = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid, _, directory = asking.stdout.readline().strip().partition(" ")
    assert alive(int(pid))
    asking.kill()
    asking.communicate()
    until(lambda: not alive(int(pid)), 30, "the metronome's end")
    shutil.rmtree(directory)
