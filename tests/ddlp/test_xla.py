"""Batches on an XLA device (a TPU; PJRT's CPU here): `scripts/xla_check.sh` runs this in an environment of its own."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as T

from ddlp import DDLPLoader, ImageFiles
from tests.small_images import make_images

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed; run ./scripts/xla_check.sh", allow_module_level=True)
os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch_xla  # noqa: E402

COUNT, BATCH = 90, 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    transform = T.Compose(
        [
            T.RandomResizedCrop(32),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            T.RandomErasing(),
        ]
    )
    return ImageFiles(make_images(tmp_path_factory.mktemp("images"), COUNT), list(range(COUNT)), transform)


def samples(data: ImageFiles, strategy: str, **options: Any) -> tuple[dict[int, torch.Tensor], DDLPLoader]:
    loader = DDLPLoader(data, BATCH, shuffle=True, num_workers=2, strategy=strategy, seed=5, **options)
    delivered, seen = {}, Counter[int]()
    for images, labels in loader:
        if "device" in options:
            assert images.device.type == labels.device.type == "xla"
        for image, label in zip(images.cpu(), labels.tolist()):
            delivered[label] = image.clone()
            seen[label] += 1
        images.zero_()  # a caller may change its batch without changing any other
    assert seen == Counter(range(COUNT))
    return delivered, loader


@pytest.mark.parametrize("strategy", ("cpu", "csd", "mte", "wrr", "ordered"))
@pytest.mark.parametrize("output", (None, "uint8", "bfloat16"))
def test_every_sample_once_with_the_hosts_bits(data, strategy, output):
    if output == "uint8":
        data = ImageFiles(data.paths, data.targets, T.Compose(data.transform.transforms[:-1]))
    expected, _ = samples(data, "cpu", output=output)
    delivered, loader = samples(data, strategy, output=output, device="xla")
    for label, image in expected.items():
        assert torch.equal(delivered[label], image)
    if strategy == "csd":
        assert loader.report().batches_csd == len(loader)


def test_a_model_trains(data):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, COUNT)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for images, labels in DDLPLoader(data, BATCH, shuffle=True, strategy="wrr", seed=5, device="xla"):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    assert len(losses) == -(-COUNT // BATCH) and all(np.isfinite(losses))
