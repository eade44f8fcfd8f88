"""Bad images with ``on_error="replace"``: either side takes the same other samples, counts and names them, up to a limit."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import SubsetRandomSampler
from torchvision import transforms as T

from csd_engine.batchfile.checksum import Checksum
from csd_engine.batchfile.layout import DATA_OFFSET, Layout, header
from csd_engine.errors import SampleError
from csd_engine.prepare.sample import is_bad_image
from csd_engine.protocol import codec as say
from ddlp import DDLPLoader, ImageFiles
from ddlp.epoch.monitor import Monitor
from ddlp.errors import DDLPError
from ddlp.observe import checked
from ddlp.transfer.choose_transfer import ways
from ddlp.transfer.device_stream import DeviceStream
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.transforms import Views
from tests.ddlp.faults.scene import BATCH, dataset, make_loader, train, until
from tests.hostile_engine import LyingEngine
from tests.small_images import make_images

pytestmark = pytest.mark.filterwarnings("ignore:ddlp. a sample could not be prepared")

COUNT = 24
BAD = {5: "truncated", 10: "missing", 11: "text", 22: "truncated"}


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The paths of images, four of them bad."""
    paths = make_images(tmp_path_factory.mktemp("bad"), COUNT)
    for number, how in BAD.items():
        if how == "truncated":
            os.truncate(paths[number], os.path.getsize(paths[number]) // 2)
        elif how == "missing":
            os.unlink(paths[number])
        else:
            Path(paths[number]).write_text("no image")
    return paths


def replacing(data, strategy, most=0.5, **options):
    return make_loader(data, strategy, on_error="replace", max_replaced=most, **options)


def by_first(batches):
    """Batches by their first label. No sample of BAD is the first of its batch."""
    return {int(labels[0]): (images, labels.tolist()) for images, labels in batches}


def assert_same(some, others):
    assert some.keys() == others.keys()
    for key, (images, labels) in some.items():
        assert labels == others[key][1]
        assert torch.equal(images, others[key][0]), labels


def instead(paths, labels):
    """The paths that give these labels: in place of a bad file stands that of its replacement."""
    return [paths[label] for label in labels]


def test_the_same_bits_from_either_side(leaves_nothing, bad, told):
    loader = replacing(dataset(bad), "cpu")
    host = by_first(train(loader))
    labels = [label for first in sorted(host) for label in host[first][1]]
    assert [k for k in range(COUNT) if labels[k] != k] == list(BAD)
    assert all(label // BATCH == k // BATCH and label not in BAD for k, label in enumerate(labels))
    report = loader.report()
    assert report.replaced == 4 and [text.partition(":")[0] for text in report.replaced_samples] == [bad[k] for k in BAD]
    assert "truncated" in report.replaced_samples[0] and "replaced" in str(report)
    assert len(told) == 1 and bad[5] in told[0], list(told)
    # An independent check: the other file with the bad one's number, and so with the bad one's draws.
    expected = by_first(train(make_loader(dataset(instead(bad, labels)), "cpu")))
    assert all(torch.equal(host[first][0], expected[first][0]) for first in host)
    assert_same(host, by_first(train(replacing(dataset(bad), "cpu", num_workers=2))))
    for strategy in ("csd", "wrr"):
        loader = replacing(dataset(bad), strategy, audit=1)
        assert_same(host, by_first(train(loader, 0.02)))
        report = loader.report()
        assert report.replaced == 4 and (strategy == "wrr" or (report.batches_cpu, report.leases_lost) == (0, 0)), report
    loader = replacing(dataset(bad), "csd")
    run = checked(loader)
    for _ in run:
        pass
    assert not any(claim.against for claim in run.verdict.claims.values()), run.verdict


def test_on_an_accelerator(leaves_nothing, bad, monkeypatch):
    """With this machine's CPU in the place of an accelerator."""
    expected = by_first(train(replacing(dataset(bad), "cpu")))

    def plain(device, transfer):
        stream = DeviceStream(torch.device("cpu"))
        return GpuTransfer(stream, ways(stream, "pinned"))

    monkeypatch.setattr("ddlp.begin.loader_parts.transfer_to", plain)
    for strategy in ("cpu", "csd"):
        loader = replacing(dataset(bad), strategy, device="cpu")
        assert_same(expected, by_first(train(loader)))
        assert loader.report().replaced == 4


@pytest.mark.parametrize("own", ["views", "views of two sizes", "cut"])
def test_views_and_own_steps(bad, own):
    view, small = (T.Compose([T.RandomResizedCrop(size), T.ToTensor()]) for size in (24, 13))
    transforms = {"views": Views(view, view), "views of two sizes": Views(view, small)}
    transform = transforms.get(own, T.Compose([T.RandomResizedCrop(24), T.Lambda(drawing), T.ToTensor()]))
    data = ImageFiles(bad, list(range(COUNT)), transform, target_transform=lambda label: label + 1000)
    replaced = list(replacing(data, "cpu"))
    labels = [label - 1000 for _, batch in replaced for label in batch.tolist()]
    assert [k for k in range(COUNT) if labels[k] != k] == list(BAD)
    expected = list(make_loader(ImageFiles(instead(bad, labels), list(range(COUNT)), transform), "cpu"))
    for (images, _), (others, _) in zip(replaced, expected, strict=True):
        for one, other in zip(images, others, strict=True) if own != "cut" else [(images, others)]:
            assert torch.equal(one, other)


def drawing(image):
    return Image.fromarray(np.asarray(image) // 2 + np.uint8(torch.randint(99, ()).item()))


def test_no_sample_that_the_sampler_leaves_out(bad):
    sampled = [3, 5, 6, 10, 20, 21]  # two bad ones in batches of 3: no order of the sampler makes a batch of bad ones
    loader = DDLPLoader(
        dataset(bad), 3, sampler=SubsetRandomSampler(sampled), seed=1, on_error="replace", max_replaced=1.0
    )
    for _ in range(5):
        assert {int(label) for _, labels in loader for label in labels} <= set(sampled) - set(BAD)


def test_too_many(bad):
    """The limit still holds after a resume. A state that was saved at the error leads to the same error again."""
    most = 2.5 / COUNT
    iterator = iter(loader := replacing(dataset(bad), "cpu", most))
    for _ in range(2):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["replaced"] == 1
    assert all(loader.report().replaced == 1 for _ in range(2))
    with pytest.raises(DDLPError, match=rf"3 of the epoch's {COUNT} samples .*{bad[11]}.*max_replaced"):
        next(iterator)
    after = loader.state_dict()
    for one in (state, after):
        again = replacing(dataset(bad), "cpu", most)
        again.load_state_dict(one)
        with pytest.raises(DDLPError, match=rf"3 of the epoch's {COUNT}"):
            train(again)
        again = replacing(dataset(bad), "cpu")
        again.load_state_dict(one)
        assert len(train(again)) == COUNT // BATCH - 2 and again.report().replaced == 4
    clean = replacing(dataset(bad[:4]), "cpu", 0)
    next(iter(clean))
    assert "replaced" not in clean.state_dict()


def test_a_batch_without_a_good_sample_raises_its_own_error(bad):
    loader = DDLPLoader(dataset(bad), batch_sampler=[[5, 11], [0, 5]], seed=1, on_error="replace", max_replaced=1.0)
    iterator = iter(loader)
    with pytest.raises(OSError, match="image 5"):
        next(iterator)
    assert next(iterator)[1].tolist() == [0, 0]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_device_that_leaves_out_good_images(engines, images, paths, told, monkeypatch, rows):
    """The host makes the images that it leaves out, with the same bits; of more than half of a batch all of them."""
    data = dataset(paths[:COUNT])
    expected = by_first(train(make_loader(data, "cpu")))
    engine = engines("--root", str(images))
    marked = itertools.count()
    layout = Layout(BATCH, 32, 32, 3, 1, bad_rows=True)

    def lie(message, payload):
        if isinstance(message, say.Published):
            next(marked)
            with contextlib.suppress(FileNotFoundError):  # the host's copy was first, and the engine has removed this one
                mark(engine.spool / message.file, message.lease, layout, rows)

    monkeypatch.setattr(Monitor, "LOOK_UP_S", 0.05)
    liar = LyingEngine(engine.address, engine.keys, lie)
    try:
        loader = replacing(data, "csd", csd=liar.device())
        assert_same(expected, by_first(train(loader)))
        report = loader.report()
        assert next(marked) >= 5 and report.replaced == 0 and not report.replaced_samples
        assert report.batches_csd == (COUNT // BATCH if rows == 1 else 0)
        assert ("it left 6 samples to this host" in str(report)) == (rows == 1)
        # The liar passes on that the epoch has ended. Without that the engine waits for the host, longer than `engines` does.
        until(lambda: not list(engine.spool.glob("job-*")), 30, "the end of the job")
    finally:
        liar.close()
    if rows > BATCH // 2:
        assert any("the device leaves 3 of its 4 samples to this host" in text for text in told), list(told)
        assert any("is not used any more" in text for text in told), list(told)


def mark(path: Path, lease: int, layout: Layout, rows: int) -> None:
    """Mark rows of a batch file as left out, from the second on, as an engine does."""
    content = bytearray(path.read_bytes())
    assert len(content) == layout.file_bytes
    content[DATA_OFFSET + layout.row_bytes : DATA_OFFSET + (1 + rows) * layout.row_bytes] = bytes(rows * layout.row_bytes)
    content[DATA_OFFSET + layout.bad_offset + 1 : DATA_OFFSET + layout.bad_offset + 1 + rows] = b"\1" * rows
    summed = Checksum()
    summed.update(memoryview(content)[DATA_OFFSET:])
    content[:DATA_OFFSET] = header(layout, path.name.partition(".")[0], lease, summed.hexdigest())
    path.write_bytes(content)


def test_what_is_no_bad_image(bad, monkeypatch):
    def raised(error):
        try:
            raise SampleError("somewhere", "why") from error
        except SampleError as made:
            return is_bad_image(made)

    assert raised(FileNotFoundError(2, "missing")) and raised(ValueError("larger than the image")) and raised(None)
    assert not raised(MemoryError()) and not raised(OSError(24, "too many open files"))
    assert not is_bad_image(SampleError("somewhere", "why", by_operator=True))

    def short(*_, **__):
        raise SampleError("somewhere", "why") from MemoryError("short")

    monkeypatch.setattr("csd_engine.prepare.started_batch.prepare_sample", short)
    monkeypatch.setattr("csd_engine.prepare.batch_maker.file_calls", lambda *_: None)
    with pytest.raises(MemoryError):
        train(replacing(dataset(bad), "cpu"))


class Own:
    """A user's own data set."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"on_error": "skip"}, "raise, replace"),
        ({"max_replaced": 2}, "0 to 1"),
        ({"on_error": "replace", "batch_size": 1}, "batch is one sample"),
        ({"on_error": "replace", "batch_size": None}, "batch is one sample"),
        ({"on_error": "replace", "backend": "dali"}, "backend='native'"),
        ({"on_error": "replace", "dataset": Own()}, "a pipeline that ddlp runs itself"),
    ],
)
def test_refused_at_construction(bad, options, why):
    with pytest.raises(ValueError, match=why):
        DDLPLoader(**{"dataset": dataset(bad), "batch_size": 4, **options})
