r"""Train torchvision's RetinaNet on a set in COCO's format, under ddlp's strategies or torch's DataLoader.

    python templates/train_detection.py --small                                   # seconds, on any machine
    python templates/train_detection.py --model retinanet_resnet18_fpn --epochs 12 --strategy dataloader wrr
    python templates/train_detection.py --data /coco --strategy wrr --csd csd0 --epochs 26 --amp bf16 --workers 16 \
        --evaluate-beside --checkpoint retinanet.pt

--data is a directory with train/*.jpg, train.json, val/*.jpg and val.json (of COCO: links to train2017, val2017 and their
annotations/instances_*.json); without it a set of drawn shapes is made. Images of any size are scaled by a drawn factor, then
cropped or padded to a square, and flipped: on the host or on a device. Boxes follow on the host, with torchvision's bits.
Crowds are left out. The score is COCO's mAP, over IoU of 0.5 to 0.95, by pycocotools: pip install ddlp[detection].
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.utils.data import Subset
from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
from torchvision.models import ResNet, detection
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.resnet import BasicBlock
from torchvision.ops.feature_pyramid_network import LastLevelP6P7
from torchvision.transforms import v2

from common import flags, parse
from training import Task, compare, to_device

MODELS = ("retinanet_resnet50_fpn_v2", "retinanet_resnet50_fpn", "retinanet_resnet18_fpn")
BATCH_SIZES = {"retinanet_resnet50_fpn_v2": 16, "retinanet_resnet50_fpn": 16, "retinanet_resnet18_fpn": 8}
SHAPES = ("disc", "box", "triangle")


def pipeline(size: int, train: bool) -> v2.Compose:
    """Large-scale jitter (Ghiasi et al., arXiv 2012.07177) with a smaller range, or the whole image in a square."""
    steps: list[nn.Module] = [v2.Resize(size=None, max_size=size), v2.CenterCrop(size)]
    if train:
        scale, crop = v2.ScaleJitter((size, size), (0.7, 1.4)), v2.RandomCrop(size, pad_if_needed=True)
        steps = [scale, crop, v2.RandomHorizontalFlip(), v2.SanitizeBoundingBoxes()]
    return v2.Compose([*steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def coco(root: Path, part: str, transforms: v2.Compose) -> Any:
    """Return a data set of (image, {"boxes", "labels", "image_id"}), without the boxes of crowds."""
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools tells that it reads
        dataset = CocoDetection(str(root / part), str(root / f"{part}.json"), transforms=transforms)
    boxes = dataset.coco.imgToAnns
    for image, anns in list(boxes.items()):
        boxes[image] = [ann for ann in anns if not ann.get("iscrowd") and min(ann["bbox"][2:]) > 0]
    return wrap_dataset_for_transforms_v2(dataset, target_keys=("boxes", "labels", "image_id"))


def with_boxes(dataset: Any) -> Subset:
    """Return the images that have boxes: of others there is nothing to learn from but background."""
    return Subset(dataset, [k for k, image in enumerate(dataset.ids) if dataset.coco.imgToAnns.get(image)])


def together(samples: list[Any]) -> tuple[Tensor, list[dict[str, Any]]]:
    """Return a batch: (N, 3, size, size), and for each image "boxes", (K, 4), "labels", (K,), and "image_id"."""
    images, targets = zip(*samples, strict=True)
    none = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}  # torchvision leaves them out
    return torch.stack(images), [{**none, **target} for target in targets]


class Detector(nn.Module):
    """RetinaNet for the loop of training.py, which computes the loss from the model's output and the targets.

    In training the output is what makes the losses of targets; in evaluation the boxes, labels and scores of each image.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Any:
        """Take (N, 3, size, size)."""
        return partial(self.net, list(images)) if self.training else self.net(list(images))


def losses(output: Any, targets: list[dict[str, Tensor]]) -> Tensor:
    """Return the sum of RetinaNet's losses, of classes and of boxes."""
    return torch.stack(list(output(targets).values())).sum()


