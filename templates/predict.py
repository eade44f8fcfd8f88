r"""Classify all images below a directory and write the classes as parquet files: in order, and resumable.

    python templates/predict.py --small                                           # seconds, on any machine
    python templates/predict.py --data /photos --model resnet50 --csd csd0 --amp bf16 --top 5 --out predictions

A row for each image, sorted by path: `path`, `labels` and `scores` (the --top classes, the most likely first), and `error`
if the image can't be read. Each file of --out has --part rows. Ctrl-C writes what is done, and the same command goes on.
`pyarrow.parquet.read_table("predictions")` reads all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models
from torchvision import transforms as T
from torchvision.datasets.folder import IMG_EXTENSIONS

from common import AMP, image_folder
from csd_engine.errors import EngineError
from ddlp import DDLPError, DDLPLoader, ImageFiles
from ddlp.observe import progress
from ddlp.sampledata import SampleDataError
from training import Interrupt

STRATEGIES = ("cpu", "ordered", "csd")  # those that keep the order


class Stop(Exception):
    """The run can't go on; the message says why."""


# -- what is classified, and by what -----------------------------------------------------------------------------------


def find_images(directory: Path) -> list[str]:
    """Return the paths of all images below a directory, relative to it and sorted. Raises Stop if there are none."""
    images = (
        os.path.relpath(os.path.join(where, name), directory)
        for where, _, names in os.walk(directory)
        for name in names
        if name.lower().endswith(IMG_EXTENSIONS)
    )
    paths = sorted(images)
    if not paths:
        raise Stop(f"--data {directory}: no images below it ({', '.join(IMG_EXTENSIONS)})")
    return paths


def make_model(name: str, small: bool) -> tuple[nn.Module, Callable[[Any], Any], list[str]]:
    """Return a model, the transform of its images, and its classes' names; with `small` a tiny untrained one.

    Raises Stop if torchvision has no such model with weights.
    """
    if small:
        torch.manual_seed(0)
        transform = T.Compose([T.Resize(32), T.CenterCrop(32), T.ToTensor()])
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)), transform, [f"class {k}" for k in range(10)]
    try:
        weights: Any = models.get_model_weights(name).DEFAULT
        return models.get_model(name, weights=weights), weights.transforms(), weights.meta["categories"]
    except (ValueError, KeyError, AttributeError):
        raise Stop(f"--model {name}: no model of torchvision's with weights for classes, such as resnet50") from None


# -- the files ----------------------------------------------------------------------------------------------------------


