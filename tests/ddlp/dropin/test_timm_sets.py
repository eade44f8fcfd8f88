"""timm's data sets, opened by timm's classes: each sample equals theirs."""

from __future__ import annotations

from typing import Any

import pytest
from torchvision import transforms

from ddlp import DDLPLoader
from tests.ddlp.dropin.small_sets import DETERMINISTIC, write_images
from tests.ddlp.dropin.test_data_sets import compare

GREY = transforms.Compose([transforms.Resize((20, 24)), transforms.ToTensor()])


def made(root: Any, transform: Any = DETERMINISTIC, **options: Any) -> Any:
    dataset = pytest.importorskip("timm.data").create_dataset("", str(root), **options)
    dataset.transform = transform
    return dataset


def test_a_folder(tmp_path, engine):
    write_images(tmp_path, 20)
    compare(made(tmp_path), engine)
    dataset = made(tmp_path, GREY, input_img_mode="L", class_map={"class0": 5, "class1": 6, "class2": 9})
    dataset.target_transform = lambda target: -target
    compare(dataset, engine)
    dataset.reader.samples[3] = (dataset.reader.samples[3][0], None)
    compare(dataset, engine)
    assert dataset[3][1] == -1


@pytest.mark.parametrize(
    ("options", "words"), [({"load_bytes": True}, "load_bytes"), ({"input_img_mode": None}, "input_img_mode is None")]
)
def test_what_of_it_stays_on_the_host(tmp_path, options, words):
    write_images(tmp_path, 20)
    said = DDLPLoader(made(tmp_path, **options), 4).explain()
    assert "travels    nothing" in said and words in said