def make_model(name: str, small: bool, size: int, classes: int) -> Detector:
    """One of torchvision's RetinaNets, with new weights, or one for small images: ResNet-18 without its last stage, or less."""
    if not small and name != "retinanet_resnet18_fpn":
        known: Any = detection.retinanet_resnet50_fpn_v2 if name.endswith("_v2") else detection.retinanet_resnet50_fpn
        return Detector(known(num_classes=classes, weights=None, weights_backbone=None, min_size=size, max_size=size))
    channels, blocks = (32, 1) if small else (64, 2)
    # Few images a batch, and weights that nobody has trained: groups (He et al., arXiv 1811.08883).
    norm = partial(nn.GroupNorm, 8)
    body, layers = ResNet(BasicBlock, [blocks] * 4, norm_layer=norm), {"layer2": "0", "layer3": "1"}
    backbone = BackboneWithFPN(body, layers, [128, 256], channels, extra_blocks=LastLevelP6P7(channels, channels))
    sides = tuple(tuple(int(2 ** (k / 3) * 2 * stride) for k in range(3)) for stride in (8, 16, 32, 64))
    anchors = AnchorGenerator(sides, ((0.5, 1.0, 2.0),) * 4)
    # Norms as in retinanet_resnet50_fpn_v2: the weights of the head begin small, and fewer channels make that worse.
    head = RetinaNetHead(channels, anchors.num_anchors_per_location()[0], classes, norm_layer=norm)
    given: dict[str, Any] = dict(anchor_generator=anchors, head=head, min_size=size, max_size=size)
    return Detector(detection.RetinaNet(backbone, classes, **given))


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return AdamW, as torchvision has for retinanet_resnet50_fpn_v2."""
    return torch.optim.AdamW(model.parameters(), lr, weight_decay=0.05)


def mean_precision(model: nn.Module, task: Task, loader: Any, options: Any) -> tuple[float, int]:
    """Return COCO's mAP times the number of images, and that number."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": [], "categories": []}
    detections: list[dict[str, Any]] = []
    for batch in loader:
        images, targets = to_device(batch, task, torch.device(options.device))
        for target, output in zip(targets, model(images), strict=True):
            image = int(target["image_id"])
            truth["images"].append({"id": image})
            for box, label in _boxes(target):
                area = box[2] * box[3]
                truth["annotations"].append({
                    "id": len(truth["annotations"]) + 1, "image_id": image, "bbox": box, "area": area, "category_id": label,
                    "iscrowd": 0,
                })  # fmt: skip
            scores = output["scores"].tolist()
            detections += [{"image_id": image, "bbox": box, "category_id": label, "score": score}
                      for (box, label), score in zip(_boxes(output), scores, strict=True)]  # fmt: skip
    truth["categories"] = [{"id": label} for label in sorted({ann["category_id"] for ann in truth["annotations"]})]
    if not detections:
        return 0.0, len(truth["images"])
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = truth
        known.createIndex()
        scored = COCOeval(known, known.loadRes(detections), "bbox")
        scored.evaluate()
        scored.accumulate()
        scored.summarize()
    return max(0.0, float(scored.stats[0])) * len(truth["images"]), len(truth["images"])


def _boxes(target: dict[str, Tensor]) -> list[tuple[list[float], int]]:
    """The boxes, as (x, y, width, height), with their labels."""
    boxes = target["boxes"].clone()
    boxes[:, 2:] -= boxes[:, :2]
    return list(zip(boxes.tolist(), target["labels"].tolist(), strict=True))


