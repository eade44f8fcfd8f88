"""Which part of a pipeline DALI runs, and which operators are refused by name. No test here needs DALI."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torchvision.transforms as T
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from ddlp import DDLPLoader, ImageArrays, ImageFiles
from ddlp.transforms import Cutout
from ddlp.translate.dali import Stages, stages
from ddlp.translate.portable import portable
from ddlp.translate.torch_pixels import torch_filter

BICUBIC = T.InterpolationMode.BICUBIC


def of(*steps, decode="exact", data=None):
    data = ImageFiles(["/nowhere.jpg"], [0], T.Compose([*steps, T.ToTensor()])) if data is None else data
    return stages(portable(DataLoader(data), None, None, decode))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([T.RandomResizedCrop(8), T.RandomHorizontalFlip()], Stages("bilinear", False, True, False)),
        ([T.Resize(9, BICUBIC), T.CenterCrop(8)], Stages("bicubic", True, False, False)),
        ([T.RandomCrop(8), T.Resize((9, 9)), T.RandomVerticalFlip()], Stages("bilinear", False, False, True)),
        ([T.RandomHorizontalFlip(), T.RandomCrop(8)], Stages(None, False, True, False)),
    ],
)
def test_a_pipeline_has_the_stages_that_its_operators_need(steps, expected):
    assert of(*steps) == expected


def test_masks_are_the_epilogues():
    data = ImageFiles(["/nowhere.jpg"], [0], T.Compose([T.CenterCrop(8), T.ToTensor(), Cutout(1, 3)]))
    assert of(data=data) == Stages(None, False, False, False)


CROP = T.CenterCrop(8)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([CROP, T.Pad(1)], "Pad: DALI has no counterpart"),
        ([CROP, T.Grayscale(3)], "Grayscale: DALI has no counterpart"),
        ([CROP, T.RandomGrayscale(0.5)], "RandomGrayscale: DALI has no counterpart"),
        ([CROP, T.RandomApply([T.RandomHorizontalFlip()])], "RandomApply: which operators run"),
        ([T.RandomCrop(8, padding=1)], "Pad: DALI has no counterpart"),
        ([v2.RandomCrop(8, padding=1)], "RandomCrop: it pads"),
        ([T.RandomCrop(8, pad_if_needed=True)], "RandomCrop: it pads"),
        ([T.RandomResizedCrop(8), T.CenterCrop(9)], "CenterCrop: it pads"),
        ([T.Resize(9), T.RandomResizedCrop(8)], "RandomResizedCrop: it resizes a second time"),
        ([T.RandomHorizontalFlip(), T.Resize((8, 8))], "Resize: it comes after a flip"),
        ([T.Resize((8, 8), T.InterpolationMode.LANCZOS)], "Resize: interpolation 'lanczos'"),
        ([T.Resize((8, 8), T.InterpolationMode.NEAREST)], "Resize: interpolation 'nearest'"),
    ],
)
def test_what_dali_can_not_do_is_refused_by_name(steps, words):
    with pytest.raises(ValueError, match=f"backend='dali': {words}.*Way out: "):
        of(*steps)


@pytest.mark.skipif(
    torch_filter(v2.functional, "bilinear", True) is None, reason="torch has other kernels for bytes on this processor"
)
def test_resizing_behind_to_image_is_refused():
    transform = v2.Compose([v2.ToImage(), v2.Resize((8, 8), antialias=True)])
    with pytest.raises(ValueError, match="backend='dali': Resize: behind ToImage it has torch's pixels.*as_pil=True"):
        of(data=ImageFiles(["/nowhere.jpg"], [0], transform))


def test_fast_decoding_and_arrays_are_refused():
    with pytest.raises(ValueError, match="backend='dali': decode='fast': .*Way out: "):
        of(T.RandomResizedCrop(8), decode="fast")
    with pytest.raises(ValueError, match="backend='dali': ImageArrays: .*nothing to decode"):
        of(data=ImageArrays(np.zeros((3, 8, 8, 3), np.uint8), range(3), T.ToTensor()))


def test_a_users_function_is_refused(tmp_path):
    import ddlp

    file = tmp_path / "my_ops.py"
    file.write_text("def invert(image):\n    return 255 - image\n")
    with pytest.raises(ValueError, match="backend='dali': invert: DALI can't run your functions"):
        of(CROP, ddlp.load_operators(str(file)).invert())


def test_without_dali_the_error_says_what_to_install(monkeypatch):
    data = ImageFiles(["/nowhere.jpg"], [0], T.Compose([CROP, T.ToTensor()]))
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.delitem(sys.modules, "nvidia.dali.fn", raising=False)
    with pytest.raises(ImportError, match=r"needs NVIDIA DALI.*pip install ddlp\[dali\]"):
        DDLPLoader(data, backend="dali")
    with pytest.raises(ValueError, match="backend='tensorflow': expected one of native, dali"):
        DDLPLoader(data, backend="tensorflow")
    with pytest.raises(ValueError, match="strategy='csd'"):
        DDLPLoader(data, backend="dali", strategy="csd")
