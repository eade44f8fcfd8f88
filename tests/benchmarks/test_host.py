"""`python -m benchmarks.host` and its contenders, run small: all prepare the same samples, and a different pixel is found."""

import dataclasses
import json
import os
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from torchvision import transforms as T

from benchmarks import bits, contenders, operators
from benchmarks.common import child
from benchmarks.contenders import (
    BARE,
    BARE_TWO,
    BASELINES,
    CONTENDERS,
    DALI,
    OURS,
    OURS_FAST,
    OURS_TWO,
    OURS_UINT8,
    TURBOLOADER,
    Work,
)
from benchmarks.data import cycle, stream
from benchmarks.host import Result, Table, aims, table
from csd_engine.arithmetic.keyed import Keyed
from ddlp.translate.transforms import translate
from tests.benchmarks.bench import bench


def test_the_middle_of_a_cycle_holds_each_image_once():
    order = cycle(21, 4, 3)
    middle = order[12:-12]
    assert len(middle) == 20 and max(Counter(middle).values()) == 1
    assert order[:12] == middle[-12:] and order[-12:] == middle[:12]
    # each image once, however many batches a contender has prefetched at both ends
    assert all(Counter(order[a : a + 20]) == Counter(middle) for a in range(25))
    assert len(cycle(3, 4, 2)) == 4 * 5
    often = cycle(21, 4, 3, 5)
    assert set(Counter(often[12:-12]).values()) == {5} and often[:12] == order[:12] and often[-12:] == order[-12:]


@pytest.mark.parametrize("name", [OURS, OURS_UINT8, BASELINES[0], BARE, "torchvision.io + v2 on tensors"])
@pytest.mark.some(3)
def test_contender(small_sets, name):
    for pipeline, directory in (("imagenet1", "110kb"), ("imagenet3", "110kb"), ("cifar10", "cifar10")):
        if pipeline not in CONTENDERS[name].pipelines:
            continue
        work = Work(name, pipeline, str(small_sets / directory), 4, 8)
        done = contenders.measure(work)
        assert done["samples"] == 8 and done["ended"] > done["began"]
        assert contenders.measure(dataclasses.replace(work, times=3))["samples"] == 24
        made = next(CONTENDERS[name].make(work))
        images = made[0] if isinstance(made, (tuple, list)) else made
        side = 32 if pipeline == "cifar10" else 224
        assert tuple(images.shape) == (4, 3, side, side)
        assert str(images.dtype) == ("torch.uint8" if name == OURS_UINT8 else "torch.float32")


def test_turboloader_gets_the_same_files_in_the_same_order(small_sets):
    pytest.importorskip("turboloader", reason="pip install turboloader")
    work = Work(TURBOLOADER, "imagenet1", str(small_sets / "110kb"), 4, 8)
    assert contenders.measure(work)["samples"] == 8
    theirs, baseline = (CONTENDERS[name].make(work) for name in (TURBOLOADER, BASELINES[0]))
    for _ in range(3):
        (images, labels), (expected, of_it) = next(theirs), next(baseline)
        assert images.shape == expected.shape and images.dtype == expected.dtype and labels.equal(of_it)


@pytest.mark.slow  # the quick start's and the host's short runs count such loops too
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores")
def test_bare_loops_are_counted_together_and_end_with_their_parent(small_sets, monkeypatch):
    mark = f"TEST_OF_BARE_LOOPS={os.getpid()}"
    monkeypatch.setenv(*mark.split("="))
    work = Work(BARE_TWO, "imagenet1", str(small_sets / "110kb"), 4, 8, cores=2, times=4)
    done = child("benchmarks.contenders", dataclasses.asdict(work), sorted(os.sched_getaffinity(0))[:2])
    assert done["samples"] == 32 and done["ended"] > done["began"]
    assert not [path for path in Path("/proc").glob("[1-9]*/environ") if _reads(path, mark)]


