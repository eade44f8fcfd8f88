"""What was measured, as texts: where two are equal, the figures of one hold for the other.

Each text has words for people and, behind a '#', a digest of all that counts. Pure functions of plain data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from csd_engine.protocol.printable import printable

__all__ = ["dataset_text", "host_text", "pipeline_text", "sources_text", "words_of"]

_LONGEST = 60  # characters of words


def words_of(text: str) -> str:
    """Return a text without its digest, for people; one that has none is cut."""
    return printable(text.rpartition(" #")[0] or text, _LONGEST)


def dataset_text(name: str, samples: int, content: str, place: str = "") -> str:
    """Return the text for a data set.

    Args:
        name: what to call it: its folder without the path, or its class.
        samples: how many it has.
        content: stands for which samples these are: `csd_engine.data.base.fingerprint` gives such a text.
        place: what else decides how fast it is read, such as its file system.
    """
    return _text(f"{name}, {samples} samples", samples, content, place)


def pipeline_text(data: Mapping[str, Any], rest: str = "") -> str:
    """Return the text for a pipeline.

    Args:
        data: of `Pipeline.to_data`.
        rest: stands for what the host does with a sample or a batch behind it: own steps, another output.
    """
    return _text(", ".join(str(operator["op"]) for operator in data["ops"]), data, rest)


def host_text(processors: float, cpu: str, *, ranks: int = 1, accelerator: str = "", software: str = "") -> str:
    """Return the text for a host. Hosts of one kind have the same.

    Args:
        processors: which a rank may use, `csd_engine.machine.computer.processors`.
        cpu: the processor's name, `csd_engine.machine.computer.cpu_model`.
        ranks: ranks of this training on this host: they share it.
        accelerator: the name of the GPU, or whatever trains.
        software: versions and settings that decide how fast batches are made, such as the number of workers.
    """
    names = [f"{processors:.3g} x {cpu}", *([f"{ranks} ranks"] if ranks > 1 else []), *([accelerator] if accelerator else [])]
    return _text(", ".join(names), round(float(processors), 2), cpu, ranks, accelerator, software)


def sources_text(sources: Iterable[tuple[str, str, str]]) -> str:
    """Return the text for the sources, in whatever order: of each its name, its engine's version and its public key.

    An engine that makes a new key at each start has an empty one here.
    """
    found = sorted(sources)
    return _text(", ".join(name for name, _, _ in found) or "none", found)


def _text(words: str, *parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"{printable(words, _LONGEST)} #{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
