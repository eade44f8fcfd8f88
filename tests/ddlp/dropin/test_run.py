"""`ddlp run`: unedited scripts in processes of their own, compared with plain Python."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset
from torchvision import datasets, transforms

from benchmarks.common import user_environment
from ddlp import DDLPLoader, cli
from ddlp.observe import read_run
from ddlp.swap.comparison import Comparison, compare
from ddlp.swap.settings import Settings
from tests.forks import Forks
from tests.ports import free_port
from tests.small_images import make_images

HERE = Path(__file__).parent
PYTHON = [sys.executable]
RUN = [sys.executable, "-m", "ddlp", "run"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder")
    for name in ("cats", "dogs"):
        make_images(root / name, 41)
    return root


def run(*command: Any, **changed: str) -> subprocess.CompletedProcess[str]:
    environment = {**user_environment(), "OMP_NUM_THREADS": "1", **changed}  # idle threads would spin
    return subprocess.run(list(map(str, command)), cwd=HERE, env=environment, capture_output=True, text=True, timeout=300)


def plain(forks: Forks, module: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run a script without `ddlp run`."""
    return forks.run(module=module, arguments=list(map(str, arguments)), cwd=HERE, environment=user_environment())


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that `ddlp run` printed."""
    return [line.removeprefix("ddlp run: ") for line in done.stderr.splitlines() if line.startswith("ddlp run: ")]


# -- unedited scripts ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_references(folder: Path, forks: Forks) -> subprocess.CompletedProcess[str]:
    return plain(forks, "like_references", "--data-path", folder)


@pytest.mark.slow
def test_a_script_like_torchvisions_references(folder: Path, plain_references: subprocess.CompletedProcess[str]) -> None:
    """Swapped: order, labels and evaluation pixels are DataLoader's; arguments, output and exit status are the script's."""
    done = run(*RUN, "--", "like_references.py", "--data-path", folder)
    assert (done.returncode, done.stdout) == (3, plain_references.stdout) and plain_references.returncode == 3
    code = (HERE / "like_references.py").read_text().splitlines()
    numbers = [number for number, line in enumerate(code, 1) if "torch.utils.data.DataLoader(" in line]
    train, test = (rf"like_references\.py:{number} DataLoader\(ImageFolder, batch 4, 1 worker\): " for number in numbers)
    gain = r"164 samples in .* s; this host prepares [\d,]+ samples/s, with DataLoader [\d,]+: \S+ times \(measured on 20 "
    lines = said(done)
    for expected, line in zip([train + "swapped, cpu: ", test + "swapped, cpu: ", train + gain, test + gain], lines):
        assert re.match(expected, line), lines
    assert len(lines) == 4


def test_a_device_helps_where_the_order_is_free(
    folder: Path, tmp_path: Path, plain_references: subprocess.CompletedProcess[str]
) -> None:
    """The script runs as a module and ends with an error of its own. An engine of this machine takes part."""
    arguments = ["-m", "like_references", "--data-path", folder, "--fail"]
    done = run(*RUN, "--strategy", "wrr", "--no-compare", "--record", tmp_path / "run", "--", *arguments)
    assert done.returncode == 1, done.stderr
    for ours, theirs in zip(done.stdout.splitlines()[1:], plain_references.stdout.splitlines()[1:]):
        assert sorted(ours) == sorted(theirs)  # the labels are in another order
        assert ours.split()[-1] == theirs.split()[-1]
    traceback = done.stderr[done.stderr.index("Traceback") :]
    assert "RuntimeError: the script's own error" in traceback and "ddlp/swap" not in traceback
    train, test, *gains = (line.partition("): ")[2] for line in said(done))
    assert train.startswith("swapped, wrr: whichever side is ready, so the order of batches changes from run to run")
    assert test == "swapped, ordered: both sides, in the sampler's order (wrr would change the order)"
    assert len(gains) == 2 and all(gain.endswith("the gain was not measured: --no-compare") for gain in gains)
    assert len(list((tmp_path / "run").glob("*.jsonl"))) == 4


@pytest.fixture(scope="module")
def plain_timm(folder: Path, forks: Forks) -> subprocess.CompletedProcess[str]:
    return plain(forks, "like_timm", folder)


def test_a_script_like_timms(folder: Path, tmp_path: Path, plain_timm: subprocess.CompletedProcess[str]) -> None:
    """A loader with a collate_fn of the script's is cut. A subclass of DataLoader stays torch's, to the bit."""
    swapped = run(*RUN, "--no-compare", "--record", tmp_path, "--", "like_timm.py", folder)
    assert plain_timm.returncode == swapped.returncode == 0, swapped.stderr
    lines, plain_lines = ([line.rpartition(" ") for line in done.stdout.splitlines()] for done in (swapped, plain_timm))
    assert [labels for labels, _, _ in lines] == [labels for labels, _, _ in plain_lines]
    assert [ours == theirs for ours, theirs in zip(lines, plain_lines)] == [False] * 2 + [True] * 2 + [False] * 2  # the crops
    subclass, collate, plainest, late, gain = said(swapped)
    alone = "MultiEpochsDataLoader is a subclass of DataLoader, with code of its own"
    assert f"MultiEpochsDataLoader(ImageFolder): left alone: {alone}; JPEGs that it opens by Pillow" in subclass
    assert "which ddlp could do faster" not in swapped.stderr  # the loader's own notice would repeat it
    drawn = "random crops, flips and colours are drawn by ddlp"
    called = "the collate_fn fast_collate runs as it is, with random numbers of a seed"
    assert ": swapped, cpu: " in collate and f"{drawn}, {called}" in collate
    assert ": swapped, cpu: " in plainest and plainest.endswith(drawn) and "320 samples" in gain
    assert re.match(r"1[67]\d JPEGs were decoded late; that saved some \S+ s of processor time \(an estimate", late), late
    assert [one.began.strategy for one in read_run(tmp_path)] == ["cpu"] * 4


def test_only_what_changes_no_random_number(folder: Path, plain_timm: subprocess.CompletedProcess[str]) -> None:
    """Nothing changes: the output is the script's to the bit. No image is decoded late either; the test above sees that."""
    done = run(*RUN, "--only-exact", "--no-postpone", "--", "like_timm.py", folder)
    assert done.stdout == plain_timm.stdout and done.returncode == 0, done.stderr
    loaders = sorted(said(done), key=len)
    assert len(loaders) == 3 and all(": left alone: " in line for line in loaders), loaders
    assert ": left alone: --only-exact: where it is swapped, random crops, flips and colours are drawn by " in loaders[2]
    assert "drawn by ddlp, the collate_fn fast_" in loaders[2]