def _reads(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return False


def test_ours_and_the_bare_loop_make_the_baselines_pixels(small_sets):
    """imagenet2 has no random draws: if the bits are equal, all three prepare the same samples in the same order."""
    work = [Work(name, "imagenet2", str(small_sets / "110kb"), 4, 8) for name in (OURS, BARE, BASELINES[0])]
    ours, bare, baseline = (CONTENDERS[one.contender].make(one) for one in work)
    for _ in range(3):
        expected = next(baseline)[0]
        assert np.array_equal(next(ours)[0], expected) and np.array_equal(next(bare), expected)
    assert stream(small_sets / "110kb", "imagenet2", 8, 4, 8)[1] == 2


def test_a_short_run(small_sets, capsys, tmp_path, forked):
    arguments = ["host", "--data", str(small_sets), "--pipelines", "imagenet1", "--mean-kb", "110", "--rounds", "1"]
    arguments += ["--images", "8", "--batch", "4", "--contenders", OURS, BASELINES[0], "--save", str(tmp_path / "figures")]
    assert bench([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "figures").read_text())["tables"] == result["tables"]
    [found] = result["tables"]
    assert set(found["rates"]) == {OURS, BASELINES[0]} and all(rate > 0 for [rate] in found["rates"].values())
    assert all(20 < speed < 100_000 for [speed] in found["speeds"].values())
    assert result["machine"]["processor"]


def test_ratios_are_taken_round_by_round():
    rates = {OURS: [30.0, 60.0], BASELINES[0]: [10.0, 10.0], BASELINES[1]: [5.0, 20.0], DALI: [15.0, 15.0], BARE: [40.0, 80.0]}
    result = Result(2, "wall", {OURS_FAST: "why"}, [Table("imagenet1", 110.0, 64, 0, rates, speeds={OURS: [500.0, 600.0]})])
    text = table(result)
    for name, bits_of in ((OURS, "torchvision's"), (DALI, "its own")):
        assert re.search(rf"^{name} .* {bits_of}$", text, re.MULTILINE)
    assert "3.00 (3.00 .. 3.00)" in text and "0.750" in text and f"without {OURS_FAST}: why" in text
    found = {aim.what.partition(": ")[2]: aim for aim in aims(result)}
    assert found[f"{OURS} / DataLoader's best"].measured == 3 and found[f"{OURS} / {DALI}"].measured == 3
    assert found[f"{OURS} / the best peer"].measured == 2.5, "DALI is the best in the first round, DataLoader in the second"
    assert found["two cores / one"].measured is None
    rates.update({OURS_TWO: [54.0, 108.0], BARE_TWO: [72.0, 144.0]})
    assert "0.750" in next(row for row in table(result).splitlines() if row.startswith(OURS_TWO))
    found = {aim.what.partition(": ")[2]: aim for aim in aims(result)}
    assert found["two cores / one (the bare loops: 1.800)"].measured == 1.8


def test_rates_are_those_of_a_core_of_the_median_speed():
    here = Table("imagenet1", 110.0, 64, 0, measured={OURS: [30.0, 60.0], BARE: [60.0, 30.0]})
    here.speeds = {OURS: [100.0, 200.0], BARE: [200.0, 150.0]}
    here.level()
    assert here.rates == {OURS: [175 * 0.3, 175 * 0.3], BARE: [175 * 0.3, 175 * 0.2]}


def one_off(*arguments, prepare=bits.prepare):
    """Prepare a sample, and change one value of it by one."""
    prepare(*arguments)
    arguments[-1][0, 0, 0] ^= 1


@pytest.mark.parametrize("kind", ["411", "grey progressive"])
def test_pixels_are_torchvisions(kind, tmp_path, monkeypatch):
    assert bits.compare_kind(kind, 24, tmp_path).differing == {kind: 0}
    monkeypatch.setattr(bits, "prepare", one_off)
    found = bits.compare_kind(kind, 24, tmp_path)
    assert found.samples == found.differing == {kind: 24} and found.most == {kind: 1} and not found.all_right
    assert bits.aims(found)[0].text.endswith("MISSED") and kind in bits.table(found)
    both = bits.PixelCounts()
    both.join(found)
    both.join(found)
    assert both.differing == {kind: 48} and both.most == {kind: 1}


def test_each_operators_pixels_are_torchvisions(tmp_path, monkeypatch):
    names = [name for name in operators.OPERATORS if name != operators.TIMMS or find_spec("timm")]

    found = operators.compare_kind("420", 2, names, tmp_path)
    assert found.all_right and list(found.samples) == names and set(found.values.values()) == {2 * 64 * 64 * 3}
    drawn = [step for name in names for step in steps_of(name)]
    kinds = {"Enhance", "Hue", "Gray", "Blur", "Warp", "Table", "AutoContrast", "Equalize"}
    assert kinds <= {type(step).__name__ for step in drawn}
    monkeypatch.setattr(operators, "prepare", one_off)
    found = operators.compare_kind("420", 2, names, tmp_path)
    assert not any(found.right(name) for name in names if name not in bits.BY_ONE)


def steps_of(name):
    """The steps that an operator draws for 20 images."""
    pipeline = translate(T.Compose([operators.OPERATORS[name](), T.ToTensor()])).pipeline
    return [step for k in range(20) for step in pipeline.draw((90, 70), Keyed(0, 0, k, 0)).primitives]
