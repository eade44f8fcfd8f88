"""docs/paper.md: it is what the kept results give, and no figure in it stands without its command."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks.papers import page as paper_page

TEXT = paper_page.PAGE.read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def lines_of(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    rows = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:]]


def test_the_page_is_what_the_command_makes() -> None:
    assert TEXT == paper_page.page()


def test_each_headline_has_a_command_and_says_how() -> None:
    lines = lines_of("Headlines")
    assert {line[0] for line in lines} == {"DDLP", "FastFlow", "Cachew", "i.data"}
    for paper, claim, where, ours, how, command in lines:
        assert how in paper_page.HOW and re.fullmatch(r"`.+`", command), (paper, claim, where)
        assert (ours == "-") == how.startswith("not run"), (paper, claim, how)  # either a figure, or what it would need


def test_each_table_has_a_command_and_each_headline_a_line() -> None:
    for title, text in SECTIONS.items():
        assert re.search(r"`(python |ddlp )[^`]+`", text), title
    claims = " ".join(" ".join(line[1:3]) for line in lines_of("Headlines"))
    for words in ("23.5 %", "27.6 %", "19.7 %", "37.6 %", "1 to 4.34 times", "1.1 to 3.8 times", "17 %", "Table II", "Figure 1",
                  "Figures 7b, 9, 10, 12", "Figures 9, 11", "Figure 8", "Figures 1, 3"):  # fmt: skip
        assert words in claims, words


@pytest.mark.parametrize("name", paper_page.NAMES)
def test_kept_figures_are_those_of_the_page_that_tells_of_them(name: str) -> None:
    one = paper_page.kept(name)
    page, _, anchor = one.page.partition("#")
    text = (paper_page.DOCS / page).read_text()
    headings = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)]
    assert anchor in headings and one.command in text
    told = {float(figure.replace(",", "")) for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", text)}
    for figures in one.figures.values():
        assert set(figures.values()) <= told, set(figures.values()) - told


def test_the_paper_s_own_headlines_follow_from_its_tables() -> None:
    six, eight, nine = (lines_of(title) for title in SECTIONS if re.match(r"Table (VI|VIII|IX):", title))
    assert max(float(line[4].split()[0]) for line in six) == 23.5
    assert max(float(line[4].split()[0]) for line in eight) == 19.7
    assert max(float(line[4].split()[0]) for line in nine) == 37.6
    assert len(six) == 26 and len(eight) == len(nine) == 10


def test_results_that_are_missing_or_cut_short_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(paper_page.DOCS / "results", docs / "results")
    bench = (paper_page.DOCS / "benchmarks.md").read_text()
    monkeypatch.setattr(paper_page, "DOCS", docs)
    monkeypatch.setattr(paper_page, "RESULTS", docs / "results")
    monkeypatch.setattr(paper_page, "PAGE", docs / "paper.md")
    (docs / "benchmarks.md").write_text(re.sub(r"^ViT ImageNet2 +16 .*\n", "", bench, flags=re.MULTILINE))
    assert paper_page.main([]) == 1
    assert "no line of ('ViT ImageNet2', 16)" in capsys.readouterr().err
    (docs / "benchmarks.md").write_text(bench.replace("## The paper's Table VI", "## Another"))
    assert paper_page.main([]) == 1
    assert "no section \"The paper's Table VI\"" in capsys.readouterr().err
    (docs / "benchmarks.md").write_text(bench)
    assert paper_page.main(["--check"]) == 1
    assert "run python -m benchmarks.papers.page" in capsys.readouterr().err
    rules = json.loads((docs / "results" / "decision-rules.json").read_text())
    (docs / "results" / "decision-rules.json").write_text(json.dumps({**rules, "where": "?"}))
    assert paper_page.main([]) == 1
    assert "where" in capsys.readouterr().err
