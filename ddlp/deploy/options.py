"""Options that commands about devices share."""

from __future__ import annotations

import argparse

__all__ = ["add_device", "add_json"]


def add_device(parser: argparse.ArgumentParser, without: str | None = None) -> None:
    """NAME, the device. ``without``: what the command does where none is named; else one must be."""
    said = "the device, as it was deployed" + (f"; default: {without}" if without else "")
    parser.add_argument("name", nargs="?" if without else None, metavar="NAME", help=said)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """--json: print ``what`` for programs."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")
