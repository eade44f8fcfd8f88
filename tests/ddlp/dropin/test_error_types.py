"""A sample's error has DataLoader's type and text, and names its file; the user's own errors arrive as they were raised."""

from __future__ import annotations

import errno
import os
import re
import struct
import subprocess
import traceback

import pytest
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from ddlp import DDLPLoader, ImageFiles

SIZES = (1, 1), (1, 300), (300, 1), (2, 3), (10, 20), (20, 10), (64, 48)
WAYS = {"0 workers": {"strategy": "cpu"}, "2 workers": {"strategy": "cpu", "num_workers": 2}, "engine": {"strategy": "csd"}}


def errors_of(loader):
    """The error of each sample that has one, by its file's name, and how many samples came."""
    iterator, found, came = iter(loader), {}, 0
    names = [os.path.basename(path) for path, _ in loader.dataset.samples]
    for step in range(len(names)):
        try:
            next(iterator)
            came += 1
        except Exception as error:
            text = f"{error} {getattr(error, 'filename', '')}"
            name = next((name for name in names if name in text), names[step])
            assert type(loader) is DataLoader or name in text, f"{error!r} names no file"
            found[name] = error
    return found, came


def compare(dataset, **options):
    """Compare the errors of all samples with DataLoader's. Returns DataLoader's."""
    plain, good = errors_of(DataLoader(dataset, 1))
    ours, came = errors_of(DDLPLoader(dataset, 1, **options))
    assert set(ours) == set(plain) and came == good
    for name, error in ours.items():
        expected = plain[name]
        assert isinstance(error, type(expected)), (name, expected, error)
        text = re.sub(r"Argument #\d: |<_io.BufferedReader name=(.*)>", r"\1", str(expected)).rstrip(".").replace("padded ", "")
        assert text in str(error), (name, expected, error)
        if isinstance(expected, OSError):
            assert (error.errno, error.filename) == (expected.errno, expected.filename), (name, expected, error)
    return plain


def folder(root):
    return ImageFolder(root, is_valid_file=lambda path: True)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Images of odd sizes, as PNG and JPEG."""
    root = tmp_path_factory.mktemp("odd")
    (root / "a").mkdir()
    for width, height in SIZES:
        for kind in ("png", "jpg"):
            Image.new("RGB", (width, height), (9, 99, 199)).save(root / "a" / f"{width}x{height}.{kind}")
    return folder(root)


def operators(module):
    """Known operators that refuse some images."""
    return [
        module.RandomCrop(12),
        module.RandomCrop((12, 30), padding=3),
        module.RandomCrop(12, padding=4, padding_mode="reflect"),
        module.FiveCrop(12),
        module.TenCrop((12, 5)),
        module.Resize(8, max_size=20),
        module.Pad(-4),
        module.GaussianBlur((23, 5)),
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("module", (transforms, v2))
@pytest.mark.parametrize("number", range(len(operators(v2))))
@pytest.mark.some(6)
def test_an_image_that_an_operator_refuses(odd, module, number, way):
    operator = operators(module)[number]
    steps = [operator, module.Resize((8, 8)), module.ToTensor()]
    if isinstance(operator, (module.FiveCrop, module.TenCrop)):
        steps = [operator, as_tensors]
    odd.transform = module.Compose(steps)
    assert compare(odd, **WAYS[way])


def as_tensors(crops):
    return tuple(map(transforms.functional.to_tensor, crops))


def spoil(path, keep):
    """Keep a part of a file's bytes."""
    path.write_bytes(path.read_bytes()[:keep])


