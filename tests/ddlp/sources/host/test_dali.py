"""backend="dali": the same samples, the same augmentations, nearly the same pixels, and nothing left behind."""

from __future__ import annotations

import itertools
import re
import time
import warnings
from pathlib import Path

import pytest
import torch
import torchvision.transforms as T
from PIL import Image
from torch.utils.data import BatchSampler, SequentialSampler

from ddlp import DDLPLoader, ImageFiles
from ddlp.errors import DDLPError
from ddlp.sources.engine.embedded import EmbeddedOptions, acquire
from ddlp.sources.host import dali
from ddlp.transfer.choose_transfer import ways
from ddlp.transfer.device_stream import DeviceStream
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.translate.dali import DISTANCES, Stages
from tests.both_sides import until_both
from tests.jpegkinds import KINDS, encode_kind, picture

SEED, BATCH = 3, 4
BICUBIC = T.InterpolationMode.BICUBIC
CROP = (T.RandomCrop(31), T.RandomHorizontalFlip(), T.RandomVerticalFlip())
RESIZE = (T.RandomResizedCrop(32), T.RandomHorizontalFlip())


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """61 photographs of different sizes."""
    home = tmp_path_factory.mktemp("images")
    for k in range(61):
        (home / f"{k}.jpg").write_bytes(encode_kind("420", picture(k, (60 + 5 * (k % 7), 50 + 7 * (k % 5)))))
    return [str(home / f"{k}.jpg") for k in range(61)]


def loader(paths, steps, batch=BATCH, **options):
    data = ImageFiles(paths, range(len(paths)), T.Compose([*steps, T.PILToTensor()]))
    return DDLPLoader(data, batch, seed=SEED, **options)


def samples(batches):
    """Samples by target. Each target must come once."""
    found = {}
    for images, targets in batches:
        for image, target in zip(images, targets.tolist(), strict=True):
            assert target not in found
            found[target] = image.int()
    return found


