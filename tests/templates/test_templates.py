"""Each template in its small form, as a user starts it, and its report.

They run one after the other in one process (several.py), because importing torch takes most of their time.
"""

from __future__ import annotations

import importlib.util
import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks.papers import measured
from csd_engine.protocol.keys import make_keys
from ddlp import DDLPLoader
from ddlp.observe.energy import load
from pretrain_simclr import TEMPERATURE, contrast
from tests.forks import Forks
from train_audio import mel_filters
from train_detection import coco, make_shapes, mean_precision, pipeline, together

REPOSITORY = Path(__file__).resolve().parents[2]
TEMPLATES = REPOSITORY / "templates"
HAS_COCO = importlib.util.find_spec("pycocotools") is not None
HAS_DALI = importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None
IMAGES, CIFAR_IMAGES = 48, 80  # sizes of the small sets

RUNS = (  # those that fork come first, before torch has started threads
    ("train_ddp", ["--small", "--workers", "1", "--epochs", "2"], 2),
    (
        "train_imagenet",  # with DataLoader too; the others train by the same code
        ["--small", "--workers", "1", "--strategy", "dataloader", "csd", "wrr", "--epochs", "2", "--record", "runs/recorded",
         "--evaluate-beside"],
        1,
    ),
    ("train_cifar10", ["--small", "--workers", "1", "--strategy", "wrr", "--seeds", "2"], 1),
    ("pretrain_simclr", ["--small", "--workers", "1", "--strategy", "wrr", "--epochs", "2", "--evaluate-beside"], 1),
    ("train_detection", ["--small", "--workers", "1", "--strategy", "csd", "--epochs", "2"], 1),
    ("train_audio", ["--small", "--workers", "1", "--strategy", "wrr", "--pool", "1", "--epochs", "2"], 1),
    ("train_dali", ["--small", "--workers", "1", "--strategy", "cpu"], 1),
    ("bottleneck_study", ["--small"], 1),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which they run. Reports are in runs/."""
    return tmp_path_factory.mktemp("templates")


@pytest.fixture(scope="module")
def printed(forks: Forks, home: Path) -> str:
    """The output of all of them."""
    return run(forks, home, RUNS)


def run(forks: Forks, home: Path, runs: Any, **environment: str) -> str:
    """Run several templates there, and return their output."""
    path = os.pathsep.join((str(REPOSITORY), str(TEMPLATES)))
    done = forks.run(
        code=Path(__file__).with_name("several.py").read_text(), cwd=home,
        given=json.dumps([(str(TEMPLATES / f"{name}.py"), *how) for name, *how in runs]),
        environment={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def report(home: Path, template: str) -> Any:
    (path,) = (home / "runs").glob(f"{template}-*.json")
    return json.loads(path.read_text())


def status(printed: str, template: str) -> int:
    (line,) = (line for line in printed.splitlines() if line.startswith("status of") and f"/{template}.py" in line)
    return int(line.split()[-1])


def check_run(one: Any, samples: int, epochs: int = 1) -> None:
    """Check that every sample came once per epoch, and that the figures are plausible."""
    assert one["complete"] and [epoch["number"] for epoch in one["epochs"]] == list(range(epochs))
    for epoch in one["epochs"]:
        assert epoch["samples"] == samples
        assert epoch["batches_cpu"] + epoch["batches_csd"] == epoch["batches"] * one["ranks"]
        assert 0 <= epoch["waiting_s"] < epoch["seconds"]
        assert epoch["loss"] > 0 and epoch["host_cpu_s"] > 0
    assert 0 <= one["accuracy"] <= 1
    assert one["figures"]["s_per_batch"] > 0 and one["figures"]["images_per_s"] > 0


def test_train_imagenet(home: Path, printed: str) -> None:
    assert status(printed, "train_imagenet") == 0
    said = report(home, "train_imagenet")
    assert said["machine"]["cores"] and said["options"]["pipeline"] == "imagenet1"
    torchs, csd, wrr = said["runs"]
    for one in (torchs, csd, wrr):
        check_run(one, IMAGES, epochs=2)
        assert one["paper_model"] == "WRN" and one["seed"] == 0
        assert one["strategy"] in printed
        beside = [epoch["accuracy"] for epoch in one["epochs"]]
        assert all(0 <= part <= 1 for part in beside) and one["accuracy"] == beside[-1]
    assert printed.count("images; evaluated in") == 6 + 2  # these, and those of pretrain_simclr
    assert (torchs["backend"], wrr["backend"]) == ("torch", "native")
    assert torchs["figures"]["csd_share"] == 0 and csd["figures"]["csd_share"] == 1
    assert 0 < sum(epoch["batches_csd"] for epoch in wrr["epochs"]) < 2 * IMAGES / 4
    assert wrr["epochs"][-1]["bound_s"] > 0
    # Of two epochs, the second one counts.
    assert wrr["figures"]["s_per_batch"] == pytest.approx(wrr["epochs"][1]["seconds"] / wrr["epochs"][1]["batches"])


def test_recorded_runs_have_a_page_each(home: Path, printed: str) -> None:
    pages = [line.removeprefix("page: ") for line in printed.splitlines() if line.startswith("page: ")]
    assert pages == [f"runs/recorded/{strategy}-seed0/report.html" for strategy in ("dataloader", "csd", "wrr")]
    for page in pages:
        source = (home / page).read_text()
        assert ">epoch 1, " in source and "All 2 epochs" in source and f"{IMAGES // 4} batches" in source


def test_train_cifar10(home: Path, printed: str) -> None:
    assert status(printed, "train_cifar10") == 0
    runs = report(home, "train_cifar10")["runs"]
    assert [one["seed"] for one in runs] == [0, 1]
    for one in runs:
        check_run(one, CIFAR_IMAGES)
        assert (one["model"], one["paper_model"], one["pipeline"]) == ("wrn-28-10 (small)", "WRN18", "cifar10_gpu")
    assert any(epoch["batches_cpu"] and epoch["batches_csd"] for one in runs for epoch in one["epochs"])
    assert "+-" in printed  # the spread over the seeds


def test_pretrain_simclr(home: Path, printed: str) -> None:
    """The classes of the small set are told apart without labels, far better than by chance (1 in 8)."""
    assert status(printed, "pretrain_simclr") == 0
    (one,) = report(home, "pretrain_simclr")["runs"]
    check_run(one, IMAGES, epochs=2)
    assert one["accuracy"] > 0.5 and one["pipeline"] == "simclr"


def test_train_detection_trains_or_says_in_a_line_what_is_missing(home: Path, printed: str) -> None:
    """Images with boxes, from the engine; those of the small set that have none are left out."""
    if not HAS_COCO:
        assert status(printed, "train_detection") == 1
        (line,) = (line for line in printed.splitlines() if line.startswith("train_detection: "))
        assert "pip install ddlp[detection]" in line
        pytest.skip("pycocotools is not installed")
    assert status(printed, "train_detection") == 0, printed[-4000:]
    (one,) = report(home, "train_detection")["runs"]
    check_run(one, 16, epochs=2)
    assert one["score"] == "mAP" and one["figures"]["csd_share"] == 1


def test_images_and_boxes_of_the_drawn_shapes_are_dataloaders(tmp_path: Path) -> None:
    """Bit for bit, from the host and from an engine, as train_detection evaluates them. Drawn ones: test_detection.py."""
    pytest.importorskip("pycocotools")
    shapes = coco(make_shapes(tmp_path, 12, 2, 80), "train", pipeline(64, train=False))
    theirs = list(DataLoader(shapes, 4, collate_fn=together))
    assert sum(len(one["labels"]) for _, targets in theirs for one in targets) == 12
    for strategy in ("cpu", "csd"):
        ours = DDLPLoader(shapes, 4, collate_fn=together, strategy=strategy)
        for (images, targets), (expected, wanted) in zip(ours, theirs, strict=True):
            assert torch.equal(images, expected)
            for one, other in zip(targets, wanted, strict=True):
                assert torch.equal(one["boxes"], other["boxes"]) and torch.equal(one["labels"], other["labels"])
                assert one["image_id"] == other["image_id"]
        assert ours.report().batches_csd == (3 if strategy == "csd" else 0) and ours.report().travels


def test_mean_precision_is_that_of_boxes_that_are_right_or_a_part_off() -> None:
    """All boxes found: 1. Half of them: half of the recall. All shifted, to an IoU of 0.6: right at 3 of 10 thresholds."""
    pytest.importorskip("pycocotools")
    boxes = [torch.tensor([[10.0, 10, 50, 50], [60, 10, 100, 50]]), torch.tensor([[5.0, 5, 45, 25]]), torch.zeros(0, 4)]
    targets = [{"image_id": k, "boxes": box, "labels": torch.ones(len(box), dtype=torch.int64)} for k, box in enumerate(boxes)]
    task, options = Namespace(channels_last=False), Namespace(device="cpu")

    def scored(*found: torch.Tensor) -> float:
        outputs = [{"boxes": one, "labels": torch.ones(len(one), dtype=torch.int64), "scores": torch.ones(len(one))}
                   for one in found]  # fmt: skip
        right, seen = mean_precision(lambda images: outputs, task, [(torch.zeros(3, 3, 8, 8), targets)], options)
        assert seen == 3
        return right / seen

    assert scored(*boxes) == pytest.approx(1.0)
    assert scored(*[torch.zeros(0, 4)] * 3) == 0.0
    assert scored(boxes[0], torch.zeros(0, 4), boxes[2]) == pytest.approx(67 / 101)  # 2 of 3: recalls 0, 0.01 ... 0.66
    quarter = torch.tensor([10.0, 0, 10, 0])  # of 40 pixels: IoU 30 / 50
    assert scored(*(box + quarter for box in boxes)) == pytest.approx(0.3)


def test_train_audio(home: Path, printed: str) -> None:
    """Code of one's own, with a pool beside the host."""
    assert status(printed, "train_audio") == 0
    (one,) = report(home, "train_audio")["runs"]
    check_run(one, 144, epochs=2)
    assert one["accuracy"] > 0.5 and one["pipeline"] == "log-mel"


def test_mel_filters_are_as_specified() -> None:
    """Each bin between the first and the last peak is shared by two triangles, which are evenly spaced in mels."""
    filters = mel_filters()
    frequencies = torch.linspace(0, 8000, 257)
    peaks = frequencies[filters[8:].argmax(1)]  # the first triangles are narrower than the bins
    mels = 2595 * torch.log10(1 + peaks / 700)
    assert filters.shape == (64, 257) and float(mels.diff().std() / mels.diff().mean()) < 0.2
    between = (frequencies > peaks[0]) & (frequencies < peaks[-1])
    assert torch.allclose(filters.sum(0)[between], torch.ones(int(between.sum())), atol=1e-4)


def test_simclr_loss_is_the_papers() -> None:
    """Equation 1, pair by pair."""
    torch.manual_seed(0)
    outputs, n = torch.randn(6, 5, dtype=torch.float64), 3
    unit = outputs / outputs.norm(dim=1, keepdim=True)
    total = 0.0
    for i in range(2 * n):
        j = (i + n) % (2 * n)  # the other view of the image
        others = sum(torch.exp(unit[i] @ unit[k] / TEMPERATURE) for k in range(2 * n) if k != i)
        total -= float(torch.log(torch.exp(unit[i] @ unit[j] / TEMPERATURE) / others))
    assert float(contrast(outputs, torch.empty(0))) == pytest.approx(total / (2 * n), rel=1e-5)


def test_train_dali_trains_or_says_in_a_line_what_is_missing(home: Path, printed: str) -> None:
    if not HAS_DALI:
        assert status(printed, "train_dali") == 1
        (line,) = (line for line in printed.splitlines() if line.startswith("train_dali: "))
        assert "pip install ddlp[dali]" in line
        pytest.skip("NVIDIA DALI is not installed")
    assert status(printed, "train_dali") == 0, printed[-4000:]
    (one,) = report(home, "train_dali")["runs"]
    check_run(one, IMAGES)
    assert one["backend"] == "dali"


def test_bottleneck_study(home: Path, printed: str) -> None:
    assert status(printed, "bottleneck_study") == 0
    figures = report(home, "bottleneck_study")["figures"]
    assert list(figures["preprocessing_s"]) == ["0", "1"]
    assert len(figures["training_s"]) == 2
    for seconds in (*figures["preprocessing_s"].values(), *figures["training_s"].values()):
        assert len(seconds) == 1 and seconds[0] > 0
    ratio = figures["preprocessing_s"]["1"][0] / figures["training_s"]["squeezenet1_1"][0]
    (line,) = (line for line in printed.splitlines() if line.startswith("squeezenet1_1"))
    assert float(line.split()[-1]) == pytest.approx(ratio, abs=0.01)


def test_the_papers_tables_take_their_reports(home: Path, printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)  # where the recorded runs are
    assert measured.main([]) == 0
    text = (home / "runs" / "paper_tables.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert ["WRN", "ImageNet1", "paper", "3.527", "1.779", "10.014", "2.761", "2.698", "1.618", "1.604"] in lines
    runs = {one["strategy"]: one["figures"]["s_per_batch"] for one in report(home, "train_imagenet")["runs"]}
    own, own_saved, *_ = (line for k, line in enumerate(lines) if "own" in line[2])
    # cpu0, cpu16, csd, mte0, wrr0, mte16, wrr16. One worker was measured; with --processes at its default, that is column "16".
    own_cells = [f"{runs['dataloader']:.4g}", f"{runs['csd']:.4g}", "-", "-", "-", f"{runs['wrr']:.4g}"]
    assert own[3:] == ["-", *own_cells]
    assert own_saved[-1] == f"{100 * (1 - runs['wrr'] / runs['dataloader']):.1f} %"
    joules = 10.25 * runs["wrr"]  # by the paper's model: two processes and the CSD
    assert any("(modelled)" in line[-1] and line[-1].startswith(f"{joules:.4g} J") for line in lines)
    assert ["8a: WRN18 on a GPU", "MTE_0", "paper", "23.8 %", "65.6 %"] in lines


def test_train_ddp(home: Path, printed: str) -> None:
    """Two ranks over gloo, in torchrun's environment."""
    assert status(printed, "train_ddp") == 0, printed[-4000:]
    (one,) = report(home, "train_ddp")["runs"]
    assert one["ranks"] == 2 and one["strategy"] == "wrr"
    check_run(one, IMAGES, epochs=2)
    assert one["epochs"][0]["batches"] == IMAGES / 4 / 2
    assert sum(epoch["batches_csd"] for epoch in one["epochs"]) < 2 * IMAGES / 4  # a quick host leaves the engine none


@pytest.mark.slow  # the next test sees one rank's
def test_train_ddp_reports_the_runs_before_a_device_failed(forks: Forks, tmp_path: Path) -> None:
    how = ["--small", "--workers", "1", "--strategy", "cpu", "wrr", "--csd", "tcp://127.0.0.1:1"]  # nothing listens there
    printed = run(forks, tmp_path, [("train_ddp", how, 2)], DDLP_KEYS=str(make_keys(tmp_path / "keys")))
    assert status(printed, "train_ddp") != 0 and "Traceback" not in printed
    for rank in (0, 1):
        (line,) = (line for line in printed.splitlines() if line.startswith(f"train_ddp, rank {rank}: "))
        assert "tcp://127.0.0.1:1" in line
    (one,) = report(tmp_path, "train_ddp")["runs"]
    assert one["strategy"] == "cpu"
    check_run(one, IMAGES)


def test_measure_energy_writes_what_was_measured_before_a_device_failed(forks: Forks, tmp_path: Path) -> None:
    """A device without keys is noticed at once. A wrong device or meter ends the template before it begins."""
    small = ["--small", "--workers", "1", "--epochs", "1", "--report", "runs"]
    lost = [*small, "--strategy", "cpu", "wrr", "--csd", "tcp://127.0.0.1:1"]
    runs = [("measure_energy", how, 1) for how in (lost, [*small, "--csd", "nobody"], [*small, "--external", "nonsense"])]
    printed = run(forks, tmp_path, runs, DDLP_HOME=str(tmp_path / "home"))
    statuses = [int(line.split()[-1]) for line in printed.splitlines() if line.startswith("status of")]
    assert statuses == [1, 1, 1] and "Traceback" not in printed, printed
    said = sorted(line for line in printed.splitlines() if line.startswith("measure_energy: "))
    assert len(said) == 3, said
    for what in ("the engine at tcp://127.0.0.1:1", "'nobody'", "'nonsense'"):
        assert any(what in line for line in said), (what, said)
    (record,) = (tmp_path / "runs").glob("*.energy.json")
    (result,) = load(record)
    assert result.label == "cpu" and result.samples == IMAGES and "energy: runs/" in printed
