"""docs/paper.md: its tables are what our times give, and no figure in it stands without its command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.papers import page

TEXT = page.PAGE.read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
HOW = re.findall(r"^\| (.+?) \|", TEXT.partition("\n## ")[0], re.MULTILINE)[2:]


def lines_of(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    rows = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:]]


def test_the_tables_are_what_the_command_makes() -> None:
    assert TEXT == page.filled(TEXT)


def test_each_headline_has_a_command_and_says_how() -> None:
    lines = lines_of("Headlines")
    assert {line[0] for line in lines} == {"DDLP", "FastFlow", "Cachew", "i.data"}
    for paper, claim, where, ours, how, command in lines:
        assert how in HOW and re.fullmatch(r"`.+`( at commit \w+)?", command), (paper, claim, where)
        assert (ours == "-") == how.startswith("not run"), (paper, claim, how)  # either a figure, or what it would need


def test_each_table_has_a_command_and_each_headline_a_line() -> None:
    for title, text in SECTIONS.items():
        assert re.search(r"(`|^    )(python |ddlp )", text, re.MULTILINE), title
    claims = " ".join(" ".join(line[1:3]) for line in lines_of("Headlines"))
    for words in ("23.5 %", "27.6 %", "19.7 %", "37.6 %", "1 to 4.34 times", "1.1 to 3.8 times", "17 %", "Table II", "Figure 1",
                  "Figures 7b, 9, 10, 12", "Figures 9, 11", "Figure 8", "Figures 1, 3"):  # fmt: skip
        assert words in claims, words


def test_our_headlines_are_those_of_the_tables() -> None:
    six, eight, nine = (lines_of(title) for title in SECTIONS if re.match(r"Table (VI|VIII|IX):", title))
    ours = [line[3] for line in lines_of("Headlines")]
    (saved,) = re.findall(r"Against the paper's CPU ours saves (.+?) in these (\d+) cells", TEXT)
    assert ours[0] == f"{cell(six, 'WRN ImageNet1', 7)} in that cell; {saved[0]} in all {saved[1]} clean cells"
    assert any(text.startswith(f"{cell(eight, 'WRN ImageNet1', 6)}: the paper's watts") for text in ours)
    assert any(text.startswith(f"{cell(nine, 'ViT ImageNet1', 6)}. Less than") for text in ours)


def cell(lines: list[list[str]], name: str, column: int) -> str:
    """Of the line with no extra process."""
    (line,) = (line for line in lines if line[:2] == [name, "0"])
    return line[column]


def test_the_paper_s_own_headlines_follow_from_its_tables() -> None:
    six, eight, nine = (lines_of(title) for title in SECTIONS if re.match(r"Table (VI|VIII|IX):", title))
    assert max(float(line[4].split()[0]) for line in six) == 23.5
    assert max(float(line[4].split()[0]) for line in eight) == 19.7
    assert max(float(line[4].split()[0]) for line in nine) == 37.6
    assert len(six) == 26 and len(eight) == len(nine) == 10


def test_times_that_are_missing_and_tables_that_differ_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = (page.DOCS / "benchmarks.md").read_text()
    monkeypatch.setattr(page, "DOCS", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "paper.md")
    (tmp_path / "paper.md").write_text(TEXT)
    (tmp_path / "benchmarks.md").write_text(re.sub(r"^ViT ImageNet2 +16 .*\n", "", bench, flags=re.MULTILINE))
    assert page.main([]) == 1
    assert "no line of ('ViT ImageNet2', 16)" in capsys.readouterr().err
    (tmp_path / "benchmarks.md").write_text(bench)
    (tmp_path / "paper.md").write_text(TEXT.replace("| WRN ImageNet1 | 0 | 3.", "| WRN ImageNet1 | 0 | 4."))
    assert page.main(["--check"]) == 1
    assert "run this without --check" in capsys.readouterr().err
    assert page.main([]) == 0 and (tmp_path / "paper.md").read_text() == TEXT
    (tmp_path / "paper.md").write_text("no tables")
    assert page.main([]) == 1
    assert "no place for Table VI" in capsys.readouterr().err