@pytest.mark.slow
def test_torchs_own_loaders_are_measured(
    folder: Path, tmp_path: Path, plain_timm: subprocess.CompletedProcess[str]
) -> None:
    """Nothing is swapped: the output is the script's to the bit. Its plain loaders are recorded."""
    done = run(*RUN, "--strategy", "dataloader", "--record", tmp_path, "--", "like_timm.py", folder)
    assert done.stdout == plain_timm.stdout and done.returncode == 0, done.stderr
    subclass, began, both = said(done)  # the script makes both plain loaders at one place
    assert "MultiEpochsDataLoader(ImageFolder): left alone: " in subclass
    assert began.endswith("): measured, dataloader: torch's own, as it is")
    assert re.search(r"\): 320 samples in .* s, .*; to make a batch took \S+ s of processor time$", both), both
    traces = read_run(tmp_path)
    assert [(one.began.strategy, one.began.epoch, one.whole) for one in traces] == 2 * [
        ("dataloader", 0, True), ("dataloader", 1, True),
    ]  # fmt: skip


LEFT_ALONE = """
import sys
import library
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
import datasets
from PIL import Image
class Own:
    def __call__(self, image): return image
class Photographs(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return Image.open(sys.argv[2]).convert("RGB").getpixel((0, 0))[0]

seen = [library.loader([1])]
seen.append(Accelerator(cpu=True).prepare(DataLoader(range(4), 2)))
for first in (lambda image: image, Own(), None):
    steps = None if first is None else transforms.Compose([first, transforms.Resize((8, 8)), transforms.ToTensor()])
    seen.append(DataLoader(ImageFolder(sys.argv[1], steps), 41, collate_fn=list))
seen.append(DataLoader(Photographs(), 4, num_workers=1))
seen.append(DataLoader(datasets.Dataset.from_dict({"photo": sys.argv[2:] * 4}).cast_column("photo", datasets.Image()), 4))
print(type(seen[1]).__name__, [len(list(loader)) for loader in seen[:-1]])
"""


