"""timm's transforms: pixels are timm's for given parameters, parameters have timm's distributions, noise is where timm's is."""

import collections
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.prepare.sample import prepare_sample
from csd_engine.transforms import timm_policies
from csd_engine.transforms.operators import Canvas
from csd_engine.transforms.pipeline import Pipeline
from ddlp import ImageArrays
from ddlp.errors import Untranslatable
from ddlp.translate.datasets import translate_dataset
from ddlp.translate.transforms import translate
from tests.ddlp.translate.draws import P, plans_of, same

N = 3000
ERASES = [("pixel", 3), ("rand", 1)]


@pytest.fixture(scope="module", autouse=True)
def _imports():
    """Here, so that the processes of a run that have none of these tests import nothing so large."""
    global auto_augment, create_transform, timm_erasing, timm_transforms
    data = pytest.importorskip("timm.data")
    auto_augment, create_transform = data.auto_augment, data.create_transform
    timm_erasing, timm_transforms = data.random_erasing, data.transforms


def noisy(rnd):
    height, width = rnd.choice([(224, 224), (64, 96), (33, 57), (32, 32)])
    numbers = np.random.RandomState(rnd.randrange(1 << 30))
    walk = np.cumsum(numbers.randint(-9, 10, (height, width, 3)), 1) + 128
    return Image.fromarray(np.clip(walk + numbers.randint(-20, 20, walk.shape), 0, 255).astype(np.uint8))


def made(image, canvas, order="pillow13"):
    for step in canvas.steps:
        image = step.by_pillow(image, order)
    return np.asarray(image)


@pytest.mark.parametrize("name", timm_policies.NAMES)
@pytest.mark.some(8)
def test_each_operators_pixels_and_strength(name, monkeypatch):
    rnd = random.Random(name)
    assert set(auto_augment.NAME_TO_OP) == set(timm_policies.NAMES)
    for _ in range(30):
        image = noisy(rnd)
        hparams = {"translate_const": rnd.choice([100, 250]), "translate_pct": rnd.choice([0.3, 0.45]), "img_mean": (1, 2, 3)}
        magnitude, negative = rnd.choice([0.0, 10.0, rnd.uniform(0, 10), rnd.uniform(0, 14)]), rnd.random() < 0.5
        mode = rnd.choice(["nearest", "bilinear", "bicubic"])
        monkeypatch.setattr(random, "random", lambda at=negative: 0.9 if at else 0.1)
        level = auto_augment.LEVEL_TO_ARG[name]
        arguments = level(magnitude, hparams) if level else ()
        monkeypatch.undo()
        amount = timm_policies.strength(name, magnitude, negative, hparams["translate_const"], hparams["translate_pct"])
        assert arguments == ((amount,) if level else ())
        canvas, radius = Canvas(image.height, image.width, 3, 0), rnd.uniform(0.1, 2)
        if name in timm_policies._SIGNED or name in timm_policies._TRANSLATE:
            timm_policies.move(canvas, name, amount, mode, hparams["img_mean"])
        else:
            timm_policies.recolour(canvas, *(("GaussianBlur", radius) if name == "GaussianBlurRand" else (name, amount)))
        monkeypatch.setattr(random, "uniform", lambda low, high, radius=radius: radius)
        number = {"nearest": 0, "bilinear": 2, "bicubic": 3}[mode]
        try:
            expected = np.asarray(
                auto_augment.NAME_TO_OP[name](image, *arguments, fillcolor=hparams["img_mean"], resample=number)
            )
        except ValueError:  # Pillow 13 keeps at least one bit
            assert name.startswith("Posterize") and amount <= 0
            expected = np.zeros_like(np.asarray(image))
        monkeypatch.undo()
        assert np.array_equal(made(image, canvas), expected), (amount, mode)


def theirs_seen(transform, n):
    """What timm does to each image: a list of (operator, its parameter, filter)."""
    found, now = [], []

    def seen(name):
        def record(image, *arguments, **kwargs):
            now.append((name, *(arguments or (0.0,)), int(auto_augment._interpolation(kwargs))))
            return image

        return record

    policies = transform.policy if hasattr(transform, "policy") else [transform.ops]
    for op in {id(op): op for ops in policies for op in ops}.values():
        op.aug_fn = seen(op.name)
    random.seed(5)
    np.random.seed(6)
    for _ in range(n):
        now.clear()
        transform(None)
        found.append(tuple(now))
    return found


