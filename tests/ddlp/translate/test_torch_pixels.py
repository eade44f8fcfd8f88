"""Behind ToImage, resampling has torch's own pixels."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import datasets
from torchvision.transforms import InterpolationMode, v2

from csd_engine.transforms.torch_resample import TORCH_FILTERS, torch_resize
from ddlp import DDLPLoader
from ddlp.errors import Untranslatable
from ddlp.translate import torch_pixels
from ddlp.translate.transforms import translate

KNOWN = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
pytestmark = pytest.mark.skipif(not KNOWN, reason="torch has other kernels for bytes on this processor")
END = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5, 0.4, 0.3], [0.25, 0.2, 0.3])]


def noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    return pixels // 128 * 255 if rng.integers(0, 3) == 0 else pixels


@pytest.mark.parametrize("name", TORCH_FILTERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_definition_is_torchs(name, channels):
    rng = np.random.default_rng(channels)
    for _ in range(60):
        (height, width), (to_height, to_width) = rng.integers(1, 300, 2), rng.integers(1, 200, 2)
        pixels = noise(rng, height, width, channels)
        image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
        by_torch = torch.nn.functional.interpolate(
            torch.from_numpy(pixels).permute(2, 0, 1)[None], [int(to_height), int(to_width)],
            mode=name.removeprefix("torch-"), align_corners=False, antialias=True,
        )[0].permute(1, 2, 0)  # fmt: skip
        ours = np.asarray(torch_resize(image, int(to_width), int(to_height), name)).reshape(by_torch.shape)
        assert np.array_equal(ours, by_torch.numpy()), (height, width, to_height, to_width)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    (root / "a").mkdir()
    for number in range(24):
        height, width = rng.integers(40, 400, 2)
        y, x = np.mgrid[:height, :width]
        pixels = np.stack([x * 3 + y, y * 2, x + y], axis=2) + rng.integers(0, 60, (height, width, 3))
        image = Image.fromarray(pixels.astype(np.uint8)).convert("L" if number % 6 == 1 else "RGB")
        image.save(root / "a" / f"{number:02}.{'png' if number % 7 == 0 else 'jpg'}", quality=90, subsampling=number % 3)
    return root


FIXED = {
    "evaluation": lambda mode: [v2.ToImage(), v2.Resize(80, mode, antialias=True), v2.CenterCrop(64), *END],
    "longer side": lambda mode: [v2.ToImage(), v2.Resize(None, mode, max_size=90, antialias=True), v2.CenterCrop(96), *END],
    "flipped": lambda mode: [v2.PILToTensor(), v2.Resize((70, 50), mode, antialias=True), v2.RandomHorizontalFlip(1.0), *END],
    "larger": lambda mode: [v2.ToImage(), v2.Resize((420, 410), mode, antialias=True), v2.ToPureTensor()],
    "in bytes": lambda mode: [
        v2.CenterCrop((39, 38)), v2.ToImage(), v2.Resize((20, 20), mode, antialias=True), v2.RandomVerticalFlip(1.0),
    ],
}


@pytest.mark.parametrize("mode", [InterpolationMode.BILINEAR, InterpolationMode.BICUBIC])
@pytest.mark.parametrize("name", FIXED)
def test_batches_are_torchvisions(folder, name, mode):
    dataset = datasets.ImageFolder(folder, v2.Compose(FIXED[name](mode)))
    loader = DDLPLoader(dataset, 5, num_workers=1)
    assert "\ntravels    " in str(loader.explain())
    ours = torch.cat([images for images, _ in loader])
    assert torch.equal(ours, torch.stack([dataset[k][0] for k in range(len(dataset))]))


_ELSEWHERE = """
import sys, torch
from torchvision import datasets
from ddlp import DDLPLoader
from tests.ddlp.translate.test_torch_pixels import FIXED, InterpolationMode, torch_pixels, v2