class Parts:
    """The parquet files of a run: one for each `size` rows. A file is complete or not there.

    Args:
        directory: where they are, made if missing.
        size: rows of a file.
        run: what the rows depend on. A directory of another run is refused.

    Raises:
        Stop: if pyarrow is missing, or the directory belongs to another run.
    """

    def __init__(self, directory: Path, size: int, run: dict[str, Any]) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise Stop("pip install pyarrow: it writes the parquet files") from None
        self._arrow, self._directory, self._size = pyarrow, directory, size
        text = pyarrow.string()
        self._schema = pyarrow.schema(
            [("path", text), ("labels", pyarrow.list_(text)), ("scores", pyarrow.list_(pyarrow.float32())), ("error", text)]
        )
        self._rows: list[dict[str, Any]] = []
        directory.mkdir(parents=True, exist_ok=True)
        about = directory / "_run.json"  # of names with _ parquet readers take no notice
        if not about.exists():
            _write(about, lambda path: path.write_text(json.dumps(run) + "\n"))
        elif json.loads(about.read_text()) != run:
            raise Stop(f"--out {directory} has the results of another model, --top or set of images; take another directory")
        self.done = 0  #: rows that are written
        while (part := self._part(self.done)).exists():
            self.done += pyarrow.parquet.read_metadata(part).num_rows

    def _part(self, first: int) -> Path:
        return self._directory / f"part-{first:010}.parquet"

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows, and write those that fill a file."""
        self._rows += rows
        while len(self._rows) >= self._size:
            self._write(self._size)

    def close(self) -> None:
        """Write what is left."""
        if self._rows:
            self._write(len(self._rows))

    def _write(self, count: int) -> None:
        rows, self._rows = self._rows[:count], self._rows[count:]
        table = self._arrow.Table.from_pylist(rows, self._schema)
        _write(self._part(self.done), lambda path: self._arrow.parquet.write_table(table, path))
        self.done += count


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    unfinished = path.with_name(f"_{path.name}")
    write(unfinished)
    unfinished.replace(path)


# -- the work -----------------------------------------------------------------------------------------------------------


def batches(loader: Any, data: Any) -> Iterator[tuple[range, Any, dict[int, str]]]:
    """Yield each batch: its samples' indexes, its images, and the errors of those that can't be read, by index.

    The images of a batch with errors are those that can be read.
    """
    source, size = iter(progress(loader, "classified")), loader.batch_size
    for first in itertools.count(0, size):
        samples = range(first, min(first + size, len(data)))
        try:
            images, _ = next(source)
        except StopIteration:
            return
        except (DDLPError, EngineError):
            raise
        except Exception:  # an image's: Pillow raises many kinds
            readable, errors = [], {}
            for index in samples:
                try:
                    readable.append(data[index][0])
                except Exception as error:
                    errors[index] = f"{type(error).__name__}: {error}"
            if not errors:
                raise
            yield samples, torch.stack(readable) if readable else None, errors
        else:
            yield samples, images, {}


@torch.inference_mode()
def classify(model: nn.Module, images: torch.Tensor, top: int, options: Any) -> tuple[list[list[float]], list[list[int]]]:
    """Return the `top` probabilities and classes of each image, the greatest first."""
    images = images.to(options.device, non_blocking=True)
    amp = AMP[options.amp]
    with torch.autocast(images.device.type, amp, enabled=amp is not None):
        scores, classes = model(images).float().softmax(1).topk(top)
    return scores.tolist(), classes.tolist()


def predict(paths: Sequence[str], model: nn.Module, transform: Callable[[Any], Any], classes: list[str], options: Any) -> int:
    """Classify the images that are not done yet, and write their rows. Returns the exit status: 130 after Ctrl-C."""
    names = hashlib.sha256("\0".join(paths).encode(errors="surrogateescape")).hexdigest()
    top = min(options.top, len(classes))
    run = {"model": options.model, "small": options.small, "images": len(paths), "paths": names, "top": top}
    parts = Parts(options.out, options.part, run)
    rest = paths[parts.done :]
    if parts.done:
        print(f"{parts.done} of {len(paths)} images are done already", file=sys.stderr)
    data = ImageFiles([str(options.data / path) for path in rest], [0] * len(rest), transform)
    model = model.to(options.device).eval()
    loader = DDLPLoader(
        data, options.batch_size, num_workers=options.workers, strategy=options.strategy, csd=options.csd,
        device=torch.device(options.device), pin_memory=torch.device(options.device).type == "cuda",
    )  # fmt: skip
    wrong, began = 0, time.perf_counter()
    with Interrupt() as interrupt:
        try:
            for samples, images, errors in batches(loader, data):
                predictions = zip(*classify(model, images, top, options), strict=True) if images is not None else iter(())
                rows = [_row(rest[index], errors.get(index), predictions, classes) for index in samples]
                parts.add(rows)
                wrong += len(errors)
                if interrupt.asked:
                    break
        finally:
            parts.close()
    if rest:
        done, seconds = parts.done - (len(paths) - len(rest)), time.perf_counter() - began
        report = loader.report()
        share = report.batches_csd / max(1, report.batches_csd + report.batches_cpu)
        print(f"{done} images in {seconds:.1f} s, {done / seconds:.0f}/s; {share:.0%} of the batches from a device")
    if wrong:
        print(f"{wrong} images can't be read: the column `error` says why")
    if parts.done < len(paths):
        print(f"stopped: {parts.done} of {len(paths)} images are in {options.out}; the same command goes on from there")
        return 130
    print(f"all {len(paths)} images are in {options.out}")
    return 0


def _row(path: str, error: str | None, predictions: Iterator[Any], classes: list[str]) -> dict[str, Any]:
    path = path.encode(errors="surrogateescape").decode(errors="replace")  # parquet holds UTF-8
    if error is not None:
        return {"path": path, "error": error}
    scores, best = next(predictions)
    return {"path": path, "labels": [classes[index] for index in best], "scores": scores}


# fmt: off
def flags() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, help="the directory with the images, at any depth; without it --small makes some below data/")
    add("--out", type=Path, default=Path("predictions"), help="the directory of the parquet files (default %(default)s)")
    add("--model", default="resnet50", help="one of torchvision's, with its newest weights (default %(default)s)")
    add("--top", type=int, default=1, metavar="K", help="how many classes of each image (default %(default)s)")
    add("--part", type=int, default=100_000, metavar="ROWS", help="rows of a file (default %(default)s)")
    add("--batch-size", type=int, default=64, help="images at a time (default %(default)s)")
    add("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1),
        help="num_workers, the host's that prepare batches (default here: %(default)s)")
    add("--strategy", choices=STRATEGIES,
        help="of those that keep the order: %(choices)s (default: ordered with --csd, else cpu)")
    add("--csd", help="name or address of a device")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu",
        help="what runs the model: cuda, cuda:1, cpu ... (default here: %(default)s)")
    add("--amp", choices=AMP, default="off", help="mixed precision (default %(default)s)")
    add("--small", action="store_true", help="a tiny untrained model: shows in seconds that all works")
    return parser
# fmt: on


def main(arguments: Sequence[str] | None = None) -> int:
    """Classify, write, say what was done; returns the exit status."""
    parser = flags()
    options = parser.parse_args(arguments)
    for name, least in (("top", 1), ("part", 1), ("batch_size", 1), ("workers", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: at least {least}")
    if options.data is None and not options.small:
        parser.error("--data: the directory with the images; or --small")
    try:
        options.data = options.data or image_folder(options) / "val"
        paths = find_images(options.data)
        return predict(paths, *make_model(options.model, options.small), options)
    except (Stop, SampleDataError, DDLPError, EngineError) as error:
        print(f"predict: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
