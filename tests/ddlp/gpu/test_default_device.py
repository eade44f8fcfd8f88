"""torch.set_default_device("cuda") with a generator on the GPU: a usual way to shuffle there, which DataLoader supports."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms as T

from ddlp import DDLPLoader, ImageArrays

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

COUNT = 50


@pytest.fixture(autouse=True)
def on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def data() -> ImageArrays:
    images = np.random.default_rng(5).integers(0, 256, (COUNT, 8, 8, 3), dtype=np.uint8)
    return ImageArrays(images, range(COUNT), T.Compose([T.ToTensor(), T.Normalize((0.4,) * 3, (0.2,) * 3)]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("samples", [None, 170])
@pytest.mark.parametrize("replacement", [False, True])
def test_the_batches_are_dataloaders(workers, samples, replacement):
    seen = []
    for kind, count in ((DataLoader, 0), (DDLPLoader, workers)):  # DataLoader's workers would have no default device
        generator, dataset = torch.Generator("cuda").manual_seed(4), data()
        sampler = RandomSampler(dataset, replacement, samples, generator)
        loader = kind(dataset, 4, sampler=sampler, num_workers=count, generator=generator)
        seen.append([(images.cpu(), labels.tolist()) for _ in range(2) for images, labels in loader])
    for (images, labels), (ours, our_labels) in zip(*seen, strict=True):
        assert labels == our_labels and torch.equal(images, ours)


class Own(Dataset):
    """User code."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[float, int]:
        return torch.rand((), device="cpu").item(), index


@pytest.mark.parametrize("kind", [data, Own])
def test_an_epoch_goes_on(kind):
    def make() -> DDLPLoader:
        return DDLPLoader(kind(), 4, shuffle=True, generator=torch.Generator("cuda").manual_seed(4))

    loader = make()
    iterator = iter(loader)
    seen = [next(iterator)[1].tolist() for _ in range(3)]
    again = make()
    again.load_state_dict(loader.state_dict())
    seen += [labels.tolist() for _, labels in again]
    assert sorted(k for labels in seen for k in labels) == list(range(COUNT))


def test_workers_that_persist_draw_no_second_seed():
    generator = torch.Generator("cuda").manual_seed(4)
    loader = DDLPLoader(data(), 4, shuffle=True, num_workers=2, persistent_workers=True, generator=generator)
    for _ in range(2):
        assert sorted(k for _, labels in loader for k in labels.tolist()) == list(range(COUNT))
