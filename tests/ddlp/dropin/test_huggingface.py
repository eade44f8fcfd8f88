"""Hugging Face's image data sets: each sample is the data set's own row, with its image transformed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_convert
from torchvision import transforms

from ddlp import DDLPLoader, HuggingFaceImages
from ddlp.observe import checked
from ddlp.observe.verdict import BITS, LABELS
from tests.ddlp.dropin.beside import plain
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM, numbered, write_images

COUNT = 23


@pytest.fixture(scope="module", autouse=True)
def _imports() -> None:
    """Here, so that the processes of a run that have none of these tests import nothing so large."""
    global datasets
    datasets = pytest.importorskip("datasets")


def turned(data: bytes, orientation: int, xmp: bool = False) -> bytes:
    """The same JPEG file with an orientation tag."""
    image, out = Image.open(io.BytesIO(data)), io.BytesIO()
    if xmp:
        packet = f'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="{orientation}"/>'.encode()
        image.save(out, "JPEG", quality=90, xmp=packet)
    else:
        exif = image.getexif()
        exif[0x0112] = orientation
        image.save(out, "JPEG", quality=90, exif=exif)
    return out.getvalue()


@pytest.fixture
def contents(tmp_path) -> list[bytes]:
    """JPEG files, most of them upright; some have an orientation tag, one is a PNG, one is grey."""
    found = [Path(path).read_bytes() for path in write_images(tmp_path / "files", COUNT)]
    for k in range(2, 9):
        found[k] = turned(found[k], k)
    found[9], found[10], found[11] = turned(found[9], 1), turned(found[10], 6, True), turned(found[11], 8)
    for k, (mode, kind) in {12: ("RGB", "PNG"), 13: ("L", "JPEG"), 14: ("P", "PNG")}.items():
        out = io.BytesIO()
        Image.open(io.BytesIO(found[k])).convert(mode).save(out, kind)
        found[k] = out.getvalue()
    return found


@pytest.fixture
def arrow(contents, tmp_path):
    """A memory-mapped data set of several chunks and files, with the images' bytes in Arrow."""
    features = datasets.Features(
        {"label": datasets.ClassLabel(2), "image": datasets.Image(), "text": datasets.Value("string"),
         "box": datasets.List(datasets.Value("float32"), length=4)}
    )  # fmt: skip
    rows = {
        "label": [k % 2 for k in range(COUNT)],
        "image": [{"bytes": data, "path": f"{k}.jpg"} for k, data in enumerate(contents)],
        "text": [f"text {k}" for k in range(COUNT)], "box": [[k, k + 1, k + 2, k + 3] for k in range(COUNT)],
    }  # fmt: skip
    made = datasets.Dataset.from_dict(rows, features)
    made.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    return datasets.load_from_disk(str(tmp_path / "saved"))


def compare(dataset: Any, spool: str | None = None) -> None:
    strategy = "cpu" if spool is None else "csd"
    loader = DDLPLoader(dataset, 4, strategy=strategy, spool=spool)
    assert "travels    Resize" in loader.explain()
    for ours, theirs in zip(loader, DataLoader(dataset, 4), strict=True):
        assert plain(ours) == plain(theirs)
    if spool is not None:
        assert loader.report().batches_csd == len(loader)
    for k, ours in enumerate(DDLPLoader(dataset, None, strategy=strategy, spool=spool)):
        assert plain(ours) == plain(default_convert(dataset[k]))


