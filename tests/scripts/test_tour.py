"""docs/tour.md, from its first command to its last. tests/board/test_tour.py has the chapter on a device."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest

from tests.ray_cluster import RayCluster
from tests.tour import DEVICE, Day, chapters, tour

QUICK = ("A folder", "Your script, untouched", "A page to look at")
with_photographs = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("skimage", "sklearn")),
    reason="the sample photographs are missing: pip install -e '.[quickstart]'",
)


def samples(printed: str) -> list[str]:
    """Of each epoch that was trained on."""
    return re.findall(r"^epoch \d+: (\d+) samples, loss", printed, re.MULTILINE)


@pytest.mark.slow  # `ddlp try`, `ddlp run` and `ddlp report` have quick tests of their own
@with_photographs
def test_the_morning(tmp_path: Path) -> None:
    day = Day(tmp_path)
    printed = {chapter.title: day.follow(chapter) for chapter in tour() if chapter.title in QUICK}
    assert tuple(printed) == QUICK and samples(printed["Your script, untouched"]) == ["160"] * 3
    assert "20 batches" in (tmp_path / "runs/morning/report.html").read_text()
    assert not list((tmp_path / "tmp").glob("ddlp-*"))


@pytest.mark.slow  # a Ray cluster takes half a minute to start; `ddlp try`, caches and pools have quick tests of their own
@with_photographs
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="`ddlp try` shows other rows on one CPU")
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ddlp[ray]")
def test_all_but_the_device(tmp_path: Path) -> None:
    *before, last = tour()
    assert last.title == DEVICE
    cluster = RayCluster()
    try:
        cluster.add()
        cluster.add()
        day = Day(tmp_path, RAY_ADDRESS=cluster.address)
        printed = "".join(day.follow(chapter) for chapter in before)
    finally:
        cluster.end()
    assert set(samples(printed)) == {"160"} and len(samples(printed)) > 3 + 3 + 20
    assert len(list(tmp_path.rglob("report.html"))) == 3 and not list((tmp_path / "tmp").glob("ddlp-*"))


WRITTEN = """
## One

```python
# hello.py
print("took 1.25 s,\\tall of it")
```

```bash
python hello.py
```

```text
took 9,000 s, … it
```
"""


@pytest.mark.parametrize(
    ("change", "to", "says"),
    [
        ("", "", None),
        ("python hello", "python hallo", "One: status 2 of\npython hallo.py"),
        ("took 9,000 s", "took 9,000 m", "docs/tour.md shows\ntook 9,000 m, … it\nand this was printed:\ntook 1.25 s"),
        ("# hello.py", "# hello", "One: a Python block that is no file"),
    ],
)
@pytest.mark.some(2)
def test_what_is_wrong_in_a_tour_is_seen(tmp_path: Path, change: str, to: str, says: str | None) -> None:
    (chapter,) = chapters(WRITTEN.replace(change, to))
    day = Day(tmp_path)
    if says is None:
        assert day.follow(chapter) == "took 1.25 s,\tall of it\n"
        return
    with pytest.raises(AssertionError, match=re.escape(says)):
        day.follow(chapter)
