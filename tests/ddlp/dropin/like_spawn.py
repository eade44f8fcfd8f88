"""A script that starts its ranks with torch.multiprocessing.spawn. Its data set's class is in __main__."""

from __future__ import annotations

import sys

import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import datasets, transforms


class Squares(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index * index


def rank_main(rank: int, squares: DataLoader, folder: str) -> None:
    images = datasets.ImageFolder(folder, transforms.Compose([transforms.CenterCrop(24), transforms.ToTensor()]))
    loader = DataLoader(images, batch_size=4, sampler=DistributedSampler(images, 2, rank))
    print(rank, sum(int(n) for batch in squares for n in batch), sum(len(x) for x, _ in loader), flush=True)


if __name__ == "__main__":
    loader = DataLoader(Squares(), batch_size=2)
    torch.multiprocessing.spawn(rank_main, (loader, sys.argv[1]), nprocs=2)