dataset = datasets.ImageFolder(sys.argv[1], v2.Compose(FIXED["evaluation"](InterpolationMode.BICUBIC)))
ours = torch.cat([images for images, _ in DDLPLoader(dataset, 5, num_workers=1)])
assert torch.equal(ours, torch.stack([dataset[k][0] for k in range(len(dataset))]))
print(torch_pixels.torch_filter("bicubic", True))
"""


@pytest.mark.parametrize(
    "setting, known",
    [
        ({"DDLP_KERNEL": "off"}, "torch-bicubic"),  # PNG and the like never reach the kernel, and a device may have none
        ({"ATEN_CPU_CAPABILITY": "avx2"}, "torch-bicubic"),
        ({"ATEN_CPU_CAPABILITY": "default"}, "None"),
    ],
)
def test_the_bits_are_torchs_whatever_makes_them(folder, setting, known):
    command = [sys.executable, "-c", _ELSEWHERE, str(folder)]
    done = subprocess.run(command, env={**os.environ, **setting}, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == f"{known}\n"


def test_random_crops_are_torchvisions_of_the_drawn_boxes(folder):
    from csd_engine.keyed import Keyed

    crop = v2.RandomResizedCrop((48, 40), interpolation=InterpolationMode.BICUBIC, antialias=True)
    transform = v2.Compose([v2.ToImage(), crop, *END[:1]])
    pipeline = translate(transform).pipeline
    for number, path in enumerate(sorted((folder / "a").iterdir())):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        crop = pipeline.draw(image.size, Keyed(1, 0, number, 0)).primitives[0]
        out = np.empty((48, 40, 3), np.uint8)
        pipeline.run(image, Keyed(1, 0, number, 0), out, None)
        tensor, box = v2.functional.pil_to_tensor(image), (crop.top, crop.left, crop.height, crop.width)
        wanted = v2.functional.resized_crop(tensor, *box, [48, 40], InterpolationMode.BICUBIC, antialias=True)
        assert np.array_equal(out, wanted.permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    "steps",
    [
        [v2.ToImage(), v2.Resize(40, antialias=False)],
        [v2.ToImage(), v2.Resize(40, InterpolationMode.NEAREST)],
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Resize(40)],
    ],
)
def test_what_torch_makes_otherwise_stays_torchs(steps):
    with pytest.raises(Untranslatable):
        translate(v2.Compose([*steps, v2.CenterCrop(32), *END]))


def test_another_torch_keeps_its_own_pixels(monkeypatch):
    """A torch that rounds otherwise is seen by the check at the start."""
    torch_pixels._is_known.cache_clear()
    resize = torch_pixels.functional.resize
    monkeypatch.setattr(torch_pixels.functional, "resize", lambda image, *given, **named: resize(image, *given, **named) ^ 1)
    try:
        with pytest.raises(Untranslatable, match="torch's kernels for bytes"):
            translate(v2.Compose(FIXED["evaluation"](InterpolationMode.BILINEAR)))
    finally:
        torch_pixels._is_known.cache_clear()


# -- decode_image as an ImageFolder's loader ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jpegs(folder, tmp_path_factory):
    """JPEG files, one of them grey and one of four inks."""
    root = tmp_path_factory.mktemp("jpegs")
    (root / "a").mkdir()
    for path in sorted((folder / "a").glob("*.jpg")):
        (root / "a" / path.name).hardlink_to(path)
    with Image.open(folder / "a" / "02.jpg") as image:
        image.convert("CMYK").save(root / "a" / "inks.jpg", quality=90)
    return root


ON_TENSORS = [v2.RandomHorizontalFlip(1.0), v2.Resize(80, antialias=True), v2.CenterCrop(64), *END]


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.parametrize("mode", ["RGB", torchvision.io.ImageReadMode.RGB])
def test_decode_image_as_the_loader(jpegs, mode):
    decode = functools.partial(torchvision.io.decode_image, mode=mode)
    dataset = datasets.ImageFolder(jpegs, v2.Compose(ON_TENSORS), loader=decode)
    loader = DDLPLoader(dataset, 5, num_workers=1)
    assert "\ntravels    " in str(loader.explain())
    ours = torch.cat([images for images, _ in loader])
    assert torch.equal(ours, torch.stack([dataset[k][0] for k in range(len(dataset))])) and type(ours) is torch.Tensor


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_own_steps_behind_decode_image_get_its_tensor(jpegs):
    steps = [v2.Resize((50, 60), antialias=True), v2.Lambda(lambda image: image.flip(0)), *END[:1]]
    dataset = datasets.ImageFolder(
        jpegs, v2.Compose(steps), loader=functools.partial(torchvision.io.decode_image, mode="RGB")
    )
    loader = DDLPLoader(dataset, 5)
    assert "own steps" in str(loader.explain())
    ours = torch.cat([images for images, _ in loader])
    assert torch.equal(ours, torch.stack([dataset[k][0] for k in range(len(dataset))]))


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.parametrize("which", ["no mode", "PNG files"])
def test_what_has_other_channels_or_bits_stays_torchvisions(folder, jpegs, which):
    decode = torchvision.io.decode_image if which == "no mode" else functools.partial(torchvision.io.decode_image, mode="RGB")
    transform = v2.Compose([v2.Grayscale(3), *ON_TENSORS])
    dataset = datasets.ImageFolder(folder if which == "PNG files" else jpegs, transform, loader=decode)
    loader = DDLPLoader(dataset, 1)
    assert "as many channels and bits as each file has" in str(loader.explain())
