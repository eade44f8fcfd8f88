"""NVIDIA's GPUs: the real nvidia-ml-py, on a fake of the driver's library (fake_nvml.c) if the machine has none.

The fake is loaded in another process, so that torch's view of GPUs in the tests' process stays. On a machine with a GPU
the last test reads the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ddlp.observe.energy.fake_nvml import compiled, needs_pynvml

# Two seconds by its own clock. The GPUs' state changes in between.
MEASURE = """
import json, sys
from pathlib import Path
from ddlp.observe.energy import EnergyMeter
from ddlp.observe.energy.nvml import find_gpus
gpus, absent = find_gpus()
if gpus is None:
    print(json.dumps(str(absent)))
    sys.exit()
now = 0.0
meter = EnergyMeter([gpus], [absent] if absent else [], clock=lambda: now, model=None)
if sys.argv[3:]:
    meter = EnergyMeter.auto(external=sys.argv[3:], sys="/nothing", model=None)
with meter:
    now = 2.0
    Path(sys.argv[1]).write_text(sys.argv[2])
print(json.dumps(meter.result().to_data()))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def measure(library, tmp_path):
    """Measure for two seconds between two states of the GPUs. Returns the result's data, or why there is none."""

    def run(before: str, after: str, *external: str, **environment: str):
        state = tmp_path / "gpus"
        state.write_text(before)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(state), **environment}
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, state, after, *external],
            capture_output=True, text=True, env=environment, check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@needs_pynvml
def test_the_counter_where_there_is_one_else_power(measure):
    result = measure("5000000 99000\n-1 150000\n", "5600000 1\n-1 150000\n")
    (gpu,) = result["parts"]
    assert gpu["part"] == "gpu" and gpu["sensors"] == ["gpu0 Fake 0", "gpu1 Fake 1"]
    assert gpu["joules"] == pytest.approx(600 + 2 * 150) and not gpu["modelled"]


@needs_pynvml
def test_only_what_cuda_may_see(measure):
    (gpu,) = measure("1000 1\n2000 1\n", "9000 1\n7000 1\n", CUDA_VISIBLE_DEVICES="7,1")["parts"]
    assert gpu["sensors"] == ["gpu1 Fake 1"] and gpu["joules"] == pytest.approx(5)


@needs_pynvml
def test_a_meter_of_yours_counts_them_instead(measure, tmp_path):
    (tmp_path / "meter").write_text("80 W")
    result = measure("1000 1\n", "9000 1\n", f"gpu=file:{tmp_path}/meter")
    (gpu,) = result["parts"]
    assert gpu["joules"] == pytest.approx(80 * result["seconds"]) and "NVML: your meter counts it" in result["absent"]


@needs_pynvml
@pytest.mark.parametrize(
    ("environment", "told"),
    [({"CUDA_VISIBLE_DEVICES": "1"}, True), ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, True),
     ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False), ({"CUDA_VISIBLE_DEVICES": "GPU-1111"}, False),
     ({"CUDA_VISIBLE_DEVICES": "1,0"}, False), ({}, False), ({"CUDA_VISIBLE_DEVICES": "1", "FAKE_NVML_NAME": "A"}, False)],
)  # fmt: skip
@pytest.mark.some(2)
def test_numbers_of_gpus_that_differ_may_not_be_cudas(measure, monkeypatch, environment, told):
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    absent = measure("1000 1\n2000 1\n", "9000 1\n7000 1\n", **environment)["absent"]
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in text for text in absent) == told


@needs_pynvml
def test_a_gpu_that_is_lost_and_a_driver_loaded_anew(measure):
    result = measure("1000 1\n5000 1\n", "9000 -1\n70 1\n")
    assert result["parts"] == [] and any("began anew" in text for text in result["notes"])


@needs_pynvml
def test_without_gpus_it_says_why(measure):
    assert "none of its GPUs" in measure("", "")
    assert "no GPU" in measure("1 1\n", "", CUDA_VISIBLE_DEVICES="")


def test_without_the_package_it_says_which(tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ImportError")
    script = "from ddlp.observe.energy.nvml import find_gpus; print(find_gpus()[1])"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert "pip install nvidia-ml-py" in done.stdout


@needs_pynvml
@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="needs a GPU")
def test_the_real_gpu_counts():
    import torch

    from ddlp.observe.energy import EnergyMeter
    from ddlp.observe.energy.nvml import find_gpus

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    gpus, absent = find_gpus()
    assert gpus is not None, absent
    with (meter := EnergyMeter([gpus], model=None)):  # a model would add the host
        a = torch.randn(4096, 4096, device="cuda")
        for _ in range(200):
            a = a @ a / 64
        torch.cuda.synchronize()
    (gpu,) = meter.result().parts
    assert gpu.part == "gpu" and gpu.joules > 1
