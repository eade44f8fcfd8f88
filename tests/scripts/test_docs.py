"""The documentation: the site builds without a warning, and its names, commands, messages and code are right."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import importlib.util
import io
import itertools
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

from csd_engine.__main__ import make_parser as make_engine_parser
from ddlp import cli
from ddlp.observe.analysis import ADVICE
from ddlp.schedule.strategies import STRATEGIES
from ddlp.stats.report import EpochReport

pytest.importorskip("mkdocs", reason="the site's tools are missing: pip install -e '.[docs]'")
pytest.importorskip("mkdocstrings")

from scripts import docs_hooks  # noqa: E402  it imports mkdocs
from tests.forks import Forks  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
TEMPLATES = sorted({*(ROOT / "templates").glob("*.py")} - {ROOT / "templates/common.py", ROOT / "templates/training.py"})
PUBLIC = ("ddlp", "ddlp.observe", "ddlp.observe.energy", "ddlp.transforms", "ddlp.transfer.gds.probe")


# -- the site --------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The links of a built page, what it loads, and its anchors."""

    LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data", "embed": "src"}

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.leads_to: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places.update(value for name in ("id", "name") if (value := given.get(name)))
        if tag == "a" and (href := given.get("href")):
            self.leads_to.append(href)
        what = given.get("href") if tag == "link" else given.get(self.LOADS.get(tag, ""))
        self.loads += [what] if what else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Warnings of mkdocs are errors: links without a target, pages outside the navigation."""
    to = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", to],  # with --quiet, --strict would see nothing
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("INFO ")]
    assert (done.returncode, done.stdout, said) == (0, "", [])
    return to


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in site.rglob("*.html")}


def test_every_page_is_there(pages: dict[Path, Page], site: Path) -> None:
    assert {path.relative_to(site.resolve()).stem for path in pages} == {page.stem for page in PAGES} | {"404"}


def test_links_end_somewhere(pages: dict[Path, Page]) -> None:
    astray = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the server's root
            continue
        for link in page.leads_to + page.loads:
            if re.match(r"[a-z]+:", link):
                continue
            where, _, place = unquote(link).partition("#")
            target = (path.parent / where).resolve() if where else path
            if not target.exists() or (place and target in pages and place not in pages[target].places):
                astray.append(f"{path.name}: {link}")
    assert not astray


def test_no_page_loads_anything_from_another_host(pages: dict[Path, Page], site: Path) -> None:
    loads = [f"{path.name}: {what}" for path, page in pages.items() for what in page.loads if re.match(r"([a-z]+:)?//", what)]
    for style in site.rglob("*.css"):
        foreign = re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"';]+", style.read_text())
        loads += [f"{style.name}: {one}" for one in foreign]
    assert not loads


def test_lists_are_lists(site: Path) -> None:
    """The site's Markdown needs an empty line before a list. GitHub's does not."""
    for path in site.glob("*.html"):
        for paragraph in re.findall(r"<p>(.*?)</p>", path.read_text(), re.DOTALL):
            assert not re.search(r"^\s*(-|\*|1\.) ", paragraph, re.MULTILINE), f"{path.name}: {paragraph[:200]}"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_explained(pages: dict[Path, Page], site: Path, module: str) -> None:
    places = pages[(site / "api.html").resolve()].places
    missing = {f"{module}.{name}" for name in importlib.import_module(module).__all__} - places
    assert not missing


def test_every_command_is_there(pages: dict[Path, Page], site: Path) -> None:
    assert {f"ddlp-{name}" for name in docs_hooks.commands()} <= pages[(site / "commands.html").resolve()].places
    text = (site / "commands.html").read_text()
    for name in ("ddlp", "ddlp deploy", "ddlp energy compare"):
        assert text.count(f"usage: {name} [-h]") == 1, name
    assert "--host-spool DIR" in text and "--quota-bytes SIZE" in text  # an option of ddlp deploy, and one of the engine


# -- the hooks -------------------------------------------------------------------------------------------------------


def test_a_section_that_readme_does_not_have_is_an_error() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_path="some.md"))
    with pytest.raises(docs_hooks.PluginError, match=r"some\.md.*no section 'Nothing'"):
        docs_hooks.on_page_markdown("<!-- README: Nothing -->", page)


def test_links_of_readme_are_as_seen_from_docs() -> None:
    section = docs_hooks.readme_section("A second computer")
    assert "[devices.md](devices.md)" in section and "](prongs.svg)" in section and "docs/" not in section


def test_only_generated_pages_may_be_missing(tmp_path: Path) -> None:
    nav = [{"Start": "index.md"}, {"Figures": [{"Benchmarks": "benchmarks.md"}, {"Pixels": "parity.md"}]}]
    assert docs_hooks._there(nav, tmp_path) == [nav[0], {"Figures": [{"Pixels": "parity.md"}]}]
    (tmp_path / "benchmarks.md").touch()
    assert docs_hooks._there(nav, tmp_path) == nav


def test_readme_is_read_in_two_minutes() -> None:
    text = (ROOT / "README.md").read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(text.splitlines()) <= 150 and max(map(len, text.splitlines())) < 200 and len(prose.split()) < 900
    assert "DDLPLoader(" in text[: re.search(r"(?:\S+\s+){150}", text).end()]  # type: ignore[union-attr]


def test_figures_of_readme_are_one_run_s() -> None:
    """The run in docs/benchmarks.md: ImageNet1, files of 110 kB."""
    names = {
        "DataLoader": "DataLoader, 0 workers", "SPDL": "SPDL, 1 thread", "DALI on the CPU": "DALI, CPU, 1 thread",
        "torchvision on tensors": "torchvision.io + v2 on tensors", "TurboLoader": "TurboLoader, 1 thread",
        "**DDLPLoader**": "DDLPLoader",
    }  # fmt: skip
    section = (ROOT / "docs/benchmarks.md").read_text().partition("## Images/s on one core: ImageNet1, files of 110 kB")[2]
    section = section.partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| \**([\d,]+)\** \| \**([\d.]+)\** \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) > 4
    for name, rate, times in rows:
        found = re.search(rf"^{re.escape(names[name])}  +(\d+) \(.*?\) +([\d.]+) \(", section, re.MULTILINE)
        assert found and (int(found[1]), round(float(found[2]), 1)) == (int(rate.replace(",", "")), float(times)), name


# -- what the texts say ----------------------------------------------------------------------------------------------


def blocks(text: str) -> Iterator[tuple[bool, str]]:
    """Python blocks, and whether a test shall run each: it is marked for that, and the package that it needs is installed."""
    marked = r"^(?:<!-- (run)(?:, needs (\w+))? -->\n)?```python\n(.*?)^```"
    for run, needs, code in re.findall(marked, text, re.MULTILINE | re.DOTALL):
        yield bool(run) and (not needs or importlib.util.find_spec(needs) is not None), code


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_python_compiles(path: Path) -> None:
    for _, code in blocks(path.read_text()):
        compile(code, path.name, "exec")


def test_python_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # pages leave what they make
    codes = [(path.name, code) for path in PAGES for run, code in blocks(path.read_text()) if run]
    assert codes
    for name, code in codes:
        exec(compile(code, name, "exec"), {"__name__": "docs"})
    said = capsys.readouterr().out
    assert "travels    Pad -> RandomCrop -> RandomHorizontalFlip" in said and "2,048 samples" in said


@pytest.mark.slow  # tests/ddlp/dropin has its parts
def test_the_tour_runs_and_shows_what_came(tmp_path: Path, forks: Forks) -> None:
    pytest.importorskip("skimage", reason="the sample photographs are missing: pip install -e '.[quickstart]'")
    pytest.importorskip("sklearn")
    text = (ROOT / "docs/tour.ipynb").read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert all(cell["outputs"] for cell in cells) and "error" not in kinds and not re.search(r"[\"' (]/[a-z]+/", text)
    code = "\n".join("".join(cell["source"]) for cell in cells)
    done = forks.run(code=code, cwd=tmp_path, environment={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "")
    assert "same pixels: True  same labels: True" in done.stdout and "same bits as unbroken: True" in done.stdout
    assert done.stdout.count(": 128 samples, host ") == 3
    assert not any(tmp_path.iterdir())


def lines_of_code(text: str) -> Iterator[str]:
    """Lines of code blocks and texts between backquotes. A backslash at the end of a line joins it with the next."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    code = [" ".join(one.split()) for one in re.findall(r"`((?:[^`\n]|\n(?!\n))+)`", prose)]
    code += [line for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.startswith("    ")]
    fenced = re.findall(r"^```(?:text|bash|sh)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    yield from code + [line for block in fenced for line in block.splitlines()]


