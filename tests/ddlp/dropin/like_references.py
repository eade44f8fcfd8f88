"""A training script like torchvision's references/classification: nothing here knows of ddlp.

What it prints does not depend on who prepares the batches, as long as the sampler's order is kept: the order of the labels,
the evaluation's pixels, and the next random number.
"""

from __future__ import annotations

import argparse
import os
import sys
import zlib

import torch
import torch.utils.data
import torchvision
from torch.utils.data.dataloader import default_collate
from torchvision import transforms


class ClassificationPresetTrain:
    def __init__(self, *, crop_size, hflip_prob=0.5, random_erase_prob=0.0):
        steps = [transforms.RandomResizedCrop(crop_size), transforms.RandomHorizontalFlip(hflip_prob)]
        steps += [
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float),
            transforms.Normalize([0.5] * 3, [0.2] * 3),
        ]
        if random_erase_prob > 0:
            steps.append(transforms.RandomErasing(p=random_erase_prob))
        self.transforms = transforms.Compose(steps)

    def __call__(self, img):
        return self.transforms(img)


class ClassificationPresetEval:
    def __init__(self, *, crop_size, resize_size):
        steps = [transforms.Resize(resize_size), transforms.CenterCrop(crop_size), transforms.PILToTensor()]
        self.transforms = transforms.Compose([*steps, transforms.ConvertImageDtype(torch.float)])

    def __call__(self, img):
        return self.transforms(img)


def load_data(path):
    dataset = torchvision.datasets.ImageFolder(path, ClassificationPresetTrain(crop_size=24, random_erase_prob=0.1))
    dataset_test = torchvision.datasets.ImageFolder(path, ClassificationPresetEval(crop_size=24, resize_size=32))
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        sampler = torch.utils.data.distributed.DistributedSampler(dataset)
        return dataset, dataset_test, sampler, torch.utils.data.distributed.DistributedSampler(dataset_test, shuffle=False)
    return dataset, dataset_test, torch.utils.data.RandomSampler(dataset), torch.utils.data.SequentialSampler(dataset_test)


def main(args):
    torch.manual_seed(3)
    dataset, dataset_test, train_sampler, test_sampler = load_data(args.data_path)
    data_loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=train_sampler,
        num_workers=args.workers,
        pin_memory=True,
        collate_fn=default_collate,
    )
    data_loader_test = torch.utils.data.DataLoader(
        dataset_test, batch_size=args.batch_size, sampler=test_sampler, num_workers=args.workers, pin_memory=True
    )
    print("argv", sys.argv[1:], "path", os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)))
    for epoch in range(2):
        if "RANK" in os.environ:
            train_sampler.set_epoch(epoch)
        labels = [int(label) for _, target in data_loader for label in target]
        seen = zlib.crc32(torch.cat([image for image, _ in data_loader_test]).numpy().tobytes())
        print("epoch", epoch, labels, seen)
    print("random", torch.rand(1).item(), isinstance(data_loader, torch.utils.data.DataLoader))
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
    if args.fail:
        raise RuntimeError("the script's own error")
    sys.exit(3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-path")
    parser.add_argument("-b", "--batch-size", default=4, type=int)
    parser.add_argument("-j", "--workers", default=1, type=int)
    parser.add_argument("--fail", action="store_true")
    main(parser.parse_args())
