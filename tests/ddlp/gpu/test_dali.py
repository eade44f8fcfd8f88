"""backend="dali" with DALI decoding on the GPU: the same samples and draws, pixels near torchvision's, own memory."""

from __future__ import annotations

import gc

import pytest
import torch
from torchvision import transforms as T

from ddlp import DDLPLoader, ImageFiles
from tests.both_sides import until_both
from tests.jpegkinds import KINDS, encode_kind, picture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SEED, BATCH, COUNT = 3, 8, 61
NEAR = 2.0  # mean distance in grey levels. A wrong window, size or flip gives tens.
STEPS = {
    "crop": [T.RandomCrop(40), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "resized crop": [T.RandomResizedCrop(48), T.RandomHorizontalFlip()],
    "resize": [T.Resize(56), T.CenterCrop(48)],
    "bicubic": [T.RandomResizedCrop(48, interpolation=T.InterpolationMode.BICUBIC)],
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Photographs of different sizes, with each kind of JPEG, and a PNG."""
    pytest.importorskip("nvidia.dali.fn", reason="DALI is not installed: pip install ddlp[dali]", exc_type=ImportError)
    home = tmp_path_factory.mktemp("images")
    kinds = sorted(KINDS)
    found = []
    for k in range(COUNT):
        found.append(home / f"{k}.jpg")
        found[-1].write_bytes(encode_kind(kinds[k % len(kinds)], picture(k, (60 + 5 * (k % 7), 60 + 7 * (k % 5)))))
    found[7] = home / "7.png"
    picture(7, (70, 90)).save(found[7])
    return list(map(str, found))


def loader(paths, steps, **options):
    data = ImageFiles(paths, range(len(paths)), T.Compose([*steps, T.PILToTensor()]))
    return DDLPLoader(data, BATCH, seed=SEED, **options)


def samples(batches):
    """Samples by target. Each target must come once."""
    found = {}
    for images, targets in batches:
        for image, target in zip(images.cpu(), targets.tolist(), strict=True):
            assert target not in found
            found[target] = image.float()
    return found


@pytest.fixture(scope="module")
def truth(paths):
    known = {}

    def of(steps):
        if steps not in known:
            known[steps] = samples(loader(paths, STEPS[steps]))
        return known[steps]

    return of


def near(found, true):
    assert sorted(found) == sorted(true)
    distances = {k: float((found[k] - true[k]).abs().mean()) for k in true}
    worst = max(distances, key=distances.get)
    assert distances[worst] <= NEAR, f"sample {worst} is {distances[worst]} grey levels away in the mean"


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("workers", [0, 4])
def test_the_same_samples_augmented_alike(paths, truth, steps, workers):
    one = loader(paths, STEPS[steps], backend="dali", device="cuda", num_workers=workers)
    batches = list(one)
    assert all(images.is_cuda and images.dtype == torch.uint8 for images, _ in batches)
    near(samples(batches), truth(steps))
    assert "decoded on the GPU" in one.report().notes[0]


@pytest.mark.parametrize("strategy", ["mte", "wrr", "ordered"])
def test_with_a_device(paths, truth, strategy):
    one = loader(paths, STEPS["resized crop"], strategy=strategy, backend="dali", device="cuda", num_workers=2)
    for batches in until_both(one):
        near(samples(batches), truth("resized crop"))


def test_nothing_is_handed_out_that_is_used_again(paths, truth):
    """The step's stream is busy until all batches are there. Each batch was changed in place, or dropped."""
    one = loader(paths, STEPS["resized crop"], backend="dali", device="cuda", num_workers=2)
    kept = []
    for images, labels in one:
        torch.cuda._sleep(20_000_000)
        kept.append((images.clone(), labels))
        images.zero_()
        del images
    near(samples(kept), truth("resized crop"))


def test_the_training_thread_never_waits_for_the_gpu(paths, truth):
    """The step's stream is busy for seconds. All batches are delivered meanwhile, and are right when the stream uses them."""
    one = loader(paths, STEPS["resized crop"], backend="dali", device="cuda", num_workers=2)
    list(one)
    torch.cuda.synchronize()
    torch.cuda._sleep(10_000_000_000)
    busy = torch.cuda.Event()
    busy.record()
    one.set_epoch(0)
    batches = list(one)
    assert not busy.query(), "the epoch must be delivered while the step's stream is busy"
    near(samples(batches), truth("resized crop"))


def test_on_the_cpu_for_a_gpu(paths, truth):
    """DALI's decoder on the CPU gives torchvision's pixels if nothing is resized."""
    one = loader(paths, STEPS["crop"], backend="dali_cpu", device="cuda", num_workers=2)
    found = samples(one)
    assert all(torch.equal(found[k], image) for k, image in truth("crop").items())
    assert "torchvision's" in one.report().notes[0] and "decoded on the GPU" not in one.report().notes[0]


def test_values_and_masks_are_the_epilogues(paths):
    """The rest of the transform is a function of the bytes: from the same bytes it gives the same numbers."""
    steps = [T.RandomCrop(40), T.ToTensor(), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)), T.RandomErasing(p=0.7)]
    data = ImageFiles(paths, range(len(paths)), T.Compose(steps))
    options = dict(seed=SEED, backend="dali", device="cuda")
    both = DDLPLoader(data, BATCH, **options), DDLPLoader(data, BATCH, seed=SEED)
    for (values, _), (expected, _) in zip(*both, strict=True):
        assert values.dtype == torch.float32
        assert float((values.cpu() - expected).abs().mean()) < NEAR / 255 / 0.2
        assert float(((values.cpu() == 0) ^ (expected == 0)).float().mean()) < 0.02  # masks, and a few pixels


def test_memory_does_not_grow_with_the_epochs(paths):
    one = loader(paths, STEPS["resized crop"], backend="dali", device="cuda", num_workers=2)
    for _ in range(3):
        list(one)
    gc.collect()
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    for _ in range(5):
        list(one)
    gc.collect()
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] <= 256 << 20  # DALI's own memory included


def test_a_damaged_file_is_raised_in_its_place(paths, tmp_path, truth):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no JPEG")
    files = [*paths[:20], str(broken), *paths[21:]]
    found, errors = {}, 0
    batches = iter(loader(files, STEPS["crop"], backend="dali", device="cuda"))
    while True:
        try:
            found.update(samples([next(batches)]))
        except StopIteration:
            break
        except OSError:
            errors += 1
    assert errors == 1
    true = truth("crop")
    near(found, {k: true[k] for k in true if k // BATCH != 20 // BATCH})
