"""Joint transforms of torchvision's v2: images from either side, and boxes that follow them, with torchvision's bits."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import tv_tensors
from torchvision.datasets import CocoDetection
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms import primitives as steps
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.resample import native_order
from ddlp import DDLPLoader, ImageFiles
from ddlp.epoch.iterator import EpochIterator
from ddlp.translate.datasets import translate_dataset
from tests.both_sides import until_both
from tests.ddlp.dropin.beside import cut, equal

FLOATS = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
SIZE = (40, 36)
HAS_KEY_POINTS = hasattr(tv_tensors, "KeyPoints")


def targets_of(paths):
    """A target for each file: no box, or up to three, one of them partly outside of the image."""
    drawn, found = torch.Generator().manual_seed(5), []
    for number, path in enumerate(paths):
        width, height = Image.open(path).size
        boxes = torch.rand((number % 4, 4), generator=drawn) * torch.tensor([width, height, width, height]) * 0.6
        boxes[:, 2:] += boxes[:, :2] + 1
        masks = torch.rand((number % 4, height, width), generator=drawn) < 0.5
        found.append({
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
            "labels": torch.arange(number % 4), "masks": tv_tensors.Mask(masks), "name": Path(path).name, "number": number,
        })  # fmt: skip
        if HAS_KEY_POINTS:
            found[-1]["points"] = tv_tensors.KeyPoints(boxes[:, :2], canvas_size=(height, width))
    return found


def detection(paths, *operators):
    return ImageFiles(paths, targets_of(paths), transforms=v2.Compose(list(operators)))


def together(samples):
    return tuple(zip(*samples))


DETERMINISTIC = {
    "resized": [v2.Resize(SIZE), *FLOATS],
    "no tensors": [v2.Resize(SIZE)],
    "flipped": [v2.RandomHorizontalFlip(1.0), v2.Resize(SIZE), v2.RandomVerticalFlip(1.0), *FLOATS, v2.ToPureTensor()],
    "into a square": [v2.RandomShortestSize(64, max_size=64), v2.CenterCrop(64), *FLOATS],
    "cut in the middle": [v2.Resize(30), v2.CenterCrop((21, 33)), v2.SanitizeBoundingBoxes(), *FLOATS],
    "scaled": [v2.ScaleJitter((50, 41), (0.7, 0.7)), v2.CenterCrop(SIZE), *FLOATS],
    "fitted": [v2.ScaleJitter((64, 64), (1.0, 1.0)), v2.CenterCrop(64), *FLOATS],
    "padded": [v2.Resize(SIZE), v2.Pad([3, 1, 5, 2], fill=9), v2.RandomCrop((43, 44)), *FLOATS],
    "the whole image": [v2.Resize(SIZE), v2.RandomResizedCrop((20, 30), scale=(1.0, 1.0), ratio=(0.9, 0.9)), *FLOATS],
    "colours": [v2.Grayscale(3), v2.Resize(SIZE), v2.RandomInvert(1.0), *FLOATS, v2.Normalize([0.5] * 3, [0.2] * 3)],
    "formats": [v2.ConvertBoundingBoxFormat("CXCYWH"), v2.Resize(SIZE), v2.ConvertBoundingBoxFormat("XYXY"),
                v2.ClampBoundingBoxes(), v2.ToImage(),
                v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.BoundingBoxes: torch.float64, "others": None})],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_the_samples_of_dataloader(paths, name):
    data = detection(paths[:9], *DETERMINISTIC[name])
    equal(cut(DDLPLoader(data, 4, collate_fn=together)), DataLoader(data, 4, collate_fn=together))


@pytest.mark.parametrize("way", [{"num_workers": 1}, {"num_workers": 1, "own_steps": "threads"}], ids=str)
def test_beside_the_training_thread(paths, way):
    data = detection(paths[:9], *DETERMINISTIC["cut in the middle"])
    equal(cut(DDLPLoader(data, 4, collate_fn=together, **way)), DataLoader(data, 4, collate_fn=together))


class Replayed(Dataset):
    """The same samples by torchvision's functions alone, with what a pipeline draws for them."""

    def __init__(self, data, ops, seed, epoch, end):
        self.data, self.seed, self.epoch, self.end = data, seed, epoch, end
        self.pipeline = Pipeline.parse({"format": 1, "order": native_order(), "mode": "RGB", "ops": ops})

    def __len__(self):
        return len(self.data)

    def __getitem__(self, k):
        image, target = self.data.image(k), self.data.targets[k]
        parts, structure = torch.utils._pytree.tree_flatten(target)
        for step in self.pipeline.draw(image.size, Keyed(self.seed, self.epoch, k, 0)).primitives:
            image = self.step(step, image)
            parts = [self.step(step, one) if isinstance(one, tv_tensors.TVTensor) else one for one in parts]
        return self.end(image, torch.utils._pytree.tree_unflatten(parts, structure))

    def step(self, step, x):
        if isinstance(step, steps.Crop):
            return F.crop(x, step.top, step.left, step.height, step.width)
        if isinstance(step, steps.Resize):
            return F.resize(x, [step.height, step.width], v2.InterpolationMode(step.interpolation))
        if isinstance(step, steps.Flip):
            return F.horizontal_flip(x) if step.horizontal else F.vertical_flip(x)
        assert isinstance(step, steps.Pad)
        return F.pad(x, [step.left, step.top, step.right, step.bottom], step.fill[0])