def make_shapes(root: Path, train: int, val: int, side: int) -> Path:
    """Write images of about `side` pixels with up to two shapes, as JPEG files with COCO's JSON. The same ones each time."""
    if (root / "val.json").exists():  # the file that is written last
        return root
    for part, first, count in (("train", 0, train), ("val", train, val)):
        (root / part).mkdir(parents=True, exist_ok=True)
        images: list[dict[str, Any]] = []
        boxes: list[dict[str, Any]] = []
        for number in range(first, first + count):
            draws = np.random.default_rng(number)
            width, height = (int(draws.integers(side * 4 // 5, side * 6 // 5)) for _ in range(2))
            ground = Image.fromarray(draws.integers(40, 200, (6, 6, 3), dtype=np.uint8))
            image = ground.resize((width, height), Image.Resampling.BICUBIC)
            drawn: list[list[float]] = []
            for _ in range(number % 3):  # every third image has none
                shape, box = _draw(image, draws, drawn)
                drawn.append(box)
                boxes.append({"id": len(boxes) + 1, "image_id": number, "category_id": shape + 1, "bbox": box,
                              "area": box[2] * box[3], "iscrowd": 0})  # fmt: skip
            image.save(root / part / f"{number:05}.jpg", quality=90)
            images.append({"id": number, "file_name": f"{number:05}.jpg", "width": width, "height": height})
        categories = [{"id": k, "name": name} for k, name in enumerate(SHAPES, 1)]
        content = {"images": images, "annotations": boxes, "categories": categories}
        (root / f"{part}.json").write_text(json.dumps(content))
    return root


def _draw(image: Image.Image, draws: np.random.Generator, others: list[list[float]]) -> tuple[int, list[float]]:
    """Draw a shape beside the others, or over them if ten places were taken. Returns its number, and its box as COCO has it."""
    across, down = (min(image.size) * draws.uniform(0.35, 0.7, 2)).round()
    for _ in range(10):
        left, top = round(draws.uniform(0, image.width - across)), round(draws.uniform(0, image.height - down))
        if not any(left < x + w and x < left + across and top < y + h and y < top + down for x, y, w, h in others):
            break
    right, bottom = left + across - 1, top + down - 1
    shape, pen = int(draws.integers(len(SHAPES))), ImageDraw.Draw(image)
    colour = tuple(int(k) for k in draws.permutation([255, 255 * int(draws.integers(2)), 0]))
    if SHAPES[shape] == "disc":
        pen.ellipse((left, top, right, bottom), colour)
    elif SHAPES[shape] == "box":
        pen.rectangle((left, top, right, bottom), colour)
    else:
        pen.polygon([(left, bottom), (right, bottom), ((left + right) / 2, top)], colour)
    return shape, [float(left), float(top), float(across), float(down)]


def data_folder(options: Any) -> Path:
    """Return --data, or a directory with drawn shapes."""
    if options.data is not None:
        return Path(options.data)
    name, *sizes = ("shapes-tiny", 24, 8, 80) if options.small else ("shapes", 960, 120, 160)
    return make_shapes(Path("data") / name, *sizes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, compare, report."""
    parser = flags(__doc__, MODELS)
    parser.add_argument("--size", type=int, help="pixels of a side of the square (default: 640 with --data, else 128 or 64)")
    options = parse(parser, BATCH_SIZES, arguments)
    if options.model not in MODELS:
        parser.error(f"--model {options.model}: one of {', '.join(MODELS)}")
    size = options.size or (64 if options.small else 128 if options.data is None else 640)
    try:
        root = data_folder(options)
        train, val = (coco(root, part, pipeline(size, part == "train")) for part in ("train", "val"))
    except ImportError:
        raise SystemExit("train_detection: it reads COCO's format by pycocotools: pip install ddlp[detection]") from None
    except (OSError, ValueError) as error:
        raise SystemExit(f"train_detection: {error}. --data {options.data}: a directory with train/, train.json, val/ and "
                         "val.json, in COCO's format") from None  # fmt: skip
    classes = max(train.coco.cats, default=0) + 1
    task = Task(
        template="train_detection",
        model_name=options.model + (" (small)" if options.small else ""),
        pipeline="scale jitter",
        train=with_boxes(train),
        val=val,
        model=lambda: make_model(options.model, options.small, size, classes),
        optimizer=make_optimizer,
        lr=(1e-4 if not options.small and "resnet50" in options.model else 2e-3) * max(1.0, options.batch_size / 16),
        channels_last=False,
        loss=losses,
        no_labels=lambda images: together([(torch.zeros(()), {}) for _ in range(images)])[1],
        collate_fn=together,
        evaluate=mean_precision,
        score="mAP",
    )
    return compare(task, options)


if __name__ == "__main__":
    sys.exit(main())
