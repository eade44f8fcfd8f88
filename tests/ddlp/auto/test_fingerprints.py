from __future__ import annotations

import itertools

import pytest

from csd_engine.transforms.pipeline import Pipeline
from ddlp.auto.fingerprints import dataset_text, host_text, pipeline_text, sources_text, words_of


def pipeline(size: int, probability: float = 0.5) -> dict:
    ops = [
        {"op": "RandomResizedCrop", "size": [size, size], "scale": [0.08, 1.0], "ratio": [0.75, 1.3333333333333333],
         "interpolation": "bilinear"},
        {"op": "RandomHorizontalFlip", "p": probability},
    ]  # fmt: skip
    return Pipeline.parse({"format": 1, "order": "pillow12", "mode": "RGB", "ops": ops}).to_data()


DIFFERENT = [
    dataset_text("train", 1000, "ab"), dataset_text("train", 1001, "ab"), dataset_text("train", 1000, "ac"),
    dataset_text("val", 1000, "ab"), dataset_text("train", 1000, "ab", "nfs4"),
    pipeline_text(pipeline(224)), pipeline_text(pipeline(192)), pipeline_text(pipeline(224, 0.25)),
    pipeline_text(pipeline(224), "own steps"),
    host_text(8, "AMD EPYC"), host_text(7.5, "AMD EPYC"), host_text(8, "Intel Xeon"), host_text(8, "AMD EPYC", ranks=2),
    host_text(8, "AMD EPYC", accelerator="H100"), host_text(8, "AMD EPYC", software="4 workers"),
    sources_text([]), sources_text([("csd0", "1.0", "k")]), sources_text([("csd0", "1.1", "k")]),
    sources_text([("csd0", "1.0", "l")]), sources_text([("csd1", "1.0", "k")]),
    sources_text([("csd0", "1.0", "k"), ("csd1", "1.0", "k")]), sources_text([("csd0", "1.0", "k")] * 2),
]  # fmt: skip


def test_what_differs_in_anything_that_counts_has_another_text():
    for one, other in itertools.combinations(DIFFERENT, 2):
        assert one != other


def test_the_same_has_the_same_text():
    assert dataset_text("train", 1000, "ab") == DIFFERENT[0]
    turned = {name: value for name, value in reversed(pipeline(224).items())}
    assert pipeline_text(turned) == pipeline_text(pipeline(224))
    assert host_text(8, "AMD EPYC") == host_text(8.0, "AMD EPYC") == host_text(8.001, "AMD EPYC")
    one, two = ("csd0", "1.0", "k"), ("csd1", "1.0", "l")
    assert sources_text([one, two]) == sources_text([two, one])


@pytest.mark.parametrize(
    "text, words",
    [
        (dataset_text("train", 1000, "ab"), "train, 1000 samples"),
        (dataset_text("\x1b[2J\udc80", 1, "ab"), r"\x1b[2J\udc80, 1 samples"),
        (dataset_text("x" * 500, 1, "ab"), "x" * 57 + "..."),
        (pipeline_text(pipeline(224)), "RandomResizedCrop, RandomHorizontalFlip"),
        (host_text(7.5, "AMD EPYC", ranks=2, accelerator="H100"), "7.5 x AMD EPYC, 2 ranks, H100"),
        (sources_text([]), "none"),
        (sources_text([("csd1", "1.0", "l"), ("csd0", "1.0", "k")]), "csd0, csd1"),
        ("a model\n" * 20, r"a model\na model\na model\na model\na model\na model\na model\na..."),
        ("", ""),
    ],
)
def test_the_words_are_for_people(text, words):
    assert words_of(text) == words
