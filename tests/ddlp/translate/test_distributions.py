"""Drawn parameters have the distribution of torchvision's get_params: two-sample tests with fixed seeds, p above 1e-3."""

import numpy as np
import pytest
import torch
from torchvision import transforms as v1

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.transforms.pipeline import Pipeline
from tests.ddlp.translate.draws import P, same

N = 3000


def plans(*ops, size=(120, 90), n=N):
    pipe = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": list(ops)})
    return [pipe.draw(size, Keyed(3, 1, i, 0)) for i in range(n)]


@pytest.mark.parametrize("size, scale, ratio", [
    ((120, 90), (0.08, 1.0), (3 / 4, 4 / 3)), ((300, 40), (0.08, 1.0), (3 / 4, 4 / 3)),
    ((90, 120), (0.3, 0.9), (0.2, 1.0)), ((20, 200), (0.9, 1.0), (0.5, 2.0)),
])
def test_random_resized_crop(size, scale, ratio):
    torch.manual_seed(0)
    image = torch.empty(3, size[1], size[0])
    theirs = [v1.RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(N)]
    op = {"op": "RandomResizedCrop", "size": [777, 778], "scale": scale, "ratio": ratio, "interpolation": "nearest"}
    ours = []
    for plan in plans(op, size=size):
        crop = plan.primitives[0]
        whole = not hasattr(crop, "top")
        ours.append((0, 0, size[1], size[0]) if whole else (crop.top, crop.left, crop.height, crop.width))
    same(ours, theirs)


@pytest.mark.parametrize("scale, ratio", [((0.02, 0.33), (0.3, 3.3)), ((0.5, 1.0), (0.3, 3.3))])
def test_random_erasing(scale, ratio):
    torch.manual_seed(1)
    image = torch.empty(3, 90, 120)
    theirs = []
    for _ in range(N):
        top, left, height, width, _ = v1.RandomErasing.get_params(image, scale, ratio, [0.0])
        full = (height, width) == (90, 120)  # no attempt fitted, so nothing is erased
        theirs.append((0, 0, 0, 0) if full else (top, left, top + height, left + width))
    same([p.boxes[0] for p in plans({"op": "RandomErasing", "p": 1.0, "scale": scale, "ratio": ratio})], theirs)


def test_random_crop():
    torch.manual_seed(2)
    image = torch.empty(3, 98, 128)
    theirs = [v1.RandomCrop.get_params(image, (64, 70))[:2] for _ in range(N)]
    op = {"op": "RandomCrop", "size": [64, 70], "padding": [4, 4, 4, 4], "pad_if_needed": False, "fill": [0],
          "padding_mode": "constant"}
    same([(p.primitives[1].top, p.primitives[1].left) for p in plans(op)], theirs)


def test_cutout_centres():
    from scipy import stats

    boxes = np.array([p.boxes[0] for p in plans({"op": "Cutout", "holes": 1, "length": 2})])
    for column, length in ((2, 90), (3, 120)):
        ends = np.minimum(np.arange(length) + 1, length)
        expected = np.bincount(ends, minlength=length + 1) * N / length
        seen = np.bincount(boxes[:, column], minlength=length + 1)
        assert stats.chisquare(seen[expected > 0], expected[expected > 0]).pvalue > P


@pytest.mark.parametrize("name", ["RandomHorizontalFlip", "RandomVerticalFlip", "RandomGrayscale"])
def test_probabilities(name):
    from scipy import stats

    applied = sum(bool(p.primitives) for p in plans({"op": name, "p": 0.3}))
    assert stats.binomtest(applied, N, 0.3).pvalue > P
    assert not any(p.primitives for p in plans({"op": name, "p": 0.0}, n=50))
    assert all(p.primitives for p in plans({"op": name, "p": 1.0}, n=50))


def test_choices_and_orders():
    from scipy import stats

    def pad(n):
        return [{"op": "Pad", "padding": [n, 0, 0, 0], "fill": [0], "padding_mode": "constant"}]

    chosen = [p.primitives[0].left for p in plans({"op": "RandomChoice", "groups": [pad(1), pad(2), pad(3)],
                                                   "p": [1.0, 0.0, 4.0]})]
    assert stats.chisquare(np.bincount(chosen, minlength=4)[[1, 3]], [N * 0.2, N * 0.8]).pvalue > P and 2 not in chosen
    orders = [tuple(s.left for s in p.primitives) for p in plans({"op": "RandomOrder",
                                                                  "groups": [pad(1), pad(2), pad(3)]})]
    counts = [orders.count(order) for order in sorted(set(orders))]
    assert len(counts) == 6 and stats.chisquare(counts).pvalue > P
    applied = sum(bool(p.primitives) for p in plans({"op": "RandomApply", "ops": pad(1), "p": 0.7}))
    assert stats.binomtest(applied, N, 0.7).pvalue > P
