"""The kernel draws the same numbers for an image as the pipeline."""

import random

import pytest

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import PipelineError
from csd_engine.transforms import fileplan
from csd_engine.transforms.compiled import compile_plan
from csd_engine.transforms.fileplan import file_plan
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.resample import RESAMPLED

FIELDS = (
    "left", "top", "width", "height", "full_width", "full_height", "filter", "out_left", "out_top", "out_width", "out_height",
    "flip_horizontal", "flip_vertical", "vertical_first", "reduce", "channels",
)  # fmt: skip
CROPS, FLIPS = ("CenterCrop", "RandomCrop"), ("RandomHorizontalFlip", "RandomVerticalFlip")


class Random(random.Random):
    """Draws operators."""

    def side(self):
        return self.randint(1, self.choice((40, 300)))

    def interval(self, low, high):
        return sorted((self.uniform(low, high), self.uniform(low, high)))

    def operator(self, name):
        size, filters = [self.side(), self.side()], sorted(RESAMPLED)
        ratio = [2**exponent for exponent in self.interval(-3, 3)]
        longest = self.side()
        return {"op": name, **{
            "RandomResizedCrop": lambda: {
                "size": size, "scale": self.interval(0, 1.5), "ratio": ratio, "interpolation": self.choice(filters)
            },
            "Resize": lambda: {
                **self.choice((
                    {"size": size, "max_size": None},
                    {"size": longest, "max_size": None},
                    {"size": longest, "max_size": longest + self.side()},
                    {"size": None, "max_size": longest},
                )),
                "interpolation": self.choice(filters),
            },
            "CenterCrop": lambda: {"size": size},
            "RandomCrop": lambda: {
                "size": size, "padding": None, "pad_if_needed": self.random() < 0.5, "fill": [0], "padding_mode": "constant"
            },
            "RandomHorizontalFlip": lambda: {"p": self.random()},
            "RandomVerticalFlip": lambda: {"p": self.random()},
            "Cutout": lambda: {"holes": self.randint(1, 3), "length": self.side()},
            "RandomErasing": lambda: {"p": self.random(), "scale": self.interval(0, 1), "ratio": ratio},
        }[name]()}  # fmt: skip

    def pipeline(self):
        """Crops, a resize, crops and flips, masks: all that the kernel draws."""
        names = self.choices(CROPS, k=self.choice((0, 0, 1, 2)))
        names += self.choices(("RandomResizedCrop", "Resize", None))
        names += self.choices((*CROPS, *FLIPS, *FLIPS), k=self.randint(0, 4))
        names += self.choices((*CROPS, None), k=1)
        names += self.choices(("Cutout", "RandomErasing"), k=self.choice((0, 0, 1, 2)))
        data = {"format": 1, "order": self.choice(("pillow12", "pillow13")), "mode": self.choice(("RGB", "L")),
                "ops": [self.operator(name) for name in names if name]}  # fmt: skip
        return Pipeline.parse(data if self.random() < 0.6 else dict(data, decode="fast"))

    def image(self):
        most = self.choice((60, 900, 900, 9000))
        return self.randint(1, most), self.randint(1, most)


def drawn(pipeline, size, key):
    """What the pipeline draws: (the job's numbers, boxes). None if the kernel's job is not all of the plan."""
    try:
        plan = pipeline.draw(size, Keyed(*key), jpeg=True)
        compiled = compile_plan(plan, size, pipeline)
    except PipelineError:
        return None
    if compiled is None or compiled.rest:
        return None
    return [getattr(compiled.job, name) for name in FIELDS], [list(box) for box in plan.boxes]