def test_what_is_left_alone_is_told_where_and_why_and_what_to_write(folder: Path, tmp_path: Path) -> None:
    """A loader that an installed package makes is told at the script's line; one around a loader gets no line of its own.

    A collate function is no reason beside one that no cut takes.
    """
    if missing := [name for name in ("accelerate", "datasets") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"pip install {' '.join(missing)}")
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(LIBRARY)
    (tmp_path / "train.py").write_text(LEFT_ALONE)
    done = run(*RUN, "--", tmp_path / "train.py", folder, next(folder.rglob("*.jpg")), PYTHONPATH=str(packages))
    assert done.stdout == "DataLoaderShard [1, 2, 2, 2, 2, 1]\n", done.stderr
    *lines, late = said(done)
    places, reasons = zip(*(line.split(": left alone: ") for line in lines))
    first = LEFT_ALONE.partition("seen = ")[0].count("\n") + 1
    assert places[0].endswith(f"/train.py:{first} DataLoader(list)")
    assert places[1].endswith(f"/train.py:{first + 1} DataLoader(range)")
    assert reasons[2].startswith("Photographs's own code makes its samples; JPEGs")
    assert "own code makes its samples; ddlp.HuggingFaceImages(dataset, transform, 'photo') in its place would be" in reasons[3]
    assert [reason.partition(": ")[0] for reason in reasons[4:]] == ["<lambda>", "Own", "collate_fn=list"]
    assert late.endswith(" A Photographs that names its files by a method __ddlp__ would be swapped (docs/settings.md)"), late


LIBRARY = "from torch.utils.data import DataLoader\ndef loader(data): return DataLoader(data, 2)\n"


