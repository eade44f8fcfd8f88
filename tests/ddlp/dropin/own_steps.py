"""A user's own transform steps, which other processes can import."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import get_worker_info
from torchvision import tv_tensors


class Shift:
    """Deterministic. Takes a PIL image of a given mode and returns one."""

    def __init__(self, mode: str = "RGB") -> None:
        self.mode = mode

    def __call__(self, image: Any) -> Image.Image:
        assert image.__class__ is Image.Image and image.mode == self.mode  # its type may be that of a postponed one
        image.load()[0, 0] = 7 if self.mode == "L" else (7, 8, 9)  # the step may change its PIL image
        return Image.fromarray(np.roll(np.asarray(image), 3, axis=1))


class Halve:
    """Deterministic. Takes a tensor of a given type and changes it in place."""

    def __init__(self, kind: type = torch.Tensor) -> None:
        self.kind = kind

    def __call__(self, image: Any) -> Any:
        assert type(image) is self.kind
        return image.mul_(0.5) if image.dtype.is_floating_point else image.bitwise_and_(15)


class Noise:
    """Draws from the global generators of torch and numpy, and for one sample in ten also from random."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.asarray(image).astype(np.float32)).permute(2, 0, 1)
        pixels = pixels + torch.randn(()) + float(np.random.rand())
        return pixels + random.random() if int(pixels.sum()) % 10 == 0 else pixels


class Slow:
    """Takes 10 ms."""

    def __call__(self, image: Any) -> Any:
        time.sleep(0.01)
        return image


class Album:
    """albumentations' transform on arrays, kept in an attribute."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return self.transform(image=np.array(image))["image"]


class Moody:
    """Raises for images whose first pixel is dark."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(image))
        refuse(pixels)
        return pixels


def refuse(pixels: torch.Tensor) -> None:
    if int(pixels[0, 0].sum()) < 300:
        raise ValueError("too dark")


class Worker:
    """Returns what a step knows of the process in which it runs."""

    seen: int = -1

    def __call__(self, image: Image.Image) -> torch.Tensor:
        info = get_worker_info()
        mine = threading.current_thread() is threading.main_thread()
        return torch.tensor([-1 if info is None else info.id, os.getpid(), Worker.seen, len(info.dataset) if info else 0, mine])


def note_worker(number: int) -> None:
    """A worker_init_fn."""
    Worker.seen = 100 + number


class Dies:
    """Ends the process in which it runs."""

    def __call__(self, image: Image.Image) -> Image.Image:
        os._exit(3)


class Tagged:
    """A collate_fn that returns a dict of a list of images and the targets."""

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        return {"images": [image for image, _ in samples], "targets": torch.tensor([target for _, target in samples])}


def tv_image(image: Any) -> tv_tensors.Image:
    assert type(image) is tv_tensors.Image
    return image


class Burn:
    """Takes so many seconds of processor time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return image