def test_jobs_and_boxes_are_the_definitions(kernel):
    rng, kinds = Random(5), set()
    made = refused = 0
    for _ in range(2500):
        pipeline = rng.pipeline()
        plan = file_plan(pipeline, kernel)
        if plan is None:  # its size is not fixed
            continue
        for _ in range(4):
            size, key = rng.image(), (rng.getrandbits(70) - 2**69, rng.getrandbits(8), rng.getrandbits(40), rng.getrandbits(2))
            wanted, found = drawn(pipeline, size, key), plan.job(size, key)
            assert (found is None) == (wanted is None), (pipeline.to_data(), size, key)
            if found is None:
                refused += 1
                continue
            job, boxes = found
            assert ([getattr(job, name) for name in FIELDS], boxes.tolist()) == wanted, (pipeline.to_data(), size, key)
            made += 1
            kinds |= {("reduced", job.reduce), ("resized", job.filter), ("vertical first", job.vertical_first)}
            kinds |= {type(operator).__name__ for operator in pipeline.operators}
    assert made > 1000 and refused > 1000
    assert len(kinds) == 4 + len(RESAMPLED) + 1 + 2 + 8


def test_numbers_are_drawn_in_single_precision(kernel):
    """0.49 of a square of 75 pixels has sides of 52.5, which are 52 in double precision, and 53 in torch's."""
    numbers = {"scale": [0.49, 0.49], "ratio": [1.0, 1.0]}
    ops = [{"op": "RandomResizedCrop", "size": [75, 75], "interpolation": "bilinear", **numbers}]
    erasing = {"op": "RandomErasing", "p": 1.0, **numbers}
    pipeline = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": [*ops, erasing]})
    job, ((top, left, bottom, right),) = file_plan(pipeline, kernel).job((75, 75), (0, 0, 0, 0))
    assert (job.width, job.height, bottom - top, right - left) == (53, 53, 53, 53)


NOT_DRAWN = {
    "another filter": [("Resize", {"size": [9, 9], "interpolation": "nearest"})],
    "borders": [("RandomCrop", {"size": [9, 9], "padding": [1, 1, 1, 1]})],
    "an operator of Pillow's": [("RandomResizedCrop", {"size": [9, 9]}), ("Grayscale", {"channels": 3})],
    "two resizes": [("Resize", {"size": [20, 20]}), ("RandomResizedCrop", {"size": [9, 9]})],
    "a flip before the resize": [("RandomHorizontalFlip", {}), ("RandomResizedCrop", {"size": [9, 9]})],
    "no fixed size": [("Resize", {"size": 20})],
}


@pytest.mark.parametrize("name", NOT_DRAWN)
def test_what_is_drawn_in_python(kernel, name):
    usual = {"max_size": None, "interpolation": "bilinear"}, {"pad_if_needed": False, "fill": [0], "padding_mode": "edge"}
    defaults = {
        "Resize": usual[0], "RandomCrop": usual[1], "RandomHorizontalFlip": {"p": 0.5}, "Grayscale": {},
        "RandomResizedCrop": {"scale": [0.1, 1.0], "ratio": [0.7, 1.4], "interpolation": "bilinear"},
    }  # fmt: skip
    ops = [{"op": op, **defaults[op], **parameters} for op, parameters in NOT_DRAWN[name]]
    assert file_plan(Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": ops}), kernel) is None


def test_without_a_kernel_there_is_no_plan():
    assert file_plan(Random(0).pipeline(), None) is None


def test_a_kernel_that_draws_otherwise_is_not_asked(kernel, monkeypatch):
    pipeline = Random(3).pipeline()
    assert fileplan.first_difference(kernel) == "" and file_plan(pipeline, kernel) is not None
    fileplan._agrees.cache_clear()
    with monkeypatch.context() as other:
        other.setattr("csd_engine.arithmetic.keyed._EXP_TERMS", (2.0, 1.0))  # as if this computer computed differently
        with pytest.warns(UserWarning, match="draws otherwise than Python: image 0 of .* please report"):
            assert file_plan(pipeline, kernel) is None
        assert file_plan(pipeline, kernel) is None  # no second warning
    fileplan._agrees.cache_clear()