def test_bytes_in_mapped_arrow_files(arrow, engine):
    """The samples are those of a user's own function on rows."""
    dataset = HuggingFaceImages(arrow, DETERMINISTIC)

    def own(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {**rows, "image": [DETERMINISTIC(image.convert("RGB")) for image in rows["image"]]}

    for ours, theirs in zip(DDLPLoader(dataset, 5), DataLoader(arrow.with_transform(own), 5), strict=True):
        assert plain(ours) == plain(theirs)
    compare(dataset)
    compare(dataset, engine)


@pytest.mark.parametrize("form", ["torch", "numpy", None])
@pytest.mark.some(2)
def test_the_other_columns_have_the_data_sets_format(arrow, form):
    compare(HuggingFaceImages(arrow.with_format(form), DETERMINISTIC))
    compare(HuggingFaceImages(arrow.with_format(form, columns=["text", "image"]), DETERMINISTIC))
    compare(HuggingFaceImages(arrow.select_columns(["image"]), DETERMINISTIC))


def test_rows_that_were_chosen_mixed_and_joined(arrow, contents, tmp_path, engine):
    for rows in (
        arrow.select(range(5, 19)),
        arrow.shuffle(seed=3).select([2, 3, 17, 2]),
        datasets.concatenate_datasets([arrow, arrow.select([7, 1])]),
        arrow.rename_column("image", "picture").sort("text"),
    ):
        compare(HuggingFaceImages(rows, DETERMINISTIC, "picture" if "picture" in rows.column_names else "image"))
    both = ConcatDataset([HuggingFaceImages(arrow, DETERMINISTIC), HuggingFaceImages(arrow.select([4, 9]), DETERMINISTIC)])
    compare(Subset(both, [1, 24, 0, 9, 23]), engine)
    files = numbered(write_images(tmp_path / "more", 3))
    said = DDLPLoader(ConcatDataset([HuggingFaceImages(arrow, DETERMINISTIC), files]), 4).explain()
    assert "travels    nothing" in said and "samples with different keys" in said


def test_files_by_path_and_both_at_once(contents, tmp_path, engine):
    paths = []
    for k, data in enumerate(contents):
        paths.append(str(tmp_path / f"{k}.img"))
        Path(paths[-1]).write_bytes(data)
    rows = datasets.Dataset.from_dict({"image": paths, "n": list(range(COUNT))}).cast_column("image", datasets.Image())
    compare(HuggingFaceImages(rows, DETERMINISTIC))
    compare(HuggingFaceImages(rows, DETERMINISTIC), engine)
    values = [{"bytes": None, "path": path} if k % 3 else {"bytes": contents[k], "path": None} for k, path in enumerate(paths)]
    features = datasets.Features({"image": datasets.Image(), "n": datasets.Value("int32")})
    datasets.Dataset.from_dict({"image": values, "n": list(range(COUNT))}, features).save_to_disk(str(tmp_path / "mixed"))
    mixed = datasets.load_from_disk(str(tmp_path / "mixed"))
    compare(HuggingFaceImages(mixed, DETERMINISTIC), engine)


def test_without_a_kernel_the_same(arrow, monkeypatch):
    expected = list(DDLPLoader(HuggingFaceImages(arrow, RANDOM), 4, seed=5))
    monkeypatch.setattr("csd_engine.prepare.batch_maker.kernel", lambda: None)
    monkeypatch.setattr("csd_engine.prepare.sample.kernel", lambda: None)
    for ours, theirs in zip(DDLPLoader(HuggingFaceImages(arrow, RANDOM), 4, seed=5), expected, strict=True):
        assert plain(ours) == plain(theirs)


def test_what_of_it_stays_on_the_host(arrow, contents):
    def stays(dataset: Any, words: str) -> None:
        loader = DDLPLoader(dataset, 4)
        assert "travels    nothing" in loader.explain() and words in loader.explain()
        for ours, theirs in zip(loader, DataLoader(dataset, 4), strict=True):
            assert plain(ours) == plain(theirs)

    features = datasets.Features({"image": datasets.Image()})
    memory = datasets.Dataset.from_dict({"image": [{"bytes": data, "path": None} for data in contents]}, features)
    stays(HuggingFaceImages(memory, DETERMINISTIC), "its table is in memory")
    stays(HuggingFaceImages(arrow.cast_column("image", datasets.Image(mode="L")), DETERMINISTIC), "of mode L")
    own = arrow.with_transform(lambda rows: {"x": [DETERMINISTIC(image.convert("RGB")) for image in rows["image"]]})
    stays(own, "ddlp.HuggingFaceImages(dataset, transform)")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda rows: {"train": rows}, "Give it one split"),
        (lambda rows: rows.to_iterable_dataset(), "not streamed"),
        (lambda rows: rows.with_transform(lambda row: row), "Give the data set without it"),
        (lambda rows: rows.remove_columns("image"), "column 'image' is None"),
        (lambda rows: rows.cast_column("image", datasets.Image(decode=False)), "none of images to decode"),
        (lambda rows: rows.with_format("torch", columns=["label"]), "leaves 'image' out"),
    ],
)
def test_what_is_none(arrow, make, words):
    with pytest.raises(ValueError, match=words):
        HuggingFaceImages(make(arrow), transforms.ToTensor())


def test_an_image_that_is_damaged_is_told_by_its_row(arrow, contents, tmp_path):
    contents[17] = contents[17][:-300]
    features = datasets.Features({"image": datasets.Image()})
    values = [{"bytes": data, "path": None} for data in contents]
    datasets.Dataset.from_dict({"image": values}, features).save_to_disk(str(tmp_path / "damaged"))
    dataset = HuggingFaceImages(datasets.load_from_disk(str(tmp_path / "damaged")), DETERMINISTIC)
    with pytest.raises(Exception, match=r"\.arrow, row 17 of the data set"):
        list(DDLPLoader(dataset, 4))


def test_small_offsets_of_large_tables(arrow):
    """Each image's exact bytes are found, however the table is chunked and sliced."""
    from ddlp.translate.huggingface import hugging_face_images

    rows = datasets.concatenate_datasets([arrow.select(range(3, 9)), arrow, arrow.select(range(20, 22))])
    leaf = hugging_face_images(HuggingFaceImages(rows, DETERMINISTIC))
    values = rows.cast_column("image", datasets.Image(decode=False))
    assert len(leaf) == len(rows) == COUNT + 8
    for k, (file, offset, size) in enumerate(zip(leaf.which, leaf.offsets, leaf.sizes, strict=True)):
        with open(leaf.files[file], "rb") as stream:
            stream.seek(offset)
            assert stream.read(size) == values[k]["image"]["bytes"]
    assert np.unique(leaf.which).tolist() == [0, 1, 2]


@pytest.mark.parametrize("batch_size", [4, None])
def test_the_checker_knows_samples_that_are_dicts(arrow, batch_size):
    batches = checked(DDLPLoader(HuggingFaceImages(arrow, RANDOM), batch_size, shuffle=True), every=1)
    assert len(list(batches)) == len(batches) and not batches.verdict.refuted
    assert all(batches.verdict.claims[name].looked_at for name in (BITS, LABELS))


def test_a_value_that_does_not_go_with_its_batch(contents, tmp_path):
    """The error has DataLoader's type and text, and names the row."""
    columns = {"image": [{"bytes": content, "path": None} for content in contents[:3]], "boxes": [[1], [2], [3, 4]]}
    features = datasets.Features({"image": datasets.Image(), "boxes": datasets.Sequence(datasets.Value("int64"))})
    datasets.Dataset.from_dict(columns, features).save_to_disk(str(tmp_path / "ragged"))
    dataset = HuggingFaceImages(datasets.load_from_disk(str(tmp_path / "ragged")), DETERMINISTIC)
    with pytest.raises(Exception) as plain:
        next(iter(DataLoader(dataset, 3)))
    with pytest.raises(type(plain.value), match=r"row 2.*\[3, 4\]") as ours:
        next(iter(DDLPLoader(dataset, 3, strategy="cpu")))
    assert str(plain.value) in str(ours.value)