FLIPS = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.3)]
FLIP_OPS = [{"op": "RandomHorizontalFlip", "p": 0.5}, {"op": "RandomVerticalFlip", "p": 0.3}]
PADDED = {"op": "RandomCrop", "size": [40, 36], "padding": None, "pad_if_needed": True, "fill": [7], "padding_mode": "constant"}
BILINEAR = {"interpolation": "bilinear"}
DRAWN = {
    "jitter": (
        [v2.ScaleJitter((44, 44), (0.4, 1.6)), v2.RandomCrop(SIZE, pad_if_needed=True, fill=7), *FLIPS],
        [{"op": "ScaleJitter", "target_size": [44, 44], "scale_range": [0.4, 1.6], **BILINEAR}, PADDED, *FLIP_OPS],
    ),
    "shortest side": (
        [v2.RandomShortestSize([28, 40, 52], max_size=60), v2.RandomCrop(SIZE, pad_if_needed=True, fill=7), *FLIPS],
        [{"op": "RandomShortestSize", "min_size": [28, 40, 52], "max_size": 60, **BILINEAR}, PADDED, *FLIP_OPS],
    ),
    "part": (
        [v2.RandomHorizontalFlip(), v2.RandomResizedCrop(SIZE), v2.RandomGrayscale(0.0), v2.RandomVerticalFlip(0.3)],
        [FLIP_OPS[0], {"op": "RandomResizedCrop", "size": [40, 36], "scale": [0.08, 1.0], "ratio": [0.75, 4 / 3], **BILINEAR},
         {"op": "RandomGrayscale", "p": 0.0}, FLIP_OPS[1]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.some(1)
def test_host_and_engine_give_torchvisions_bits_for_what_is_drawn(paths, engine, name):
    operators, ops = DRAWN[name]
    end = v2.Compose([v2.SanitizeBoundingBoxes(), *FLOATS])
    data = detection(paths, *operators, end)
    for target in data.targets if name == "part" else ():
        # RandomResizedCrop also crops boxes to the whole image, where a plan has no step: "the whole image" above.
        target["boxes"] = F.clamp_bounding_boxes(target["boxes"])
    theirs = list(DataLoader(Replayed(data, ops, 5, 0, end), 4, collate_fn=together))
    equal(cut(DDLPLoader(data, 4, collate_fn=together, seed=5)), theirs)
    alone = DDLPLoader(data, 4, collate_fn=together, seed=5, strategy="csd", spool=engine)
    equal(cut(alone), theirs)
    assert alone.report().batches_csd == len(alone)
    again = list(DataLoader(Replayed(data, ops, 5, 1, end), 4, collate_fn=together))
    equal(alone, again)  # the next epoch
    assert any(not torch.equal(a["boxes"], b["boxes"]) for x, y in zip(theirs, again) for a, b in zip(x[1], y[1]))


def test_an_epoch_of_both_sides(paths, engine):
    operators, ops = DRAWN["jitter"]
    data = detection(paths, *operators, *FLOATS)
    expected = DataLoader(Replayed(data, ops, 5, 0, v2.Compose(FLOATS)), 4, collate_fn=together)
    theirs = {target["number"]: (image, target) for batch in expected for image, target in zip(*batch)}
    loader = DDLPLoader(data, 4, collate_fn=together, seed=5, strategy="wrr", num_workers=1, spool=engine)
    for batches in until_both(loader):
        ours = [one for batch in batches for one in zip(*batch)]
        assert len(ours) == len(theirs)
        equal(ours, [theirs[target["number"]] for _, target in ours])


class Renamed:
    """A joint step of one's own, which draws."""

    def __call__(self, image, target):
        return image + torch.rand(()), {**target, "name": f"{target['name']} {float(torch.rand(())):.6f}"}


def test_own_joint_steps_come_behind_the_known_ones(paths):
    data = detection(paths[:9], v2.Resize(SIZE), v2.SanitizeBoundingBoxes(), *FLOATS, Renamed(), v2.RandomHorizontalFlip(1.0))
    loader = DDLPLoader(data, 4, collate_fn=together, seed=2)
    one, two = list(cut(loader)), list(cut(DDLPLoader(data, 4, collate_fn=together, seed=2, num_workers=1)))
    equal(one, two)
    known = detection(paths[:9], v2.Resize(SIZE), v2.SanitizeBoundingBoxes(), v2.RandomHorizontalFlip(1.0))
    ((_, known),) = DataLoader(known, 9, collate_fn=together)
    ours = [target for batch in one for target in batch[1]]
    assert [target["name"][:7] for target in ours] == [target["name"][:7] for target in known]
    assert all(torch.equal(a["boxes"], b["boxes"]) for a, b in zip(ours, known))


def test_parts_of_a_data_set_and_samples_that_come_twice(paths, engine):
    operators, ops = DRAWN["shortest side"]
    both = detection(paths, *operators, *FLOATS)
    ours = DDLPLoader(Subset(both, [3, 3, 8, 1]), 2, collate_fn=together, seed=1, strategy="csd", spool=engine)
    host = DDLPLoader(Subset(both, [3, 3, 8, 1]), 2, collate_fn=together, seed=1)
    equal(cut(ours), cut(host))
    first, again = (target["boxes"] for target in next(iter(host))[1])
    assert first.canvas_size == again.canvas_size == SIZE and not torch.equal(first, again)
    halves = [ImageFiles(part, targets_of(part), transforms=both.transforms) for part in (paths[:5], paths[5:9])]
    fixed = v2.Compose(DETERMINISTIC["flipped"])
    for half in halves:
        half.transforms = fixed
    equal(cut(DDLPLoader(ConcatDataset(halves), 4, collate_fn=together)),
          DataLoader(ConcatDataset(halves), 4, collate_fn=together))  # fmt: skip


def test_targets_of_one_shape_need_no_collate_fn(paths):
    boxes = [tv_tensors.BoundingBoxes([[1.0, 2.0, 20.0, 21.0]], format="XYXY", canvas_size=Image.open(path).size[::-1])
             for path in paths[:6]]  # fmt: skip
    data = ImageFiles(paths[:6], boxes, transforms=v2.Compose([v2.Resize(SIZE), *FLOATS]))
    equal(cut(DDLPLoader(data, 4)), DataLoader(data, 4))


def test_what_does_not_follow_is_left_to_torchs_workers(paths):
    images = [Image.new("L", (5, 4), k) for k in range(4)]
    with_image = ImageFiles(paths[:4], images, transforms=v2.Compose([v2.Resize(SIZE), v2.PILToTensor()]))
    unknown = detection(paths[:4], v2.RandomZoomOut(p=0.0), *FLOATS)
    for data in (with_image, unknown):
        loader = DDLPLoader(data, 2, collate_fn=together)
        assert not isinstance(iter(loader), EpochIterator)
        equal(loader, DataLoader(data, 2, collate_fn=together))
    assert "its transforms= changes image and target together" in DDLPLoader(unknown, 2, collate_fn=together).explain()
    crop = v2.RandomCrop((30, 30), padding=[-4, -4, 0, 0])  # one of the user's own steps
    data = detection(paths[:4], v2.Resize(SIZE), crop, *FLOATS)
    one, two = (DDLPLoader(data, 2, collate_fn=together, seed=1, num_workers=workers) for workers in (0, 1))
    equal(cut(one), cut(two))
    assert "RandomCrop" in one.explain().partition("own steps")[2]


def test_an_image_in_a_later_target_is_an_error_that_names_the_sample(paths):
    data = ImageFiles(paths[:3], [1, 2, Image.new("L", (5, 4))], transforms=v2.Compose([v2.Resize(SIZE), *FLOATS]))
    with pytest.raises(TypeError, match=rf"(?s)has a Image in it.*tv_tensors.Mask.*{Path(paths[2]).name}"):
        list(cut(DDLPLoader(data, 1, collate_fn=together)))


def test_transforms_stand_alone(paths):
    with pytest.raises(ValueError, match="transforms= gets image and target"):
        ImageFiles(paths, paths, v2.Resize(4), transforms=v2.Resize(4))


def test_explain_says_that_targets_follow(paths):
    text = DDLPLoader(detection(paths, *DRAWN["jitter"][0], *FLOATS), 4, collate_fn=together).explain()
    assert "ScaleJitter -> RandomCrop -> RandomHorizontalFlip" in text
    assert "targets    boxes, masks and key points follow" in text


def coco(root, paths, transforms, **wrapped):
    """The files as a COCO data set: some without boxes, one with a crowd."""
    images, boxes = [], []
    for number, (path, target) in enumerate(zip(paths, targets_of(paths))):
        width, height = Image.open(path).size
        images.append({"id": 100 - number, "file_name": path, "width": width, "height": height})
        for x0, y0, x1, y1 in target["boxes"].tolist():
            outline = [x0, y0, x1, y0, x1, y1]
            boxes.append({"id": len(boxes) + 1, "image_id": 100 - number, "category_id": 3 + number % 5, "iscrowd": 0,
                          "bbox": [x0, y0, x1 - x0, y1 - y0], "area": 1.0, "segmentation": [outline]})  # fmt: skip
    categories = [{"id": k, "name": str(k)} for k in range(3, 8)]
    (root / "found.json").write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))
    data = CocoDetection(str(root), str(root / "found.json"), transforms=transforms)
    from torchvision.datasets import wrap_dataset_for_transforms_v2

    return wrap_dataset_for_transforms_v2(data, **wrapped)


def test_coco_as_torchvision_wraps_it(paths, engine, tmp_path):
    pytest.importorskip("pycocotools")
    fixed = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize(SIZE), *FLOATS])
    data = coco(tmp_path, paths[:10], fixed, target_keys=("boxes", "labels", "image_id", "masks", "iscrowd"))
    theirs = list(DataLoader(data, 3, collate_fn=together))
    equal(cut(DDLPLoader(data, 3, collate_fn=together)), theirs)
    equal(cut(DDLPLoader(data, 3, collate_fn=together, num_workers=1, strategy="csd", spool=engine)), theirs)
    (leaf,) = translate_dataset(data).parts
    made = pickle.loads(pickle.dumps(leaf.from_raw))(leaf.targets([2])[0], leaf.image_size(2))  # for spawned processes
    assert made["boxes"].canvas_size == Image.open(paths[7]).size[::-1]
    for transforms in (None, v2.Compose([v2.RandomIoUCrop(), *FLOATS])):
        other = coco(tmp_path, paths[:4], transforms)
        assert not isinstance(iter(DDLPLoader(other, 1, collate_fn=together)), EpochIterator)