def dali_threads():
    """Names of DALI's threads in this process."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        try:
            found.append((thread / "comm").read_text().strip())
        except OSError:  # the thread has ended meanwhile
            pass
    return [name for name in found if "DALI" in name]


@pytest.fixture(autouse=True)
def leaves_no_thread():
    pytest.importorskip("nvidia.dali.fn", reason="DALI is not installed: pip install ddlp[dali]", exc_type=ImportError)
    yield
    until = time.monotonic() + 5
    while dali_threads() and time.monotonic() < until:
        time.sleep(0.02)
    assert dali_threads() == []


# -- pixels --------------------------------------------------------------------------------------------------------------


def test_windows_and_flips_are_the_very_same_pixels_for_every_kind_of_file(tmp_path):
    """Files that DALI would decode differently are left to our own code. The report says how many."""
    files = []
    for number, size in enumerate(((97, 83), (33, 47))):
        for kind in KINDS:
            files.append(tmp_path / f"{number} {kind}.jpg")
            files[-1].write_bytes(encode_kind(kind, picture(3, size)))
        for mode in ("RGB", "L", "P", "RGBA", "1"):
            files.append(tmp_path / f"{number} {mode}.png")
            picture(2, size).convert(mode).save(files[-1])
        turned = Image.Exif()
        turned[0x112] = 6
        files.append(tmp_path / f"{number} exif.jpg")
        picture(2, size).save(files[-1], exif=turned)
        files.append(tmp_path / f"{number}.webp")
        picture(2, size).save(files[-1])
    theirs = loader([str(f) for f in files], CROP, backend="dali")
    ours, found = samples(loader([str(f) for f in files], CROP)), samples(theirs)
    assert sorted(found) == sorted(ours) == list(range(len(files)))
    for number, path in enumerate(files):
        assert torch.equal(found[number], ours[number]), path.name
    by_us = 2 * len(("cmyk", "P", "RGBA", "1", "webp"))
    (note,) = theirs.report().notes
    assert note.endswith(f"; {by_us} of the host's {len(files)} samples by ddlp's own code")


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("bilinear", [T.Resize(30), T.CenterCrop(28)]),
        ("bilinear", [T.RandomCrop(20), T.Resize((57, 64))]),
        ("bilinear", RESIZE),
        ("bicubic", [T.Resize(30, BICUBIC), T.CenterCrop(28)]),
        ("bicubic", [T.RandomCrop(20), T.Resize((57, 64), BICUBIC)]),
    ],
)
def test_a_resize_is_as_close_as_the_report_says(paths, kind, steps):
    theirs = loader(paths, steps, backend="dali")
    ours, found = samples(loader(paths, steps)), samples(theirs)
    distances = torch.stack([(found[k] - ours[k]).abs() for k in ours]).double()
    known = DISTANCES[kind]
    assert 0 < distances.mean() <= 1.25 * known.mean
    assert distances.max() <= known.most
    if kind == "bilinear":
        assert distances[..., 1:-1, 1:-1].max() == 1, "larger differences are only at the border, where filters reach outside"
    assert f"by {known.mean} grey levels" in theirs.report().notes[0] and f"by {known.mean} grey" in theirs.explain()


def test_masks_and_values_are_the_epilogues(paths):
    steps = [T.RandomCrop(31), T.ToTensor(), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)), T.RandomErasing(p=0.7)]
    data = ImageFiles(paths, range(len(paths)), T.Compose(steps))
    for (ours, _), (theirs, _) in zip(DDLPLoader(data, 7, seed=1), DDLPLoader(data, 7, seed=1, backend="dali"), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("steps", [[T.CenterCrop(60)], [T.Resize(55), T.CenterCrop((50, 60))]])
def test_where_an_image_has_to_be_padded_our_own_code_makes_it(paths, steps):
    theirs = loader(paths, steps, backend="dali")
    ours, found = samples(loader(paths, steps)), samples(theirs)
    assert max(int((found[k] - ours[k]).abs().max()) for k in ours) <= DISTANCES["bilinear"].most
    by_us = int(re.search(r"; (\d+) of the host's 61 samples by ddlp's own code", theirs.report().notes[0]).group(1))
    assert 0 < by_us < 61


# -- like any other host side -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["mte", "wrr"])
def test_with_a_device_each_sample_comes_once_and_augmented_alike(paths, strategy, tmp_path):
    """The paper's MTE_D and WRR_D."""
    truth = samples(loader(paths, RESIZE))
    held = acquire(EmbeddedOptions(spool=str(tmp_path)))
    try:
        both = loader(paths, RESIZE, strategy=strategy, spool=str(tmp_path), backend="dali", num_workers=1, prefetch_factor=1)
        for batches in until_both(both):
            found = samples(batches)
            assert sorted(found) == sorted(truth)
            assert max(int((found[k] - truth[k]).abs().max()) for k in truth) <= DISTANCES["bilinear"].most
    finally:
        held.release()
    report = both.report()
    assert report.batches_cpu + report.batches_csd == len(batches) == 16
    exact = {k for k in truth if torch.equal(found[k], truth[k])}
    whole = sum(exact.issuperset(targets.tolist()) for _, targets in batches)
    assert report.batches_csd <= whole < len(batches), "a device's batches are torchvision's bits, the host's are not"


@pytest.mark.parametrize("options", [dict(batch=50, num_workers=2), dict(batch=7, drop_last=True), dict(batch=None)])
def test_batches_of_all_sizes(paths, options, monkeypatch):
    monkeypatch.setattr(dali, "SAMPLES", 6)
    theirs = loader(paths, CROP, **options, backend="dali")
    found, truth = list(theirs), list(loader(paths, CROP, **options))
    assert len(found) == len(truth) and "ddlp's own" not in theirs.report().notes[0]
    for (theirs, labels), (ours, expected) in zip(found, truth):
        assert torch.equal(theirs, ours) and torch.equal(torch.as_tensor(labels), torch.as_tensor(expected))


def test_a_sampler_of_ones_own_and_large_pictures(paths, monkeypatch):
    monkeypatch.setattr(dali, "PIXELS", 9000)  # two or three of these images
    runs, run = [], dali.Graph.run
    monkeypatch.setattr(dali.Graph, "run", lambda graph, given, put: (runs.append(len(given)), run(graph, given, put)))

    class Growing(BatchSampler):
        def __iter__(self):
            indices = iter(range(len(paths)))
            for size in itertools.count(1):
                if not (batch := list(itertools.islice(indices, size))):
                    return
                yield batch

    data = ImageFiles(paths, range(len(paths)), T.Compose([*CROP, T.PILToTensor()]))
    sampler = Growing(SequentialSampler(data), 1, False)
    both = [DDLPLoader(data, batch_sampler=sampler, seed=SEED, backend=b) for b in ("native", "dali")]
    for (ours, _), (theirs, labels) in zip(*both, strict=True):
        assert torch.equal(ours, theirs) and len(labels) == len(theirs)
    assert sum(runs) == len(paths) and max(runs) == 3


