"""`python -m scripts.peer_tests`: another project's tests run with ddlp's class, from a copy, and what differs is listed."""

from __future__ import annotations

import sys

import pytest

from scripts.peer_tests import main

TESTS = """\"\"\"Tests like torchdata's.\"\"\"

from __future__ import annotations

import unittest

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader


class TestLoader(unittest.TestCase):
    def test_samples(self) -> None:
        for workers in (0, 1):
            with self.subTest(workers=workers):
                self.assertEqual([int(x) for x in StatefulDataLoader(range(3), num_workers=workers)], [0, 1, 2])

    def test_name(self) -> None:
        for name in ("StatefulDataLoader", "StatefulDataLoader"):
            with self.subTest():
                self.assertEqual(StatefulDataLoader.__name__, name)

    @unittest.skip("a reason")
    def test_later(self) -> None:
        raise AssertionError
"""


@pytest.mark.parametrize(
    ("options", "counts"),
    [pytest.param([], ["2 1", "0 1", "1 1"], marks=pytest.mark.slow), (["--only-ddlp", "-k", "samples"], ["1", "0", "0"])],
)
def test_what_differs_is_listed(monkeypatch, capsys, tmp_path, options, counts):
    pytest.importorskip("torchdata.stateful_dataloader")
    file = tmp_path / "test/stateful_dataloader/test_state_dict.py"
    file.parent.mkdir(parents=True)
    file.write_text(TESTS)
    monkeypatch.setattr(sys, "argv", ["peer_tests", str(tmp_path), *options])
    status = main()
    _, passed, failed, skipped, *differ = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()[1:]) for line in (passed, failed, skipped)] == counts
    assert status == len(differ) == (0 if "-k" in options else 1)
    assert all("TestLoader.test_name: " in line and line.endswith("failed") for line in differ)
    assert file.read_text() == TESTS


def test_a_directory_without_such_tests(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["peer_tests", str(tmp_path)])
    with pytest.raises(SystemExit, match="has none of test/test_dataloader.py, .*give the checkout of PyTorch"):
        main()


def test_tests_that_lack_a_package_are_told_of(monkeypatch, tmp_path):
    file = tmp_path / "test/test_dataloader.py"
    file.parent.mkdir(parents=True)
    file.write_text("import a_package_that_is_missing\n")
    monkeypatch.setattr(sys, "argv", ["peer_tests", str(tmp_path), "--only-ddlp"])
    with pytest.raises(SystemExit, match="(?s)did not run:.*No module named 'a_package_that_is_missing'"):
        main()