@pytest.mark.slow
def test_a_loader_is_told_at_its_own_line_where_the_script_is_in_a_package_too(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(LIBRARY)
    (packages / "tool.py").write_text("import library\nprint(len(library.loader([1])))\n")
    (line,) = said(run(*RUN, "--", packages / "tool.py", PYTHONPATH=str(packages)))
    assert "library.py:2 DataLoader(list): left alone: " in line


def test_two_ranks(folder: Path) -> None:
    """Two processes with torchrun's environment; torchrun itself needs as much time as they."""
    with ThreadPoolExecutor() as pool:
        given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        script = [*RUN, "--no-compare", "--", "like_references.py", "--data-path", folder]
        ranks = list(pool.map(lambda k: run(*script, **given, RANK=k, LOCAL_RANK=k), "01"))
    assert [rank.returncode for rank in ranks] == [3, 3], ranks
    epochs = [epoch for rank in ranks for epoch in re.findall(r"epoch (\d) \[(.*?)\] \d+", rank.stdout)]
    assert sorted(epoch for epoch, _ in epochs) == ["0", "0", "1", "1"]
    for number in "01":  # both ranks together have the 41 samples of each label
        labels = ", ".join(labels for epoch, labels in epochs if epoch == number).split(", ")
        assert (labels.count("0"), labels.count("1")) == (41, 41)
    lines = [line for rank in ranks for line in said(rank)]
    assert len(lines) == 4 and all(line.startswith("rank 0 of 2: ") for line in lines), lines
    assert all(": swapped, cpu: " in line for line in lines[:2])


@pytest.mark.slow
def test_ranks_that_are_spawned(folder: Path) -> None:
    """The ranks are new interpreters, which unpickle a loader and a class of __main__."""
    done = run(*RUN, "--no-compare", "--", "like_spawn.py", folder)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 55 41", "1 55 41"]
    lines = said(done)
    assert len([line for line in lines if "DataLoader(ImageFolder, batch 4, 0 workers): swapped, cpu" in line]) == 2
    assert len([line for line in lines if "DataLoader(Squares): left alone: Squares's own code makes its samples" in line]) == 1


ENDLESS = """
import time
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

images = datasets.ImageFolder({folder!r}, transforms.Compose([transforms.CenterCrop(24), transforms.ToTensor()]))
for number, batch in enumerate(DataLoader(images, 4)):
    if number == 3:
        print("ready", flush=True)
        time.sleep(60)
"""
HANDLED = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("script", "number", "status", "last"),
    [
        (ENDLESS, signal.SIGINT, -signal.SIGINT, ": 16 samples in "),
        (HANDLED, signal.SIGTERM, 7, "no DataLoader was used"),
        (HANDLED.replace("lambda *_: sys.exit(7)", "signal.SIG_DFL"), signal.SIGTERM, -signal.SIGTERM, ""),
    ],
    ids=["Ctrl-C", "SIGTERM handled", "SIGTERM"],
)
@pytest.mark.some(2)
def test_signals_are_the_scripts(folder: Path, tmp_path: Path, script: str, number: int, status: int, last: str) -> None:
    (tmp_path / "train.py").write_text(script.format(folder=str(folder)))
    command = [*RUN, "--no-compare", "--", str(tmp_path / "train.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=user_environment(), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(number)
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == status
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert last in (errors.splitlines() or [""])[-1], errors


# -- what ddlp run changes in an interpreter ---------------------------------------------------------------------------

LOOK = "import json, os, sys; print(json.dumps([sys.path[1:], sys.argv, 'torch' in sys.modules, os.environ.get('OWN')]))"


def test_an_interpreter_is_as_it_would_have_been(tmp_path: Path) -> None:
    """sys.path is the same, the environment's own sitecustomize runs, and only the script imports torch."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'ran'\n")
    path = os.pathsep.join([str(tmp_path), user_environment()["PYTHONPATH"]])
    starts = PYTHON, [*RUN, "--"], [*RUN, "--", *PYTHON]  # the last one is a command that starts Python
    plain, swapped, command = (run(*start, "-c", LOOK, "x", PYTHONPATH=path) for start in starts)
    assert plain.stdout == swapped.stdout == command.stdout
    assert json.loads(plain.stdout)[1:] == [["-c", "x"], False, "ran"]
    assert said(swapped) == ["no DataLoader was used in this process (processes that it has started tell of theirs)"]
    assert not said(command)


def test_ddlp_need_not_be_installed(tmp_path: Path) -> None:
    """As in a checkout: only `python -m` has its directory on the path."""
    code = "import sys; sys.path.pop(0); import ddlp; print(ddlp.__file__)"
    home = Path(cli.__file__).parents[1]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([*RUN, "--", "-c", code], cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().endswith(os.path.join("ddlp", "__init__.py")), done.stderr


def test_another_environments_python_is_left_alone() -> None:
    text = Settings(prefix="/somewhere/else", pid=0).to_text()
    start = Path(cli.__file__).parent / "swap" / "start"
    path = os.pathsep.join([str(start), user_environment()["PYTHONPATH"]])
    done = run(*PYTHON, "-c", "import sys; print('ddlp' in sys.modules)", DDLP_RUN=text, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("False\n", "")


LISTS = """
from torch.utils.data import DataLoader
class Known(list): __ddlp__ = None
class Data(list): pass
print([len(list(DataLoader(kind(range(6)), size))) for kind in (Known, Data) for size in (2, 3)])
"""


def test_a_script_runs_where_ddlp_cannot_be_used(tmp_path: Path) -> None:
    """torchvision can't be imported here. Neither the script needs it, nor `ddlp run` for data sets that it leaves alone."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torchvision'] = None\n")
    path = os.pathsep.join([str(tmp_path), user_environment()["PYTHONPATH"]])
    done = run(*RUN, "--", "-c", LISTS, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "[3, 2, 3, 2]\n"), done.stderr
    cannot, alone = said(done)
    assert cannot.startswith("no DataLoader is swapped: ddlp can't be used here: ")
    assert alone.startswith("<string>:5 DataLoader(Data): left alone: Data's own code makes its samples; JPEGs that")


OWN = """
import sys
from torch.utils.data import DataLoader, Dataset, Subset

class Own(Dataset):
    def __len__(self): return 6
    def __getitem__(self, index): return index

class Loader(DataLoader): pass

print([batch.tolist() for kind in (DataLoader, Loader) for batch in kind(Subset(Own(), [4, 2]), 2, num_workers=1)])
print([name for name in ("torchvision", "ddlp.loader", "ddlp.decode", "csd_engine.kernels") if name in sys.modules])
"""


def test_what_is_left_alone_needs_nothing_of_ours() -> None:
    """A script that opens no JPEG and has data sets of its own pays for no import."""
    done = run(*RUN, "--", "-c", OWN)
    assert done.stdout == "[[4, 2], [4, 2]]\n[]\n", done.stderr
    assert [line.partition(" ")[2].partition(";")[0] for line in said(done)] == [
        "DataLoader(Subset): left alone: Subset's own code makes its samples",
        "Loader(Subset): left alone: Loader is a subclass of DataLoader, with code of its own",
    ]


FACE = """
import copy, pickle, typing
import torch
from torch.utils.data import DataLoader, Dataset, dataloader
from torchvision.transforms import ToTensor
from ddlp import DDLPLoader, ImageArrays
from ddlp.swap.loader import SwappedLoader

T = typing.TypeVar("T")
class Typed(DataLoader[T]): pass
class Own(DataLoader):
    def __init__(self, n): super().__init__(range(n), 2)

data = ImageArrays(torch.zeros(6, 4, 4, 3, dtype=torch.uint8).numpy(), range(6), ToTensor())
loader = DataLoader[int](data, 2)
kept = DataLoader(range(4), 2, num_workers=1, persistent_workers=True)
class Nested(Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return type(DataLoader(data, 3)) is DataLoader
print(
    type(loader) is SwappedLoader, isinstance(loader, DataLoader), DataLoader is dataloader.DataLoader,
    type(Typed(data, 2)) is Typed, type(Own(4)) is Own and len(list(Own(4))), type(DDLPLoader(data)) is DDLPLoader,
    type(pickle.loads(pickle.dumps(loader))) is SwappedLoader, len(list(copy.copy(loader))),
    [[len(batch) for batch in kept] for _ in range(2)], next(iter(DataLoader(Nested(), 2, num_workers=1))),
)
try:
    DataLoader(data, 2, shuffle=True, sampler=[1])
except ValueError as error:
    print(error)
"""


def test_torchs_class_stays_what_it_is() -> None:
    done = run(*RUN, "--", "-c", FACE)
    assert done.stdout.splitlines() == [
        "True True True True 2 True True 3 [[2, 2], [2, 2]] tensor([True, True])",
        "sampler option is mutually exclusive with shuffle",
    ], done.stderr


# -- the comparison, the command ---------------------------------------------------------------------------------------


def test_a_comparison_moves_no_generator_and_fails_quietly(folder: Path) -> None:
    transform = transforms.Compose([transforms.RandomCrop(24), transforms.ToTensor()])
    images = datasets.ImageFolder(str(folder), transform)
    generator = torch.Generator()
    before = torch.get_rng_state(), generator.get_state()
    found = compare(DDLPLoader(images, 2, shuffle=True, generator=generator))
    assert isinstance(found, Comparison) and found.batches == 20 and "measured on 20 batches" in str(found)
    few = compare(DDLPLoader(Subset(images, range(6)), 2))
    assert isinstance(few, Comparison) and few.batches == 3 and "measured on 3 batches" in str(few)
    assert "an estimate from 2 batches" in str(Comparison(9.0, 10.0, 2))
    assert isinstance(compare(DDLPLoader(images, batch_size=None, sampler=range(30))), Comparison)
    assert all(torch.equal(a, b) for a, b in zip(before, (torch.get_rng_state(), generator.get_state())))
    images.samples = [("nowhere.jpg", 0)]
    assert compare(DDLPLoader(images, 1)).startswith("FileNotFoundError: ")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "nothing to run. Write it after --"),
        (["--", "no-such-command"], "'no-such-command' is no command. Name a script"),
        (["--csd", "no-such-device", "--", "train.py"], "csd='no-such-device': "),
        (["--csd", "csd0", "--strategy", "cpu", "--", "train.py"], "the device would have nothing to do"),
        (["--csd", "csd0", "--strategy", "dataloader", "--", "train.py"], "the device would have nothing to do"),
    ],
)
def test_what_cannot_be_run_is_said(given: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *given]) == 1 and words in capsys.readouterr().err
