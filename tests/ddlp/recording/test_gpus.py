"""The use of GPUs in a recording: the real nvidia-ml-py, on a fake of the driver's library in another process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import transforms

from ddlp import DDLPLoader, ImageArrays
from ddlp.observe import read_run
from ddlp.recording.events import GpuUse
from tests.ddlp.observe.energy.fake_nvml import compiled, needs_pynvml
from tests.engine_process import until

GB = 10**9
BEFORE = f"1 1 40 {2 * GB} {80 * GB}\n1 1\n1 1 5\n"  # the second tells no use, as a MIG slice's; the third no memory
AFTER = f"1 1 90 {3 * GB} {80 * GB}\n1 1\n1 -1 5\n"  # the third is lost

# Two epochs. The GPUs' state changes in the first, when the first state is in the file, and the second state comes there too.
RECORD = """
import sys
from pathlib import Path
from tests.ddlp.recording.test_gpus import AFTER, small
from tests.engine_process import until
state, run = map(Path, sys.argv[1:])
for epoch in range(2):
    for number, _ in enumerate(small(record=run)):
        if epoch == number == 0:
            until(lambda: '"busy_percent":40' in (run / "0000.jsonl").read_text(), 30, "a sample")
            state.write_text(AFTER)
            until(lambda: '"busy_percent":90' in (run / "0000.jsonl").read_text(), 30, "a sample of the second state")
"""


def small(**options: object) -> DDLPLoader:
    images = ImageArrays(np.zeros((8, 4, 4, 3), np.uint8), range(8), transforms.ToTensor())
    return DDLPLoader(images, 2, seed=0, **options)


@needs_pynvml
def test_each_gpus_use_is_sampled_while_an_epoch_is_recorded(tmp_path: Path) -> None:
    state = tmp_path / "gpus"
    state.write_text(BEFORE)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(compiled(tmp_path)), "FAKE_NVML": str(state)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-c", RECORD, str(state), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    first, second = read_run(tmp_path / "run")
    assert first.whole and second.whole
    samples = first.of(GpuUse)
    assert {one[2:] for one in samples if one.gpu == "gpu0 Fake 0"} == {(40, 2 * GB, 80 * GB), (90, 3 * GB, 80 * GB)}
    assert {one[2:] for one in samples if one.gpu == "gpu2 Fake 2"} == {(5, 0, 0)}
    assert {one.gpu for one in samples} == {"gpu0 Fake 0", "gpu2 Fake 2"}
    assert all(0 < a.at <= b.at for a, b in zip(samples, samples[1:], strict=False))
    # The second epoch is over in less time than lies between two samples. It has the one at its end.
    assert {one[:1] + one[2:] for one in second.of(GpuUse)} == {("gpu0 Fake 0", 90, 3 * GB, 80 * GB)}


def test_without_nvml_a_recording_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert len(list(small(record=tmp_path))) == 4
    (trace,) = read_run(tmp_path)
    assert trace.whole and not trace.of(GpuUse)


@needs_pynvml
@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="needs a GPU")
def test_a_real_gpu_is_busy(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    a = torch.randn(4096, 4096, device="cuda")

    def works() -> bool:
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize()
        said = re.findall(r'"busy_percent":(\d+)', (tmp_path / "0000.jsonl").read_text())
        return any(int(percent) > 20 for percent in said)

    for number, _ in enumerate(small(record=tmp_path)):
        if number == 0:
            until(works, 30, "a sample of a busy GPU")
    found = read_run(tmp_path)[0].of(GpuUse)
    assert any(one.busy_percent > 20 and one.memory_used_bytes > a.nbytes for one in found)
