"""The command line's own part: what becomes of Ctrl-C."""

import argparse
import sys

import pytest

from ddlp import cli


def interrupted(_: argparse.Namespace) -> int:
    raise KeyboardInterrupt


def test_ctrl_c_ends_the_program_or_whoever_calls_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    parser.set_defaults(run=interrupted)
    monkeypatch.setattr(cli, "make_parser", lambda given: parser)
    monkeypatch.setattr(sys, "argv", ["ddlp"])
    assert cli.main() == 130 and capsys.readouterr().err == "ddlp: stopped\n"
    with pytest.raises(KeyboardInterrupt):  # of a test, say: it was to end all of them
        cli.main([])
    assert capsys.readouterr().err == ""