def given_commands(text: str) -> Iterator[str]:
    """Command lines of ddlp and its scripts."""
    for line in lines_of_code(text):
        found = re.match(r"\s*(?:sudo )?(?:(?:\S*python3? -m )?ddlp(?! run: )|\S*python3? -m csd_engine)(?: .*|$)", line)
        if found:
            yield found[0].strip()


def parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of a command line, and the words after the command's name."""
    if words[0] == "csd_engine":
        return make_engine_parser(), words[1:]
    words = words[1:]
    parser = cli.make_parser(words)
    while (below := docs_hooks._subparsers(parser)) and words and not words[0].startswith("-"):
        assert words[0] in below, f"there is no command {words[0]!r}"
        parser, words = below[words[0]], words[1:]
    return parser, words


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_commands_are_as_written(path: Path) -> None:
    wrong = []
    for line in given_commands(path.read_text()):
        words = shlex.split(line, comments=True) if line.count("'") % 2 == 0 else line.split("#")[0].split()
        words = words[next(i for i, word in enumerate(words) if word in ("ddlp", "csd_engine")) :]
        try:
            parser, rest = parser_of(words)
        except AssertionError as error:
            wrong.append(f"{line}: {error}")
            continue
        for word in rest:
            if word in ("--", "&&"):
                break
            if word.startswith("-") and word.split("=")[0].rstrip(",;") not in parser._option_string_actions:
                wrong.append(f"{line}: no option {word}")
    assert not wrong


