"""A JPEG data set in ImageFolder layout with ImageNet's size distribution."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import functools
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from ddlp.sampledata.photos import CLASSES, SampleDataError, draw_box, draws_for, photograph
from ddlp.sampledata.plan import LARGEST, ImagePlan, plan_image

_VERSION = 1
_DESCRIPTION = "dataset.json"  # of a set that is finished
_UNFINISHED = "dataset.unfinished.json"
_PARALLEL_LARGE = threading.Semaphore(2)  # an image of 12 megapixels takes 150 MB while it is made


def make_imagefolder(
    directory: str | os.PathLike[str],
    images: int,
    mean_kb: float = 110.0,
    *,
    val_images: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool = True,
) -> None:
    """Make train/<class>/*.jpg and val/<class>/*.jpg below `directory`: those that are not there yet.

    The same arguments give the same images (the same bytes with the same Pillow and libjpeg). A set that was broken
    off is completed; dataset.json says which set it is, once it is finished.

    Args:
        directory: made if need be. Nothing but this data set may be in it.
        images: number of train images.
        mean_kb: mean size of a file in kB (1000 bytes), reached within a few per cent by noise and JPEG quality.
            ImageNet's mean is 110.
        val_images: number of val images, other crops of the same photographs; a tenth of `images` by default.
        seed: everything is drawn from it.
        threads: images made at the same time; by default one a core (Pillow and numpy release the GIL).
        progress: show a progress bar.

    Raises:
        SampleDataError: the directory holds something else, the packages with the photographs are missing, or
            `mean_kb` can't be reached.
    """
    root = Path(directory)
    val_images = max(images // 10, len(CLASSES)) if val_images is None else val_images
    if images < 1 or val_images < 0:
        raise SampleDataError(f"{images} train and {val_images} val images asked for {root}; give at least 1 and 0")
    asked = {"version": _VERSION, "seed": seed, "train": images, "val": val_images, "mean_kb": mean_kb}
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root):
        described = _read(root / _DESCRIPTION) or _read(root / _UNFINISHED)
        if described is None and any(root.iterdir()):
            raise SampleDataError(f"{root} is not empty and holds no data set of ours. Choose another directory")
        if described is not None and described["asked"] != asked:
            raise SampleDataError(
                f"{root} holds another data set ({described['asked']}) than the one asked for ({asked}). "
                "Choose another directory, or remove that one"
            )
        plans = [plan_image(seed, True, position) for position in range(images)]
        plans += [plan_image(seed, False, position) for position in range(val_images)]
        workers = threads or len(os.sched_getaffinity(0))
        if described is None:
            described = {"asked": asked, "detail": _calibrate(seed, plans, mean_kb * 1000, workers)}
            part = root / f"{_UNFINISHED}.part"
            part.write_text(json.dumps(described, indent=1) + "\n")
            part.replace(root / _UNFINISHED)
        present = {str(path.relative_to(root)) for path in root.glob("*/*/*.jpg")}
        if missing := [plan for plan in plans if plan.path not in present]:
            _make(root, seed, missing, float(described["detail"]), workers, progress)
        if (root / _UNFINISHED).exists():
            (root / _UNFINISHED).replace(root / _DESCRIPTION)


def encode(seed: int, plan: ImagePlan, detail: float, path: Path) -> None:
    """Make the image that `plan` describes and write it to `path`.

    `detail` is the knob that sets the size of the files: 0 is no noise and qualities from 75 to 85, 1 is noise with a
    standard deviation of 24 and qualities from 86 to 96, beyond it only the noise grows.
    """
    _save(plan, detail, path, *_scene(seed, plan))


def _scene(seed: int, plan: ImagePlan) -> tuple[Image.Image, float, float]:
    """The image before its noise, and where in the tile that begins, across and down (0 to 1)."""
    draws = draws_for(seed, "image", plan.train, plan.position)
    photo = photograph(CLASSES[plan.label])
    width, height = plan.size
    box = draw_box(photo.size, width / height, draws)
    image = photo.resize(plan.size, Image.Resampling.BICUBIC, box=box)
    if draws.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if plan.kind == "grey":
        image = image.convert("L")
    return image, draws.random(), draws.random()


def _save(plan: ImagePlan, detail: float, path: Path, image: Image.Image, across: float, down: float) -> None:
    """Add the noise, and write the file."""
    width, height = plan.size
    image = _add_noise(image, 24 * detail, across, down)
    quality = round(75 + 11 * min(detail, 1.0) + plan.quality)
    if plan.kind == "png":  # as ImageNet's n02105855_2933.JPEG
        image.resize((max(width // 4, 1), max(height // 4, 1))).save(path, "PNG")
    elif plan.kind == "cmyk":
        image.convert("CMYK").save(path, "JPEG", quality=quality)
    else:
        image.save(
            path,
            "JPEG",
            quality=quality,
            subsampling=0 if plan.kind == "444" else 2,
            progressive=plan.kind == "progressive",
        )


@functools.lru_cache(maxsize=1)
def _noise() -> np.ndarray:
    """A tile of nearly normal noise, standard deviation 1000, int16 (1024, 1024).

    Sums of twelve uniform numbers: PCG64's raw bits are the same in every numpy, its normal() need not be.
    """
    words = np.random.PCG64(20240229).random_raw(12 * 1024 * 1024 // 4).view(np.uint16).reshape(12, 1024, 1024)
    return ((words.astype(np.int64).sum(axis=0) - 12 * 32767) * 1000 // 65536).astype(np.int16)


def _add_noise(image: Image.Image, deviation: float, across: float, down: float) -> Image.Image:
    """Add the same noise to all channels (luminance, where JPEG keeps detail), the tile shifted by `across`, `down`."""
    if deviation <= 0:
        return image
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    # Only what lies under the image is scaled: of most images that is a fifth of the tile.
    rows = (np.arange(height) - int(down * 1024)) % 1024
    columns = (np.arange(width) - int(across * 1024)) % 1024
    tile = _noise().take(rows, axis=0).take(columns, axis=1)
    noise = (tile.astype(np.int32) * round(deviation * 64) // 64000).astype(np.int16)
    if pixels.ndim == 3:
        noise = noise[:, :, None]
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def _encoded_bytes(plan: ImagePlan, detail: float, scene: tuple[Image.Image, float, float]) -> int:
    """Size of the file that `plan` gives, without keeping it."""
    # A real file: Pillow then writes to it with the GIL released.
    descriptor = os.memfd_create("ddlp-sample")
    try:
        _save(plan, detail, Path(f"/proc/self/fd/{descriptor}"), *scene)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _calibrate(seed: int, plans: list[ImagePlan], target_bytes: float, workers: int) -> float:
    """Find the `detail` with which the mean file has `target_bytes`.

    Bisection on a few images, then once more with its target corrected by what more images, large ones too, give.
    """
    others = [plan for plan in plans if plan.size != LARGEST]
    large = [plan for plan in plans if plan.size == LARGEST]
    # A step of 7 is prime to the number of classes: all are met.
    spread = [others[i * 7 % len(others)] for i in range(len(others))] if len(others) % 7 else others
    few, many = spread[: 4 * len(CLASSES)], spread[: 20 * len(CLASSES)]
    low, high = 0.0, 1.5
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:

        def total_bytes(plans: list[ImagePlan], detail: float) -> int:
            return sum(pool.map(lambda plan: _encoded_bytes(plan, detail, _scene(seed, plan)), plans))

        scenes = list(pool.map(functools.partial(_scene, seed), few))  # 25 MB: made once for all their qualities

        @functools.cache
        def of_few(detail: float) -> int:
            return sum(pool.map(lambda plan, scene: _encoded_bytes(plan, detail, scene), few, scenes))

        def find(target: float) -> float:
            below, above = low, high
            for _ in range(7):
                middle = (below + above) / 2
                below, above = (middle, above) if of_few(middle) < target else (below, middle)
            return (below + above) / 2

        def mean_bytes(detail: float) -> float:
            scale = sum(map(_pixels, others)) / sum(map(_pixels, many))
            large_bytes = total_bytes(large[:2], detail) * len(large) / max(len(large[:2]), 1)
            return (total_bytes(many, detail) * scale + large_bytes) / len(plans)

        first = find(target_bytes * len(few))
        mean_per_few = mean_bytes(first) / of_few(first)
        corrected = find(target_bytes / mean_per_few)
        reached = of_few(corrected) * mean_per_few
    if abs(reached / target_bytes - 1) > 0.1:
        raise SampleDataError(
            f"a mean file size of {target_bytes / 1000:.0f} kB can't be reached with ImageNet's image sizes; "
            f"the nearest is {reached / 1000:.0f} kB. Ask for 40 to 130 kB"
        )
    return corrected


def _pixels(plan: ImagePlan) -> int:
    return plan.size[0] * plan.size[1]


def _make(root: Path, seed: int, plans: list[ImagePlan], detail: float, workers: int, progress: bool) -> None:
    for leftover in root.glob("*/*/*.part"):
        leftover.unlink()
    for split, name in itertools.product(("train", "val"), CLASSES):
        (root / split / name).mkdir(parents=True, exist_ok=True)

    def make(plan: ImagePlan) -> None:
        path = root / plan.path
        part = path.with_suffix(".part")
        with _PARALLEL_LARGE if plan.size == LARGEST else contextlib.nullcontext():
            encode(seed, plan, detail, part)
        part.replace(path)  # a file with its own name is a whole file

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(make, plan) for plan in plans]
        try:
            done = concurrent.futures.as_completed(futures)
            pause = 0.1 if sys.stderr.isatty() else 5
            for future in tqdm(
                done, "making images", len(futures), unit="image", mininterval=pause, disable=not progress
            ):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _read(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SampleDataError(f"{path} is damaged ({error}). Remove the directory and make the set again") from error


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the directory against a second maker, who then finds the set finished."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
