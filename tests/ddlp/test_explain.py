"""`loader.explain()`: what it says, and where."""

from typing import Any

import pytest
from torchvision import transforms

from ddlp import DDLPLoader, ImageFiles


def files(transform: Any) -> ImageFiles:
    return ImageFiles(["a.jpg", "b.jpg"], [0, 1], transform)


class Ours:
    def __call__(self, image: Any) -> Any:
        return image.rotate(90)

    def __repr__(self) -> str:
        return "Ours(<angle>)"


def test_it_is_printed_once_and_escaped_in_html(capsys: pytest.CaptureFixture[str]) -> None:
    said = DDLPLoader(files(transforms.Compose([Ours(), transforms.ToTensor()]))).explain()
    assert isinstance(said, str) and capsys.readouterr().out == f"{said}\n"
    html = said._repr_html_()
    assert html.startswith("<pre>") and "Ours(&lt;angle&gt;)" in html and "<angle>" not in html


def test_a_notebook_shows_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The cell that calls it prints it; its value, shown by a later cell, is shown again."""
    shell = pytest.importorskip("IPython.core.interactiveshell", reason="needs IPython").InteractiveShell.instance()
    try:
        shell.push({"loader": DDLPLoader(files(transforms.Compose([transforms.CenterCrop(8), transforms.ToTensor()])))})
        shell.run_cell("said = loader.explain(); said", store_history=True)
        assert capsys.readouterr().out.count("strategy   cpu") == 1
        shell.run_cell("said", store_history=True)
        assert capsys.readouterr().out.count("strategy   cpu") == 1
        shell.run_cell("'nothing'", store_history=True)
        assert "strategy" not in capsys.readouterr().out
    finally:
        type(shell).clear_instance()
