"""The report in a real browser: headless Chromium, at the width of a screen and of a phone, dark and light."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlp.observe.report import read_comparison, write_comparison, write_report
from tests.ddlp.observe.browser import Browser
from tests.ddlp.observe.by_hand import A_POOL, DECIDED, WITH_GPUS, written
from tests.needs import need

pytest.importorskip("selenium", reason="selenium is not installed: pip install 'ddlp[test]'")

RUNS = ("wrr", "mte", "alone", "taken back", "lost", "broken off", "empty")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    need("chromium", "chromedriver")
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.end()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.some(2)
def test_it_can_be_read(browser: Browser, recorded: Path, tmp_path: Path, run: str) -> None:
    page = write_report(recorded / run, tmp_path)
    for width in (1280, 400):
        for scheme in ("light", "dark"):
            assert browser.look(page, width, scheme) == [], (width, scheme)


@pytest.mark.parametrize(("events", "shown"), [
    (A_POOL, 'data-plot="engines"'), (WITH_GPUS, 'class="bar gpu"'), (DECIDED, 'data-plot="decisions"'),
])  # fmt: skip
@pytest.mark.some(2)
def test_pools_gpus_and_decisions_can_be_read(browser: Browser, tmp_path: Path, events: list, shown: str) -> None:
    written(tmp_path / "0000.jsonl", events)
    page = write_report(tmp_path, tmp_path)
    assert shown in page.read_text()
    for width in (1280, 400):
        for scheme in ("light", "dark"):
            assert browser.look(page, width, scheme) == [], (width, scheme)


def test_a_comparison_can_be_read(browser: Browser, three_runs: Path, tmp_path: Path) -> None:
    runs = [three_runs / name for name in ("dataloader", "wrr-seed0", "wrr-seed1")]
    page = write_comparison(read_comparison(runs), tmp_path)
    for width in (1280, 400):
        for scheme in ("light", "dark"):
            assert browser.look(page, width, scheme) == [], (width, scheme)