BMP = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54)
BROKEN = {  # a header that Pillow reads, and pixels that it can't
    "a.grb": b"GRIB\0\0\0\1" + bytes(100),
    "a.bufr": b"BUFR\0\0\0\4" + bytes(100),
    "a.h5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "depth.bmp": BMP + struct.pack("<IiiHHIIiiII", 40, 300, 1, 1, 2, 0, 0, 0, 0, 0, 0),
    "short.bmp": BMP + struct.pack("<IiiHHIIiiII", 40, 300, 1, 1, 24, 0, 0, 0, 0, 0, 0),
    "kind.bmp": BMP + struct.pack("<I", 66) + bytes(62),
    "a.fli": struct.pack("<IHHHHHHI108xIHH8x", 128, 0xAF11, 1, 300, 1, 8, 3, 1, 16, 0xF1FA, 1),
    "bits.dds": b"DDS " + struct.pack("<7I44x8I20x", 124, 0x1007, 1, 300, 0, 0, 0, 32, 0x20000, 0, 24, 0, 0, 0, 0),
    "no image": b"text",
    "empty.jpg": b"",
}  # fmt: skip


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Files that can't be decoded, most of a size that operators refuse too."""
    root = tmp_path_factory.mktemp("broken") / "a"
    root.mkdir()
    for name, content in BROKEN.items():
        (root / name).write_bytes(content)
    for kind, keep in {"sgi": 520, "dds": 140, "blp": 1000, "png": 60, "jpg": 640, "gif": 800}.items():
        name = f"cut.{kind}"
        mode = "P" if name.endswith("blp") else "RGB"
        Image.effect_noise((300, 1), 50).convert(mode).save(root / name)
        spoil(root / name, keep)
    Image.new("RGB", (40, 40)).save(root / "good.png")
    return folder(root.parent)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("operator", ("RandomCrop(12)", "Resize(8, max_size=20)", "RandomResizedCrop(8)", "Resize((8, 8))"))
@pytest.mark.some(6)
def test_a_file_that_cannot_be_decoded(broken, operator, way):
    """Its own error comes, not that of an operator that refuses the size in its header."""
    broken.transform = transforms.Compose(
        [eval(f"transforms.{operator}"), transforms.CenterCrop(8), transforms.ToTensor()]
    )
    errors = compare(broken, **WAYS[way])
    assert {name.rpartition(".")[2] for name in errors} >= {"grb", "bufr", "h5", "bmp", "fli", "dds", "sgi", "blp", "jpg"}


@pytest.mark.parametrize("way", WAYS)
def test_what_the_operating_system_refuses(tmp_path, way):
    root = tmp_path / "a"
    root.mkdir()
    for name in ("0.png", "folder.png", "gone.png", "loop.png", "dangling.png", "secret.png"):
        Image.new("RGB", (20, 20)).save(root / name)
    dataset = folder(tmp_path)
    dataset.transform = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
    for name in ("folder.png", "gone.png", "loop.png", "dangling.png"):
        (root / name).unlink()
    (root / "folder.png").mkdir()
    (root / "loop.png").symlink_to("loop.png")
    (root / "dangling.png").symlink_to("nothing")
    (root / "secret.png").chmod(0)
    errors = compare(dataset, **WAYS[way])
    assert type(errors["folder.png"]) is IsADirectoryError and errors["loop.png"].errno == errno.ELOOP
    assert os.geteuid() == 0 or type(errors["secret.png"]) is PermissionError


class Refused(Exception):
    """A user's error with two required arguments, which torch can't carry from a worker."""

    def __init__(self, code, why):
        super().__init__(code, why)
        self.code = code


def calls(value):
    subprocess.run(["false"], check=True)


def refuses(value):
    raise Refused(7, "no")


def opens(value):
    open("/nowhere/at/all")


def chains(value):
    try:
        {}["k"]
    except KeyError as error:
        raise ValueError("v") from error


FACTS = {calls: {"returncode": 1}, refuses: {"code": 7}, opens: {"errno": 2, "filename": "/nowhere/at/all"}, chains: {}}


