"""What a translated transform draws for many samples, and whether two lists of parameters are of one distribution."""

import numpy as np
from torchvision import transforms as v1

from csd_engine.arithmetic.keyed import Keyed
from ddlp.translate.transforms import translate

P = 1e-3


def plans_of(transform, n, size=(120, 90)):
    pipeline = translate(v1.Compose([transform, v1.ToTensor()])).pipeline
    return [pipeline.draw(size, Keyed(3, 1, index, 0)) for index in range(n)]


def steps_of(transform, n):
    return [plan.primitives for plan in plans_of(transform, n)]


def same(ours, theirs):
    from scipy import stats

    for a, b in zip(np.array(ours, dtype=float).T, np.array(theirs, dtype=float).T, strict=True):
        assert stats.ks_2samp(a, b).pvalue > P
