"""`loader.explain()`: what it says, and where."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

from ddlp import DDLPLoader, ImageArrays, ImageFiles
from ddlp.errors import Untranslatable
from tests.ddlp.sources.in_process import InProcess
from tests.engine_process import until


def files(transform: Any) -> ImageFiles:
    return ImageFiles(["a.jpg", "b.jpg"], [0, 1], transform)


class Ours:
    def __call__(self, image: Any) -> Any:
        return image.rotate(90)

    def __repr__(self) -> str:
        return "Ours(<angle>)"


def test_it_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = DDLPLoader(files(transforms.Compose([Ours(), transforms.ToTensor()]))).explain()
    assert isinstance(said, str) and capsys.readouterr().out == f"{said}\n"
    assert "Ours(<angle>)" in said


class Preset(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transforms = v2.Compose([v2.CenterCrop(8)])

    def forward(self, image: Any) -> Any:
        return self.transforms(image)


class Photos(Dataset):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.new("RGB", (40, 30)))


def collate(samples: list[Any]) -> Any:
    return torch.stack(samples)


def test_it_lists_all_obstacles_at_once() -> None:
    steps = [
        Preset(),
        transforms.ElasticTransform(),
        transforms.ToTensor(),
        transforms.Resize(8),
        transforms.Normalize([0.5], [1]),
    ]
    for dataset in (Photos(transforms.Compose(steps)), Subset(Photos(transforms.Compose(steps)), [0])):
        lines = DDLPLoader(dataset, 2, collate_fn=collate).explain().splitlines()
        named = [line.split(maxsplit=2)[2] for line in lines if line.startswith("obstacle")]
        starts = ["collate_fn=collate:", "Photos:", "Preset(", "ElasticTransform(", "Resize("]
        assert len(named) == len(starts) and all(map(str.startswith, named, starts)), named
        assert "travels    nothing: 5 obstacles, listed below" in lines
        text = "\n".join(lines)
        for way in (
            "batch_transform=",
            "ddlp.ImageFiles(",
            "def __ddlp__(self)",
            "transform=preset.transforms",
            "load_operators(",
        ):
            assert way in text
        assert "replace it by" not in text and "4.2 to 5.2 times DataLoader" in text and "docs/benchmarks.md" in text


def test_what_only_an_obstacle_makes_fail_is_none() -> None:
    """`Ours` may return a tensor, as Normalize and RandomErasing need it. So they are no obstacles."""
    lines = DDLPLoader(
        files(transforms.Compose([Ours(), transforms.Normalize([0.5], [1]), transforms.RandomErasing()]))
    ).explain()
    assert lines.count("\nobstacle") == 1 and "obstacle 1 Ours(<angle>):" in lines


def test_the_preset_of_torchvisions_weights_travels() -> None:
    """It gives the same as the preset alone."""
    preset, image = ImageClassification(crop_size=8, resize_size=12), Image.effect_noise((40, 30), 60).convert("RGB")
    loader = DDLPLoader(ImageArrays(np.asarray(image)[np.newaxis], [3], preset), 1)
    assert "travels    Resize -> CenterCrop" in loader.explain()
    ((images, _),) = loader
    assert torch.equal(images[0], preset(image))


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (Photos(transforms.ToTensor()), True),
        (ConcatDataset([Photos(transforms.Compose([transforms.ToTensor()]))]), True),
        (Photos(lambda image: torch.zeros(1)), False),
        (TensorDataset(torch.zeros(3)), False),
    ],
)
def test_only_data_sets_that_plainly_have_images_speak_unasked(
    dataset: Any, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DDLPLoader(dataset)
        list(loader), list(loader)
    assert ["Photos" in text for text in caplog.messages] == [True] * told


def lines_of(loader: DDLPLoader, *names: str) -> list[str]:
    """The lines of explain() that begin with one of these names."""
    return [line for line in loader.explain().splitlines() if line.split()[0] in names]


def test_sources_of_ones_own_are_named_with_what_they_have_told() -> None:
    images = ImageArrays(np.zeros((24, 8, 8, 3), np.uint8), range(24), transforms.ToTensor())
    loader = DDLPLoader(images, 4, strategy="csd", csd=[InProcess("spare cores", 2), InProcess("attic")])
    begin = "source     spare cores (InProcess, yours): ", "source     attic (InProcess, yours): "
    before = [f"{one}what it can hold is known once it has joined an epoch" for one in begin]
    assert lines_of(loader, "source", "transfer") == before, "without an engine there is no spool"
    iterator = iter(loader)
    until(lambda: all(device.quota for device in loader.live().devices), 30, "both sources")
    assert sum(len(labels) for _, labels in iterator) == 24
    after = [f"{begin[0]}holds 8 batches, has 2 workers", f"{begin[1]}holds 4 batches, has 1 worker"]
    assert lines_of(loader, "source", "transfer") == after


def test_a_source_of_ones_own_beside_a_device_and_where_nothing_travels() -> None:
    both = ["tcp://127.0.0.1:1", InProcess("attic")]
    cropped = transforms.Compose([transforms.CenterCrop(8), transforms.ToTensor()])
    transfer, source = lines_of(DDLPLoader(files(cropped), csd=both), "transfer", "source")
    assert "spool" in transfer and source.startswith("source     attic (InProcess, yours): what it can hold")
    with pytest.warns(UserWarning, match="the host prepares all batches"):
        loader = DDLPLoader(files(transforms.Compose([Ours(), transforms.ToTensor()])), csd=both)
    assert lines_of(loader, "source") == ["source     attic (InProcess, yours): takes no part, since nothing travels"]


def test_a_notebook_shows_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    """In the cell that calls it, it is printed and not shown again as the cell's value. A later cell shows the value."""
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


SLIPS = re.compile(r"\b(or|and|the|a|to|of|it|its|is) \1\b|(?<!\.)\.\.(?![./])|[;,] ?[.;,]|: ?[.;,:] | [.,;] ")


@pytest.mark.parametrize("number", range(6))
def test_a_message_reads_as_one_sentence(number: int, tmp_path: Path) -> None:
    """Its parts are joined without a doubled word or stop."""
    (tmp_path / "a").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "a" / "0.png")
    own = transforms.Compose([Ours(), transforms.ToTensor()])
    erasing = transforms.RandomErasing(), transforms.RandomErasing(value="random")
    datasets: list[Any] = [
        Photos(transforms.ToTensor()),
        type("MyFolder", (ImageFolder,), {"__getitem__": lambda self, index: index})(tmp_path),
        ConcatDataset([Photos(own), Photos(transforms.ToTensor())]),
        files(own),
        files(transforms.Compose([transforms.ToTensor(), *erasing])),
        TensorDataset(torch.zeros(3)),
    ]
    dataset = datasets[number]
    texts = [DDLPLoader(dataset, 2).explain()]
    with pytest.raises(Untranslatable) as told:
        iter(DDLPLoader(dataset, 2, strategy="csd"))
    texts.append(str(told.value))
    assert "Ways out: " in texts[1]
    for text in texts:
        assert SLIPS.search(text.replace("...", "")) is None, text