def ours_seen(transform, n, monkeypatch):
    (operator,) = translate(v1.Compose([transform, v1.ToTensor()])).pipeline.operators
    found, now = [], []
    numbers = {"bilinear": 2, "bicubic": 3}

    def recolour(_, name, amount):
        now.append((name, amount))

    monkeypatch.setattr(timm_policies, "recolour", recolour)
    monkeypatch.setattr(timm_policies, "move", lambda _, name, amount, mode, fill: now.append((name, amount, numbers[mode])))
    for index in range(n):
        now.clear()
        operator.draw(Canvas(90, 120, 3, 0), Keyed(3, 1, index, 0))
        found.append(tuple(now))
    return found


def alike(ours, theirs):
    """Assert that two samples of labels come from one distribution."""
    from scipy import stats

    counts = [collections.Counter(sample) for sample in (ours, theirs)]
    labels = sorted(set(counts[0]) | set(counts[1]), key=str)
    common = [label for label in labels if counts[0][label] + counts[1][label] >= 10]
    table = [[count[label] for label in common] for count in counts]
    assert len(common) < 2 or stats.chi2_contingency(table).pvalue > P, table


CONFIGS = ["rand-m9-mstd0.5-inc1", "rand-m7-n3-p0.8", "rand-m12-mstd101-mmax20-n1", "rand-n4-tweights-mstd1",
           "original-mstd0.5", "v0", "v0r", "originalr"]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.some(4)
def test_policies_operators_magnitudes_and_orders(config, monkeypatch):
    from scipy import stats

    def transform():
        random.seed(1)
        hparams = {"translate_const": 100, "img_mean": (1, 2, 3)}
        kind = auto_augment.rand_augment_transform if config.startswith("rand") else auto_augment.auto_augment_transform
        return kind(config, hparams)

    ours, theirs = ours_seen(transform(), N, monkeypatch), theirs_seen(transform(), N)
    alike([len(ops) for ops in ours], [len(ops) for ops in theirs])
    alike(*([op[0] for ops in side for op in ops] for side in (ours, theirs)))
    alike(*([tuple(op[0] for op in ops)[:2] for ops in side] for side in (ours, theirs)))
    for name in {op[0] for ops in theirs for op in ops}:
        amounts = [[op[1] for ops in side for op in ops if op[0] == name] for side in (ours, theirs)]
        assert min(map(len, amounts)) < 5 or stats.ks_2samp(*amounts).pvalue > P, name
    moved = [[op[2] for ops in side for op in ops if op[0] in ("Rotate", "ShearX", "ShearY")] for side in (ours, theirs)]
    alike(*moved)


def test_choices_without_replacement():
    transform = auto_augment.rand_augment_transform("rand-n15-tweights-p1.0", {})
    (operator,) = translate(v1.Compose([transform, v1.ToTensor()])).pipeline.operators
    assert all(sorted(operator.chosen(Keyed(0, 0, index, 0))) == list(range(15)) for index in range(50))
    data = [operator.to_data()]
    data[0]["layers"] = 16
    with pytest.raises(Exception, match="each chosen once"):
        Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": data})


EVALUATIONS = [{}, {"crop_mode": "border"}, {"crop_mode": "squash"}, {"crop_border_pixels": 4}, {"input_size": (3, 96, 128)},
               {"use_prefetcher": True}, {"normalize": False}, {"interpolation": "bicubic", "crop_pct": 1.0},
               {"is_training": True, "no_aug": True}]  # fmt: skip


@pytest.mark.parametrize("arguments", EVALUATIONS)
def test_evaluation_is_timms_bit_for_bit(arguments):
    transform = create_transform(**{"input_size": (3, 64, 64), **arguments})
    translation = translate(transform)
    assert Pipeline.parse(translation.pipeline.to_data()).to_data() == translation.pipeline.to_data()
    for seed in range(8):
        image = noisy(random.Random(seed))
        out = np.empty(translation.pipeline.output_shape(None), np.uint8)
        translation.pipeline.run(image, Keyed(0, 0, 0, 0), out, None)
        result = translation.epilogue(torch.from_numpy(out[np.newaxis]))[0]
        assert torch.equal(result, transform(image))


