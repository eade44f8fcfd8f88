"""The test traces a batch through ddlp. docs/design.md must name the files that it passes through, and they must stay few."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import ddlp
from ddlp import DDLPLoader
from tests.ddlp.dropin.small_sets import RANDOM, numbered, write_images

HOME = Path(ddlp.__file__).resolve().parent
POSITION = 33  # the traced batch's position; no other argument of the traced calls has this value


def files_of_a_batch(loader: DDLPLoader) -> set[str]:
    """The files of ddlp in which a call gets the batch's position or its sample, or returns it as the next position."""
    found: set[str] = set()

    def look(frame: FrameType, event: str, result: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if HOME not in path.parents or event not in ("call", "return"):
            return
        code = frame.f_code
        given = frame.f_locals.get("position") if "position" in code.co_varnames[: code.co_argcount] else None
        chosen = result if event == "return" and code.co_name.startswith("next_") else None
        samples = frame.f_locals.get("sources") if event == "call" and code.co_name == "targets" else None
        if POSITION in (given, chosen) or (samples is not None and list(samples) == [POSITION]):
            found.add(path.relative_to(HOME).as_posix())
        if code.co_name in ("convert", "make_files", "by_table") and POSITION in under_way:
            found.add(path.relative_to(HOME).as_posix())
        if code.co_name == "prepare_batch":
            under_way.add(given) if event == "call" else under_way.discard(given)

    under_way: set[Any] = set()
    threading.setprofile(look)
    try:
        batches = iter(loader)
        sys.setprofile(look)
        list(batches)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def test_it_comes_by_ten_files_that_the_document_names(tmp_path):
    loader = DDLPLoader(numbered(write_images(tmp_path), RANDOM), 1, num_workers=1)
    found = files_of_a_batch(loader)
    text = (HOME.parent / "docs" / "design.md").read_text()
    steps = "".join(re.findall(r"^\d\. .*$", text[: text.index("## Contracts")], re.MULTILINE))
    named = set(re.findall(r"\.\./ddlp/([a-z_/]+\.py)", steps))
    assert found <= named and len(named) <= 10
    assert {"epoch/executor.py", "epoch/iterator.py", "sources/host/native.py", "schedule/ledger.py"} <= found
