"""`python -m csd_engine.tools.parity`: run pipelines on images that come on standard input, and give the pixels back.

The host runs the same cases and compares: that tells which operator makes other pixels on the device, and by how much.
Request and reply are .npz archives of plain arrays (no pickles):

    request   cases      JSON (as uint8): a list of {"source": NAME, "index": KEY, "pipeline": PIPELINE, "digest": HEX}
              s.NAME     uint8: 1-D, an image file's bytes, or (height, width[, channels]), pixels
    reply     about      JSON: {"versions": {...}, "errors": {CASE: TEXT}, "same": [CASE, ...]}
              p.CASE     uint8 (height, width, channels), of cases in neither `errors` nor `same`
              b.CASE     int32 (boxes, 4), where the pipeline has masks

The digest is `csd_engine.prepare.sample.sample_digest` of the host's result. A result with the same digest is not sent back.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import PIL
from PIL import Image, features

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.data.base import Reader, Source
from csd_engine.data.image_files import pillow_open
from csd_engine.data.safe_open import OpenFile
from csd_engine.kernels import kernel
from csd_engine.machine.versions import libjpeg
from csd_engine.prepare.sample import prepare_sample, sample_digest
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.resample import native_order

__all__ = ["Case", "Result", "pack_cases", "read_results", "run_cases", "versions"]


@dataclass(frozen=True)
class Case:
    """One pipeline (plain data) on one source; ``index`` keys its random draws."""

    source: str
    index: int
    pipeline: Dict[str, Any]


@dataclass(frozen=True)
class Result:
    """The results of the cases, by their number.

    Attributes:
        versions: of the parts that decide about pixels.
        pixels: uint8 (height, width, channels).
        boxes: int32 (boxes, 4), where there are masks.
        errors: why a case failed.
        same: cases that came out as expected; nothing else is kept of them.
    """

    versions: Dict[str, str]
    pixels: Dict[int, np.ndarray] = field(default_factory=dict)
    boxes: Dict[int, np.ndarray] = field(default_factory=dict)
    errors: Dict[int, str] = field(default_factory=dict)
    same: Set[int] = field(default_factory=set)

    def digest(self, number: int) -> str:
        """Digest of a case's pixels and boxes, empty where there are none."""
        return sample_digest(self.pixels[number], self.boxes.get(number)) if number in self.pixels else ""


def versions() -> Dict[str, str]:
    """Versions of the parts that decide about pixels: Python, numpy, Pillow, its decoders; and the machine."""
    native = kernel()
    parts = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "machine": platform.machine(),
        "resampling": native_order(),
        "kernel": "none" if native is None else native.variant,
    }
    decoders = {"libjpeg": libjpeg(), **{name: features.version(name) for name in ("zlib", "webp")}}
    parts.update((name, str(version)) for name, version in decoders.items() if version)
    return parts


def run_cases(sources: Mapping[str, np.ndarray], cases: Sequence[Case], expected: Sequence[str] = ()) -> Result:
    """Run each case. One that fails is an error in the result, not an exception.

    Args:
        sources: by name: an image file's bytes (1-D) or pixels.
        cases: what to run.
        expected: a digest a case. Of a case that has it, only that fact is kept.
    """
    result = Result(versions())
    for number, case in enumerate(cases):
        try:
            pixels, boxes = _run(sources[case.source], case)
        except Exception as error:  # decoders raise nearly anything
            result.errors[number] = f"{type(error).__name__}: {error}"
            continue
        if expected and sample_digest(pixels, boxes) == expected[number]:
            result.same.add(number)
            continue
        result.pixels[number] = pixels
        if boxes is not None:
            result.boxes[number] = boxes
    return result


class _OneSource(Reader):
    """A data set whose every sample is one source. A file goes the same way as files of a data set, a kernel included."""

    def __init__(self, source: np.ndarray) -> None:
        self._source = source

    def __len__(self) -> int:
        return sys.maxsize

    def open(self, index: int) -> Source:
        if self._source.ndim > 1:
            return self._source
        descriptor = os.memfd_create("source", os.MFD_CLOEXEC)
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(self._source.tobytes())
        return OpenFile("a source", descriptor, self._source.size)

    def where(self, index: int) -> str:
        return "a source"


def _run(source: np.ndarray, case: Case) -> Tuple[np.ndarray, Optional[np.ndarray]]:
    pipeline = Pipeline.parse(case.pipeline)
    with pillow_open(io.BytesIO(source.tobytes())) if source.ndim == 1 else Image.fromarray(source) as image:
        plan = pipeline.draw(image.size, Keyed(0, 0, case.index, 0))
    out = np.empty(plan.shape, np.uint8)
    boxes = np.zeros((pipeline.boxes, 4), np.int32) if pipeline.boxes else None
    prepare_sample(_OneSource(source), pipeline, (case.index, 0), 0, 0, out, boxes)
    return out, boxes


def _json(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _packed(arrays: Dict[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def pack_cases(sources: Mapping[str, np.ndarray], cases: Sequence[Case], expected: Sequence[str]) -> bytes:
    """The request for these cases; arguments as for `run_cases`."""
    listed = [
        {"source": case.source, "index": case.index, "pipeline": case.pipeline, "digest": digest}
        for case, digest in zip(cases, expected)
    ]
    return _packed({"cases": _json(listed), **{f"s.{name}": array for name, array in sources.items()}})


def read_results(reply: bytes) -> Result:
    """Return the result in a reply. ValueError if the reply is none."""
    try:
        with np.load(io.BytesIO(reply), allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            numbered: Dict[str, Dict[int, np.ndarray]] = {"p": {}, "b": {}}
            for name in arrays.files:
                kind, _, number = name.partition(".")
                if number:
                    numbered[kind][int(number)] = arrays[name]
        errors = {int(number): str(text) for number, text in about["errors"].items()}
        return Result(dict(about["versions"]), numbered["p"], numbered["b"], errors, set(about["same"]))
    except (OSError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def main() -> int:
    """Answer the request on standard input; return the exit status."""
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as arrays:
        sources = {name[2:]: arrays[name] for name in arrays.files if name.startswith("s.")}
        listed = json.loads(arrays["cases"].tobytes())
    cases = [Case(case["source"], case["index"], case["pipeline"]) for case in listed]
    result = run_cases(sources, cases, [case["digest"] for case in listed])
    reply = {f"p.{number}": array for number, array in result.pixels.items()}
    reply.update((f"b.{number}", array) for number, array in result.boxes.items())
    reply["about"] = _json({"versions": result.versions, "errors": result.errors, "same": sorted(result.same)})
    sys.stdout.buffer.write(_packed(reply))
    return 0


if __name__ == "__main__":
    sys.exit(main())