TRAINING = [{}, {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25}, {"auto_augment": "rand-m15-n2-t3a"},
            {"auto_augment": "original"}, {"auto_augment": "3a"},
            {"train_crop_mode": "rkrc"}, {"train_crop_mode": "rkrr", "vflip": 0.3}, {"auto_augment": "rand-m9-t3aw"},
            {"color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5}]  # fmt: skip


@pytest.mark.parametrize("arguments", TRAINING)
@pytest.mark.some(4)
def test_training_gives_pillows_bits_by_the_kernel(arguments):
    transform = create_transform(**{"input_size": (3, 48, 40), "is_training": True, **arguments})
    pipeline = translate(transform).pipeline
    assert Pipeline.parse(pipeline.to_data()).to_data() == pipeline.to_data()
    array = np.asarray(noisy(random.Random(3)))[np.newaxis]
    reader = translate_dataset(ImageArrays(array, [0], transform)).reader()
    boxes = np.zeros((pipeline.boxes, 4), np.int32) if pipeline.boxes else None
    for index in range(25):
        out, expected = np.zeros((48, 40, 3), np.uint8), np.empty((48, 40, 3), np.uint8)
        prepare_sample(reader, pipeline, (0, index), 5, 0, out, boxes)
        pipeline.run(Image.fromarray(array[0]), Keyed(5, 0, 0, index), expected, boxes)
        assert np.array_equal(out, expected)


def test_random_crop_and_its_filter():
    from scipy import stats

    t = timm_transforms.RandomResizedCropAndInterpolation(777, interpolation="random")
    random.seed(0)
    image = Image.new("RGB", (120, 90))
    ours = []
    for plan in plans_of(t, N, image.size):
        crop, resize = (None, *plan.primitives)[-2:]
        box = (0, 0, 90, 120) if crop is None else (crop.top, crop.left, crop.height, crop.width)
        ours.append((*box, resize.interpolation == "bilinear"))
    same([one[:4] for one in ours], [t.get_params(image, t.scale, t.ratio) for _ in range(N)])
    assert stats.binomtest(sum(one[4] for one in ours), N, 0.5).pvalue > P


@pytest.mark.parametrize("size", [(120, 90), (30, 200), (20, 20)])
def test_crops_that_pad(size):
    from scipy import stats

    random.seed(1)
    image = Image.effect_noise(size, 60).convert("RGB")
    resize = timm_transforms.ResizeKeepRatio((40, 50), 0.3, "bilinear", 0.5, (0.8, 1.0), True, 0.5, (0.9, 1 / 0.9))
    theirs = [resize.get_params(image, (40, 50), 0.3, 0.5, (0.8, 1.0), True, 0.5, (0.9, 1 / 0.9)) for _ in range(N)]
    same([plan.shape[:2] for plan in plans_of(resize, N, size)], theirs)
    for mode in ("constant", "reflect", "edge"):
        center = timm_transforms.CenterCropOrPad((40, 50), fill=7, padding_mode=mode)
        canvas = Canvas(size[1], size[0], 3, 0)
        translate(v1.Compose([center, v1.ToTensor()])).pipeline.operators[0].draw(canvas, Keyed(0, 0, 0, 0))
        assert np.array_equal(made(image, canvas), np.asarray(center(image)))
        # The same positions come up, with the same pixels.
        placed = timm_transforms.RandomCropOrPad((size[1] + 2, size[0] - 3), fill=7, padding_mode=mode)
        wanted = {np.asarray(placed(image)).tobytes() for _ in range(300)}
        (operator,) = translate(v1.Compose([placed, v1.ToTensor()])).pipeline.operators
        found = collections.Counter()
        for index in range(300):
            canvas = Canvas(size[1], size[0], 3, 0)
            operator.draw(canvas, Keyed(0, 0, index, 0))
            found[made(image, canvas).tobytes()] += 1
        assert set(found) == wanted and len(wanted) == 12
        assert stats.chisquare(list(found.values())).pvalue > P


class Erased:
    """Records what timm erases of an image."""

    def __init__(self):
        self.boxes = []

    def __setitem__(self, place, value):
        _, rows, columns = place
        self.boxes.append((rows.start, columns.start, rows.stop, columns.stop))


@pytest.mark.parametrize("counts, mode", [((1, 1), "const"), ((2, 4), "const"), ((1, 3), "pixel")])
def test_erased_rectangles(counts, mode):
    t = timm_erasing.RandomErasing(0.7, 0.1, 0.6, 0.4, mode=mode, min_count=counts[0], max_count=counts[1], device="cpu")
    random.seed(2)
    theirs = []
    for _ in range(N):
        erased = Erased()
        t._erase(erased, 3, 90, 120, torch.float32)
        theirs.append(erased.boxes)
    fixed = v1.Compose([v1.Resize((90, 120)), v1.ToTensor(), t])
    pipeline = translate(fixed).pipeline
    step = 2 if mode == "pixel" else 1
    drawn = [pipeline.draw((120, 90), Keyed(3, 1, index, 0)).boxes[::step] for index in range(N)]
    ours = [[box for box in boxes if box[2] > box[0]] for boxes in drawn]
    alike(*([len(boxes) for boxes in side] for side in (ours, theirs)))
    for number in range(counts[1]):
        chosen = [[boxes[number] for boxes in side if len(boxes) > number] for side in (ours, theirs)]
        same(*chosen)


@pytest.mark.parametrize("mode, count", ERASES)
def test_noise_is_normal_keyed_and_inside_its_rectangles(mode, count):
    from scipy import stats

    transform = create_transform((3, 64, 64), is_training=True, re_prob=1.0, re_mode=mode, re_count=count, hflip=0.0)
    plain = create_transform((3, 64, 64), is_training=True, hflip=0.0)
    translation, image, values = translate(transform), noisy(random.Random(1)), []
    plainly = translate(plain)
    for index in range(150):
        out, boxes = np.empty((64, 64, 3), np.uint8), np.zeros((2 * count, 4), np.int32)
        translation.pipeline.run(image, Keyed(0, 0, index, 0), out, boxes)
        batch, places = torch.from_numpy(out[np.newaxis]), torch.from_numpy(boxes[np.newaxis])
        result = translation.epilogue(batch, places)[0]
        assert torch.equal(result, translation.epilogue(batch.clone(), places)[0])
        # A device does the same with operations on the whole batch.
        last = translation.epilogue.with_output(torch.bfloat16, torch.channels_last)
        assert torch.equal(last._fill_together(last._on_device(batch), places)[0], last(batch, places)[0])
        expected = plainly.epilogue(batch)[0]
        covered = torch.zeros(64, 64, dtype=torch.bool)
        for top, left, bottom, right in boxes[::2].tolist():
            covered[top:bottom, left:right] = True
        assert torch.equal(result[:, ~covered], expected[:, ~covered])
        top, left, bottom, right = boxes[::2][-1].tolist()
        inside = result[:, top:bottom, left:right]
        values += inside.flatten().tolist() if mode == "pixel" else inside.amax((1, 2)).tolist()
        assert mode == "pixel" or torch.equal(inside, inside[:, :1, :1].expand_as(inside))
    assert stats.kstest(values, "norm").pvalue > P
    assert len(set(values)) > 0.9 * len(values)


def test_what_noise_cant_do():
    noise = timm_erasing.RandomErasing(1.0, mode="pixel", device="cpu")
    head = [v1.Resize((9, 9)), timm_transforms.MaybeToTensor()]
    with pytest.raises(Untranslatable, match="move it before RandomErasing"):
        translate(v1.Compose([*head, noise, v1.Normalize(0.5, 0.5)]))
    with pytest.raises(Untranslatable, match="fills with normal noise"):
        translate(v1.Compose([v1.Resize((9, 9)), timm_transforms.MaybePILToTensor(), noise]))
    with pytest.raises(ValueError, match="choose a float output"):
        translate(v1.Compose([*head, noise])).epilogue.with_output(torch.uint8)
    with pytest.raises(Untranslatable, match="order matters"):
        translate(v1.Compose([*head, v1.RandomOrder([noise, v1.RandomErasing()])]))


def test_what_is_not_timms_own_or_has_no_tensor():
    changed = auto_augment.AugmentOp("Invert")
    changed.aug_fn = lambda image: image
    with pytest.raises(Untranslatable, match="not timm's own"):
        translate(v1.Compose([auto_augment.RandAugment([changed]), v1.ToTensor()]))
    with pytest.raises(Untranslatable, match="MaybePILToTensor"):
        translate(v1.Compose([v1.Resize((9, 9)), timm_transforms.ToNumpy()]))
    with pytest.raises(Untranslatable, match="torch's kernels"):
        translate(v1.Compose([v1.ToTensor(), timm_transforms.RandomResizedCropAndInterpolation(9)]))
    with pytest.raises(Untranslatable, match="different hparams"):
        ops = [auto_augment.AugmentOp("Invert"), auto_augment.AugmentOp("Invert", hparams={"magnitude_std": 1.0})]
        translate(v1.Compose([auto_augment.RandAugment(ops), v1.ToTensor()]))
    with pytest.raises(Untranslatable, match="lanczos"):
        translate(create_transform((3, 9, 9), is_training=True, auto_augment="rand-m9", interpolation="lanczos"))