def test_commands_of_benchmarks_are_as_written() -> None:
    text = "\n".join(path.read_text() for path in TEXTS)
    found = set(re.findall(r"python -m (benchmarks[\w.]*)([^`\n#]*)", text))
    assert {name for name, _ in found} >= {"benchmarks", "benchmarks.host", "benchmarks.overlap", "benchmarks.papers.scaled"}
    for name, rest in found:
        module = importlib.import_module(name if name != "benchmarks" else "benchmarks.__main__")
        if not hasattr(module, "add_arguments"):
            continue
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        wrong = [word for word in rest.split() if word.startswith("--") and word not in parser._option_string_actions]
        assert not wrong, f"{name}{rest}"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_modules_that_are_run_exist(path: Path) -> None:
    """A figure of a script that went says at which commit the script was there."""
    text, gone = " ".join(path.read_text().split()), []
    for found in re.finditer(r"python -m ((?:scripts|tests|benchmarks)(?:\.\w+)*)", text):
        if not module_is_there(found[1]) and "at commit" not in text[max(found.start() - 30, 0) : found.end() + 100]:
            gone.append(found[0])
    assert not gone


def test_modules_that_are_run_can_be_imported() -> None:
    """Nothing else imports most of them, so a helper that they need may go unseen."""
    text = " ".join(path.read_text() for path in TEXTS)
    named = set(re.findall(r"python -m ((?:scripts|tests|benchmarks)(?:\.\w+)*)", text))
    code = "".join(f"import {name}\n" for name in sorted(named) if module_is_there(name))
    assert "import tests.golden" in code
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def module_is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # nor is the package
        return False


@pytest.fixture(scope="module")
def options_of() -> dict[str, set[str]]:
    """Each template's options by the template's name."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "templates")
        for path in TEMPLATES:
            patch.setattr(sys, "argv", [path.name, "--help"])
            with contextlib.redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit):
                runpy.run_path(str(path), run_name="__main__")
            found[path.stem] = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", said.getvalue(), re.MULTILINE))
    return found


def test_commands_of_templates_are_as_written(options_of: dict[str, set[str]]) -> None:
    """Commands in the documentation and in the templates' own docstrings."""
    given = []
    for path in (*TEXTS, *TEMPLATES):
        text = path.read_text() if path.suffix == ".md" else ast.get_docstring(ast.parse(path.read_text())) or ""
        for line in lines_of_code(text):
            given += [(line, *found) for found in re.findall(r"(?:python|torchrun)\b.* templates/(\w+)\.py([^#]*)", " " + line)]
    assert {name for _, name, _ in given} >= {"measure_energy", "train_ddp"}
    wrong = [
        f"{line}: no option {word}"
        for line, name, words in given
        for word in re.findall(r"(?<!\S)--[\w-]+", words)
        if word not in options_of[name]
    ]
    assert not wrong