def test_an_epoch_goes_on_under_the_other_backend(paths):
    truth = samples(loader(paths, CROP, shuffle=True, generator=torch.Generator().manual_seed(1)))
    first = loader(paths, CROP, shuffle=True, generator=torch.Generator().manual_seed(1), backend="dali")
    batches = list(itertools.islice(first, 5))
    second = loader(paths, CROP, shuffle=True, generator=torch.Generator().manual_seed(2))
    second.load_state_dict(first.state_dict())
    found = samples([*batches, *second])
    assert all(torch.equal(found[k], truth[k]) for k in truth) and len(found) == len(truth)
    first.set_epoch(1)
    assert any(not torch.equal(image, truth[k]) for k, image in samples(first).items())


def test_a_damaged_file_raises_in_its_place_and_the_rest_goes_on(paths, tmp_path):
    broken = tmp_path / "broken.png"
    picture(1, (60, 60)).save(broken)
    broken.write_bytes(broken.read_bytes()[:2000])
    gone = tmp_path / "gone.jpg"
    files = [*paths[:5], str(broken), *paths[6:9], str(gone), *paths[10:13], str(broken), *paths[14:]]
    found, errors = {}, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = iter(loader(files, CROP, backend="dali"))
        while True:
            try:
                found.update(samples([next(batches)]))
            except StopIteration:
                break
            except Exception as error:
                errors.append(error)
    assert [type(error) for error in errors] == [OSError, FileNotFoundError, OSError]
    assert "broken.png" in str(errors[0])
    truth = samples(loader(paths, CROP))
    assert sorted(found) == [k for k in range(61) if k // BATCH not in (1, 2, 3)]
    assert all(torch.equal(found[k], truth[k]) for k in found)
    told = [str(one.message) for one in caught if "DALI" in str(one.message)]
    assert len(told) == 1 and "batch 1" in told[0] and "ddlp's own code" in told[0]


def test_an_epoch_broken_off_ends_dalis_threads(paths):
    batches = iter(loader(paths, RESIZE, backend="dali", num_workers=2))
    next(batches)
    assert dali_threads()
    batches._shutdown_workers()
    assert dali_threads() == []


def test_what_can_not_travel_is_refused_as_for_other_settings(paths):
    data = ImageFiles(paths, range(len(paths)), T.Compose([T.ColorJitter(0.5), T.CenterCrop(8), T.ToTensor()]))
    with pytest.raises(ValueError, match="backend='dali'.*ColorJitter"):
        DDLPLoader(data, backend="dali")


# -- delivered on a device ---------------------------------------------------------------------------------------------


class Copying(DeviceStream):
    """This machine's CPU as a device without streams. Counts the copies under way and the waits for its events."""

    within = waits = 0

    def work(self):
        outer, stream = super().work(), self

        class Within:
            def __enter__(self):
                stream.within += 1
                return outer.__enter__()

            def __exit__(self, *details):
                stream.within -= 1
                return outer.__exit__(*details)

        return Within()

    def event(self):
        stream, event = self, super().event()
        wait = event.wait

        def waited():
            stream.waits += 1
            wait()

        event.wait = waited
        return event


@pytest.fixture
def stream(monkeypatch):
    """The device to which loaders with ``device="cpu"`` copy their batches."""
    made = Copying(torch.device("cpu"))
    monkeypatch.setattr("ddlp.begin.loader_parts.transfer_to", lambda device, _: device and GpuTransfer(made, ways(made, None)))
    return made


def test_on_a_gpu_decoding_is_mixed_and_all_that_follows_is_the_gpus():
    """A pipeline that is not built needs no GPU: DALI checks its operators' arguments, and says where each would run."""
    from nvidia.dali import Pipeline

    def steps(kind, on_gpu):
        pipeline = Pipeline(4, 1, device_id=None)
        names = dali.define(pipeline, Stages(kind, True, True, False), on_gpu)
        assert set(names) == {"start", "shape", "part_start", "part_shape", "horizontal"} | ({"size"} if kind else set())
        pipeline.serialize()
        specs = [str(op.spec) for op in pipeline._ops]
        found = [[re.search(rf"{what}(\w+)", spec)[1] for what in ("OpSpec for ", " device: ")] for spec in specs]
        assert ["ExternalSource", "gpu"] not in found
        return [f"{name} {device}" for name, device in found if name != "ExternalSource"]

    assert steps("bilinear", True) == ["decoders__Image mixed", "Slice gpu", "Resize gpu", "Slice gpu", "Flip gpu"]
    assert steps(None, True) == ["decoders__Image mixed", "Slice gpu", "Slice gpu", "Flip gpu"]
    assert steps("bicubic", False) == ["decoders__ImageSlice cpu", "Resize cpu", "Slice cpu", "Flip cpu"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and DALI may decode there")
def test_where_dali_has_no_gpu_one_line_says_so_and_what_to_do():
    nowhere = DeviceStream(torch.device("cuda", 0))
    with pytest.raises(DDLPError, match=r"DALI can't decode on GPU 0 \(.*CUDA.*\). Take backend='dali_cpu'") as caught:
        dali.Graphs(Stages(None, False, False, False), GpuTransfer(nowhere, lambda *_: []))
    assert "\n" not in str(caught.value)


LAST = dict(output=torch.uint8, memory_format=torch.channels_last)


@pytest.mark.parametrize("options", [dict(num_workers=2), LAST, dict(batch=None)])
def test_what_lands_is_what_the_host_delivers_without_a_device(paths, tmp_path, stream, monkeypatch, options):
    """With runs of a part of a batch, files that our own code makes among DALI's, and masks."""
    monkeypatch.setattr(dali, "SAMPLES", 3)
    picture(1, (50, 60)).convert("P").save(tmp_path / "ours.png")
    files = [*paths[:5], str(tmp_path / "ours.png"), *paths[6:]]
    steps = [*CROP, T.ToTensor(), T.RandomErasing(value=0)]
    data = ImageFiles(files, range(len(files)), T.Compose(steps))
    batch = options.pop("batch", BATCH)
    there = DDLPLoader(data, batch, seed=SEED, backend="dali", device="cpu", **options)
    copied, take = [], dali._OnDevice.take

    def watched(rows, given, images):
        copied.extend(given)
        before = stream.waits
        take(rows, given, images)
        assert stream.waits > before, "DALI may not use its memory again while it is copied"

    monkeypatch.setattr(dali._OnDevice, "take", watched)
    expected = list(DDLPLoader(data, batch, seed=SEED, **options))
    kept = []
    for (images, labels), (ours, targets) in zip(there, expected, strict=True):
        assert torch.equal(images, ours) and torch.equal(torch.as_tensor(labels), torch.as_tensor(targets))
        assert images.is_contiguous(memory_format=options.get("memory_format", torch.contiguous_format)) or batch is None
        kept.append(images)
    assert len(copied) == 60 and "; 1 of the host's 61 samples by ddlp's own code" in there.report().notes[0]
    for images, (ours, _) in zip(kept, expected, strict=True):  # delivered memory was not used again
        assert torch.equal(images, ours)
    assert stream.within == 0


def test_a_run_that_fails_on_a_device_is_made_by_our_own_code_and_gives_all_memory_back(paths, stream, monkeypatch):
    """Half of a run's images have been copied already."""
    from nvidia.dali.plugin import pytorch

    feed, fed = pytorch.feed_ndarray, []

    def failing(image, place, cuda_stream):
        assert stream.within > 0, "copies must use the device's stream"
        fed.append(place)
        if len(fed) == 3:
            raise RuntimeError("CUDA: it failed")
        feed(image, place, cuda_stream=cuda_stream)

    monkeypatch.setattr(pytorch, "feed_ndarray", failing)
    there = loader(paths, CROP, backend="dali", device="cpu")
    with pytest.warns(UserWarning, match=r"DALI could not prepare samples of batch 0 \(CUDA: it failed\)"):
        found = samples(there)
    assert all(torch.equal(image, found[k]) for k, image in samples(loader(paths, CROP)).items())
    assert f"; {BATCH} of the host's 61 samples by ddlp's own code" in there.report().notes[0]
