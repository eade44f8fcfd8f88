"""Damaged or forged recordings: they raise the documented error, or give a report without foreign markup."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlp.errors import DDLPError
from ddlp.observe.analysis import analyse
from ddlp.observe.energy.result import EnergyResult, PartEnergy, save
from ddlp.observe.report.page import report_page
from ddlp.observe.run import EpochTrace, read_epoch
from ddlp.observe.trace import chrome_trace
from ddlp.recording.events import Lost
from tests.ddlp.observe.by_hand import BEGAN, TWO_SIDES, WITH_GPUS, written
from tests.mutations import mutated


def records(path: Path) -> list[dict[str, Any]]:
    file = written(path, [*WITH_GPUS[:-1], Lost("d", 17.5, "gone"), WITH_GPUS[-1]])
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have drawings, and no pictures of them: painting takes seconds."""
    from ddlp.observe.report import page

    monkeypatch.setattr(page, "_picture", lambda _, label: f'<img alt="{escape(label)}">')


def read(file: Path, lines: list[dict[str, Any]]) -> tuple[EpochTrace, str] | None:
    """The epoch and the page of these lines; None if they are refused, by an error that names the file."""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        return read_epoch(file), report_page(file.parent)
    except DDLPError as error:
        assert str(file) in str(error) and str(error).isprintable()
        return None


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_one_value_is_another(tmp_path, unpainted, data):
    file = tmp_path / "0000.jsonl"
    lines = records(file)
    number = data.draw(st.integers(0, len(lines) - 1))
    lines[number], where = data.draw(mutated(lines[number]))
    if data.draw(st.booleans()):  # one line is moved or doubled
        lines.insert(data.draw(st.integers(0, len(lines))), lines[data.draw(st.integers(0, len(lines) - 1))])
    if (found := read(file, lines)) is None:
        return
    trace, html = found
    words = str(analyse(trace))
    html.encode()
    assert "<script" not in html and "\x1b" not in html + words, where
    json.dumps(chrome_trace(trace), allow_nan=False)


_MOMENTS = (-1e10, -5.0, -1e-9, 0.0, 5e-324, 1e-300, 1e-9, 1.0, 5.0, 1e10)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_few_points_at_any_moments(tmp_path, unpainted, data):
    """A recording of a point or two, which may lie before the epoch, after it, or together."""
    file = tmp_path / "0000.jsonl"
    whole = records(file)
    lines = [whole[0], *data.draw(st.lists(st.sampled_from(whole[1:]), max_size=3))]
    moments = st.sampled_from(_MOMENTS)
    lines = [{k: data.draw(moments) if k == "at" or k.endswith("_at") else v for k, v in line.items()} for line in lines]
    if (found := read(file, lines)) is None:
        return
    trace, html = found
    assert html and str(analyse(trace))
    json.dumps(chrome_trace(trace), allow_nan=False)


@pytest.mark.parametrize("moment", [-1e10, -1e-9, 5e-324, 1.0])
@pytest.mark.some(2)
def test_all_points_at_one_moment_are_painted(tmp_path, moment):
    file = tmp_path / "0000.jsonl"
    lines = [{k: moment if k == "at" or k.endswith("_at") else v for k, v in line.items()} for line in records(file)]
    read(file, lines)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_energy_that_is_another(tmp_path, unpainted, data):
    written(tmp_path / "0000.jsonl", TWO_SIDES)
    part = PartEnergy("cpu", 5.0, False, ("rapl",))
    result = EnergyResult("run", "wrr", 0, 2.0, 4, 8, 1, (part,), 1.0, 2.0, notes=("a note",), absent=("gpu",))
    file = tmp_path / "energy.json"
    save(file, [result])
    content, where = data.draw(mutated(json.loads(file.read_text())))
    file.write_text(json.dumps(content))
    try:
        html = report_page(tmp_path, energy=file)
    except DDLPError as error:
        assert str(file) in str(error) and str(error).isprintable(), where
        return
    html.encode()
    assert "<script" not in html and "\x1b" not in html, where


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (0, {"epoch": "<b>"}, "line 1: EpochBegan: epoch is '<b>'; it must be an integer"),
        (0, {"workers": 0}, "HostBatch: worker is 0; the epoch has 0 of them"),
        (1, {"outcome": "x"}, "line 2: HostBatch: outcome is 'x'; it must be made or dropped or failed"),
        (1, {"worker": 5}, "HostBatch: worker is 5; the epoch has 1 of them"),
        (1, {"began_at": None}, "line 2: HostBatch: began_at is None; it must be a number"),
        (1, {"more": 1}, "HostBatch has a field 'more' that is not known"),
        (5, {"side": ["cpu"]}, "line 6: Step: side is ['cpu']; it must be cpu or csd"),
    ],
)
def test_the_error_says_which_field(tmp_path, number, change, said):
    file = tmp_path / "0000.jsonl"
    lines = records(file)
    lines[number].update(change)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DDLPError) as caught:
        read_epoch(file)
    assert said in str(caught.value) and "Record the run again" in str(caught.value)


def test_texts_are_fit_for_a_terminal(tmp_path):
    file = written(tmp_path / "0000.jsonl", [*TWO_SIDES[:-1], Lost("d", 17.0, "\x1b[2Jx\u202e\ud800"), TWO_SIDES[-1]], BEGAN)
    assert "d was lost after 17.0 s: \\x1b[2Jx\\u202e\\ud800" in str(analyse(read_epoch(file)))