def test_templates_without_the_flags_of_all_are_named(options_of: dict[str, set[str]]) -> None:
    of_all = {"--small", "--strategy", "--seeds", "--report", "--record"}
    for page, flags in (("templates.md", of_all), ("index.md", {"--small"})):
        (named,) = re.findall(r"\b[Aa]ll but (`.*?) have\b", (ROOT / "docs" / page).read_text())
        assert set(re.findall(r"`(\w+)\.py`", named)) == {name for name, has in options_of.items() if not flags <= has}


RESOLVE = """
import functools, os
import ddlp
for names in {groups}:
    child = os.fork()
    if child == 0:
        for name in names:
            functools.reduce(getattr, name.split(".")[1:], ddlp)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(names)
"""


def test_dotted_names_need_no_import_but_ddlp(forks: Forks) -> None:
    """The names of each module are tried in a new process, in which nothing else has imported it."""
    pages = [path for path in PAGES if path.name not in ("api.md", "design.md")]  # those two name modules too
    text = "\n".join(path.read_text() for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *pages))
    names = sorted(set(re.findall(r"(?<!from )(?<!import )(?<![/\w.-])ddlp(?:\.[A-Za-z_]\w*)+", text)))
    assert {"ddlp.observe.analyse", "ddlp.observe.report.write_report", "ddlp.observe.energy.save"} <= set(names)
    groups = [list(group) for _, group in itertools.groupby(names, lambda name: name.rpartition(".")[0])]
    done = forks.run(code=RESOLVE.format(groups=groups), environment={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(path: Path) -> None:
    named = re.findall(r"[`([ /]((?:templates|scripts|tests|ddlp|csd_engine|docs)/[\w/]+\.(?:py|sh|md|c))\b", path.read_text())
    missing = {name for name in named if name not in ("docs/benchmarks.md",) and not (ROOT / name).exists()}
    assert not missing


def templates_of_messages() -> Iterator[str]:
    """Each text in our sources, with … in place of inserted values."""

    def text(node: ast.AST) -> str:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else "…"
        if isinstance(node, ast.JoinedStr):
            return "".join(map(text, node.values))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return text(node.left) + text(node.right)
        return "…"

    for package in ("ddlp", "csd_engine"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
                    with contextlib.suppress(RecursionError):
                        yield text(node)


def test_messages_are_quoted_as_they_are() -> None:
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", (ROOT / "docs/troubleshooting.md").read_text())
    assert len(quoted) > 40
    known = "\0".join(set(templates_of_messages()))
    gap = r"[^\0]*?"
    missing = [one for one in quoted if not re.search(gap.join(map(re.escape, one.strip("…").split("…"))), known)]
    assert not missing


def test_a_deploy_that_is_advised_says_of_which_device() -> None:
    """Without --name, ddlp would take the first word for an SSH destination."""
    texts = [*templates_of_messages(), *(path.read_text() for path in (*TEXTS, ROOT / "CHANGELOG.md"))]
    first = {option for text in texts for option in re.findall(r"ddlp deploy (-[\w-]+)", text)}
    assert first == {"--name", "--make-bundle", "--help"}


def test_tuning_knows_every_limit_and_no_other_field() -> None:
    tuning = (ROOT / "docs/tuning.md").read_text()
    limits = set(re.findall(r"^\| `([^`]+)` \|", tuning[tuning.index("## 2") : tuning.index("## 3")], re.MULTILINE))
    assert limits == set(ADVICE)
    fields = {field.name for field in dataclasses.fields(EpochReport)} | {"bound_s"}
    rows = re.findall(r"^\| (`.*?) \|", tuning[: tuning.index("## 2")], re.MULTILINE)
    assert rows and {name for row in rows for name in re.findall(r"`(\w+)`", row)} <= fields


def test_strategies_are_those_that_there_are() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs/strategies.md").read_text(), re.MULTILINE)
    assert {name for heading in headings for name in heading.split(", ") if name.islower()} == set(STRATEGIES)
