from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from ddlp.sampledata import CLASSES, SampleDataError, imagefolder, make_imagefolder
from ddlp.sampledata.plan import KINDS, LARGEST, MEAN, SMALLEST, plan_image

IMAGES, VAL, KB = 80, 10, 80.0


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.glob("*/*/*.jpg"))
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    make_imagefolder(root, IMAGES, KB, val_images=VAL, seed=5, progress=False)
    return root


@pytest.mark.parametrize("seed", [0, 7])
def test_sizes_are_spread_as_in_imagenet(seed: int) -> None:
    sizes = [plan_image(seed, True, position).size for position in range(5000)]
    widths, heights = [width for width, _ in sizes], [height for _, height in sizes]
    assert statistics.mean(widths) == pytest.approx(MEAN[0], rel=0.02)
    assert statistics.mean(heights) == pytest.approx(MEAN[1], rel=0.02)
    assert min(widths) == SMALLEST[0] and min(heights) == SMALLEST[1] and SMALLEST in sizes
    assert max(widths) == LARGEST[0] and max(heights) == LARGEST[1]
    assert 2 <= sizes.count(LARGEST) <= 5
    peaks = Counter(sizes).most_common(3)
    assert {size for size, _ in peaks} == {(500, 375), (500, 333), (375, 500)}
    assert len(set(sizes)) > 500


def test_every_kind_and_class_appears_in_its_share() -> None:
    plans = [plan_image(0, True, position) for position in range(2500)]
    kinds = Counter(plan.kind for plan in plans)
    assert set(kinds) == set(KINDS)
    assert kinds["420"] > 0.75 * len(plans)
    assert kinds["png"] < kinds["cmyk"] < kinds["444"]
    assert Counter(plan.label for plan in plans) == {label: 250 for label in range(len(CLASSES))}
    assert {plan.label for plan in plans if plan.kind == "cmyk"} == set(range(len(CLASSES)))


def test_files_are_what_was_planned(finished: Path) -> None:
    root = finished
    for train, count in ((True, IMAGES), (False, VAL)):
        for plan in (plan_image(5, train, position) for position in range(count)):
            with Image.open(root / plan.path) as image:
                image.load()
                assert image.format == ("PNG" if plan.kind == "png" else "JPEG")
                assert image.mode == {"cmyk": "CMYK", "grey": "L"}.get(plan.kind, "RGB")
                if plan.kind != "png":
                    assert image.size == plan.size
                    assert bool(image.info.get("progressive")) == (plan.kind == "progressive")
                if plan.kind in ("420", "progressive", "444"):
                    layers = image.layer  # type: ignore[attr-defined]
                    assert layers[0][1:3] == ((1, 1) if plan.kind == "444" else (2, 2))
    assert len(digests(root)) == IMAGES + VAL
    assert sorted(path.name for path in (root / "train").iterdir()) == list(CLASSES)


def test_files_are_as_large_as_asked_for(finished: Path) -> None:
    assert statistics.mean(path.stat().st_size for path in finished.glob("*/*/*.jpg")) == pytest.approx(1000 * KB, rel=0.1)


def test_finished_set_is_not_made_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("encode", "_calibrate"):
        monkeypatch.setattr(imagefolder, name, lambda *_: pytest.fail("an image was made again"))
    make_imagefolder(finished, IMAGES, KB, val_images=VAL, seed=5)


def test_interrupted_and_damaged_sets_are_completed_with_the_same_bytes(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = finished
    real, made = imagefolder.encode, []

    def breaks_off(seed: int, plan: object, detail: float, path: Path) -> None:
        if path.suffix == ".part" and len(made) == 30:
            path.write_bytes(b"half an image")
            raise KeyboardInterrupt
        real(seed, plan, detail, path)  # type: ignore[arg-type]
        if path.suffix == ".part":
            made.append(path)

    detail = json.loads((root / "dataset.json").read_text())["detail"]  # found again it would be the same, in most of the time
    monkeypatch.setattr(imagefolder, "_calibrate", lambda *_: detail)
    monkeypatch.setattr(imagefolder, "encode", breaks_off)
    with pytest.raises(KeyboardInterrupt):
        make_imagefolder(tmp_path, IMAGES, KB, val_images=VAL, seed=5, threads=1, progress=False)
    assert len(digests(tmp_path)) == 30
    assert not (tmp_path / "dataset.json").exists()

    monkeypatch.setattr(imagefolder, "_calibrate", lambda *_: pytest.fail("what was found is kept"))
    monkeypatch.setattr(imagefolder, "encode", real)
    make_imagefolder(tmp_path, IMAGES, KB, val_images=VAL, seed=5, progress=False)
    assert digests(tmp_path) == digests(root)
    assert not list(tmp_path.rglob("*.part")) and not (tmp_path / "dataset.unfinished.json").exists()

    (tmp_path / plan_image(5, True, 3).path).unlink()
    make_imagefolder(tmp_path, IMAGES, KB, val_images=VAL, seed=5, progress=False)
    assert digests(tmp_path) == digests(root)


def test_another_seed_gives_other_images() -> None:
    first, second = (plan_image(seed, True, 1) for seed in (0, 1))
    sizes = [imagefolder._encoded_bytes(one, 0.5, imagefolder._scene(seed, one)) for seed, one in enumerate((first, second))]
    assert sizes[0] != sizes[1]


def test_directories_with_other_content_are_left_alone(
    finished: Path, tmp_path: Path
) -> None:
    with pytest.raises(SampleDataError, match=r"holds another data set .*'seed': 5.*Choose another"):
        make_imagefolder(finished, IMAGES, KB, val_images=VAL, seed=6)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SampleDataError, match="holds no data set of ours"):
        make_imagefolder(tmp_path, IMAGES)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_mean_size_out_of_reach_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SampleDataError, match=r"5 kB can't be reached.*the nearest is \d+ kB"):
        make_imagefolder(tmp_path / "photos", 15, 5.0, progress=False)