@pytest.mark.parametrize("where", ("step", "target", "collate"))
@pytest.mark.parametrize("function", FACTS)
def test_the_users_own_error_is_the_very_object(odd, where, function):
    """At 0 workers what the user's code raises arrives with its attributes and its cause."""
    raised = []

    def remembers(value):
        try:
            return function(value)
        except Exception as error:
            raised.append(error)
            raise

    step = [transforms.Lambda(remembers)] if where == "step" else []
    known = transforms.Resize((8, 8))
    dataset = ImageFiles(
        [path for path, _ in odd.samples], odd.targets, transforms.Compose([known, *step, transforms.ToTensor()]),
        target_transform=remembers if where == "target" else None,
    )  # fmt: skip
    loader = DDLPLoader(dataset, 2, strategy="cpu", **({"collate_fn": remembers} if where == "collate" else {}))
    with pytest.raises(Exception) as caught:
        next(iter(loader))
    error = caught.value
    assert any(error is each for each in raised)
    raised.clear()  # its tracebacks hold the iterator, and the transform holds it: the epoch's thread would stay
    assert {name: getattr(error, name) for name in FACTS[function]} == FACTS[function]
    assert isinstance(error.__cause__, KeyError if function is chains else type(None))
    if where != "collate":
        assert dataset.paths[0] in " ".join(error.__notes__)
        assert not hasattr(traceback, "_format_note") or dataset.paths[0] in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("function", FACTS)
def test_a_data_set_of_ones_own(function):
    class Own:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return function(index)

    with pytest.raises(Exception) as caught:
        next(iter(DDLPLoader(Own(), 2)))
    assert {name: getattr(caught.value, name) for name in FACTS[function]} == FACTS[function]


@pytest.mark.parametrize("function", FACTS)
@pytest.mark.some(2)
def test_from_a_worker_as_from_dataloaders(odd, function):
    odd.transform = transforms.Compose([transforms.Resize((8, 8)), transforms.Lambda(function), transforms.ToTensor()])
    found = []
    for kind, options in ((DataLoader, {}), (DDLPLoader, {"strategy": "cpu"})):
        with pytest.raises(Exception) as caught:
            next(iter(kind(odd, 2, num_workers=1, **options)))
        found.append((type(caught.value), str(caught.value).splitlines()[0]))
    assert found[0] == found[1]


@pytest.mark.parametrize("way", WAYS)
def test_an_image_that_an_operator_refuses_is_replaced_where_asked(odd, way):
    transform = transforms.Compose([transforms.RandomCrop(12), transforms.ToTensor()])
    dataset = ImageFiles([path for path, _ in odd.samples], range(len(odd)), transform)
    small = [min(Image.open(path).size) < 12 for path in dataset.paths]
    loader = DDLPLoader(dataset, len(dataset), seed=1, on_error="replace", max_replaced=1.0, **WAYS[way])
    ((images, _),) = loader
    assert len(images) == len(dataset) and loader.report().replaced == sum(small) > 0


def test_warnings_as_errors_end_no_training(tmp_path, forks):
    """Advice is a line on stderr, once, where the user has set up no logging, and a log record where there is some."""
    for number in range(4):
        Image.new("RGB", (30, 30)).save(tmp_path / f"{number}.png")
    for more, line in (((), "ddlp: torch's own workers"), (("log",), "WARNING ddlp code.py:23 ddlp: torch's own workers")):
        done = forks.run(code=TRAIN, arguments=[str(tmp_path), *more], environment=os.environ)
        assert (done.returncode, done.stdout) == (0, "4 4 4 4\n"), done.stderr
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith(line) and "loader.explain()" in lines[0]


TRAIN = """\
import glob, logging, sys, warnings
warnings.simplefilter("error")  # before ddlp is imported
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from ddlp import DDLPLoader

class Own(Dataset):
    paths = sorted(glob.glob(sys.argv[1] + "/*.png"))
    transform = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index

if "log" in sys.argv:
    logging.basicConfig(format="%(levelname)s %(name)s %(filename)s:%(lineno)d %(message)s")
seen = []
for workers in (0, 2):
    loader = DDLPLoader(Own(), 2, num_workers=workers)
    seen += [sum(len(labels) for _, labels in epoch) for epoch in (loader, loader)]
print(*seen)
"""
