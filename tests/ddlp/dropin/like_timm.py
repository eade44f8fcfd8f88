"""A training script like timm's: create_dataset, create_loader, a loader around the loader. It knows nothing of ddlp."""

from __future__ import annotations

import sys
import zlib
from functools import partial

import numpy as np
import torch
import torch.utils.data
from torchvision import transforms
from torchvision.datasets import ImageFolder


def fast_collate(batch):
    images = np.stack([np.asarray(image) for image, _ in batch])
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor([target for _, target in batch])


class PrefetchLoader:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for images, targets in self.loader:
            yield images.float().div(255), targets

    def __len__(self):
        return len(self.loader)

    @property
    def dataset(self):
        return self.loader.dataset


class MultiEpochsDataLoader(torch.utils.data.DataLoader):
    """Keeps its workers over all epochs, as timm's does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        self.batch_sampler = Forever(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Forever:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


def worker_init(worker_id, seed):
    np.random.seed((seed + worker_id) % 2**32)


def create_loader(dataset, use_prefetcher, loader_class=torch.utils.data.DataLoader):
    steps = [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip()]
    dataset.transform = transforms.Compose(steps if use_prefetcher else [*steps, transforms.ToTensor()])
    loader = loader_class(
        dataset=dataset,
        batch_size=4,
        shuffle=True,
        num_workers=1,
        sampler=None,
        collate_fn=fast_collate if use_prefetcher else torch.utils.data.dataloader.default_collate,
        pin_memory=False,
        drop_last=True,
        worker_init_fn=partial(worker_init, seed=5),
        persistent_workers=True,
    )
    return PrefetchLoader(loader) if use_prefetcher else loader


if __name__ == "__main__":
    torch.manual_seed(5)
    loaders = {
        "prefetcher": create_loader(ImageFolder(sys.argv[1]), use_prefetcher=True),
        "epochs": create_loader(ImageFolder(sys.argv[1]), False, MultiEpochsDataLoader),
        "plain": create_loader(ImageFolder(sys.argv[1]), use_prefetcher=False),
    }
    for name, loader in loaders.items():
        for _ in range(2):
            batches = list(loader)
            pixels = zlib.crc32(torch.cat([images for images, _ in batches]).numpy().tobytes())
            print(name, len(loader), torch.cat([targets for _, targets in batches]).tolist(), pixels)
