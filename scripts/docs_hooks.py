"""Hooks that mkdocs calls while it builds the documentation. They copy texts from other places, so that no text exists twice.

`<!-- README: When it does not pay -->` in a page becomes that section of README.md. `<!-- help: ddlp deploy -->` becomes what
the command prints for --help, `<!-- help of all commands -->` what every command prints. A link to a source file becomes the
file's name. A page of the navigation that `python -m benchmarks` writes may be missing.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

from csd_engine.__main__ import make_parser as make_engine_parser
from ddlp import cli

_GENERATED = {"benchmarks.md"}
_README = Path(__file__).parents[1] / "README.md"
_SOURCE = re.compile(r"\[[^]]+\]\(\.\./((?:ddlp|csd_engine|tests)/[\w/]+\.py)\)")
_MARK = re.compile(r"^<!-- (README|help): (.+?) -->$|^<!-- (help of all commands) -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Leave generated pages that are missing out of the navigation."""
    config.nav = _there(config.nav, Path(config.docs_dir))
    return config


def _there(nav: list[Any], docs: Path) -> list[Any]:
    kept = []
    for entry in nav:
        (title, where), *_ = entry.items()
        if isinstance(where, list):
            kept.append({title: _there(where, docs)})
        elif where not in _GENERATED or (docs / where).exists():
            kept.append(entry)
    return kept


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the texts that a page asks for."""

    def fill(mark: re.Match[str]) -> str:
        if mark[3]:
            return "\n\n".join(f"## ddlp {name}\n\n{_help(['ddlp', name])}" for name in commands())
        return readme_section(mark[2]) if mark[1] == "README" else _help(mark[2].split())

    try:
        return _SOURCE.sub(r"`\1`", _MARK.sub(fill, markdown))
    except LookupError as error:
        raise PluginError(f"{page.file.src_path}: {error}") from error


def readme_section(title: str) -> str:
    """Return the text below a heading of README.md, with links as seen from docs/. Raises LookupError for another heading."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", _README.read_text(), re.MULTILINE | re.DOTALL)
    if match is None:
        raise LookupError(f"README.md has no section {title!r}")
    text = match[1].strip().replace("](docs/", "](").replace("[docs/", "[")
    return re.sub(r"\[([^]]+)\]\((?:#|templates|scripts)[^)]*\)", r"\1", text)  # links to what the site does not have


def commands() -> list[str]:
    """Return the names of ddlp's commands."""
    return [*_subparsers(cli.make_parser())]


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    choices = (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(next(choices, {}))


def _help(command: list[str]) -> str:
    """Return what a command and each of its own commands print for --help."""
    if command == ["python", "-m", "csd_engine"]:
        return _block(make_engine_parser())
    parser = cli.make_parser(command[1:])
    for name in command[1:]:
        parser = _subparsers(parser)[name]
    # ddlp's own commands have their own sections.
    below = _subparsers(parser).values() if command != ["ddlp"] else []
    return "\n\n".join(map(_block, [parser, *below]))


def _block(parser: argparse.ArgumentParser) -> str:
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS="88", NO_COLOR="1")  # argparse reads these
    try:
        return f"```text\n{parser.format_help().rstrip()}\n```"
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
