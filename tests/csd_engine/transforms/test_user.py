"""A user's function in a pipeline: hostile data, where it may stand, which random numbers it draws."""

import json
from pathlib import Path

import numpy as np
import pytest

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.errors import OperatorFailed, PipelineError
from csd_engine.prepare.operator_file import OperatorFile
from csd_engine.transforms.pipeline import Pipeline
from tests.small_images import image

FILE = OperatorFile((Path(__file__).parents[2] / "my_ops.py").read_bytes(), "my_ops.py")
CENTER = {"op": "CenterCrop", "size": [24, 24]}
FLIP = {"op": "RandomHorizontalFlip", "p": 0.5}
CUTOUT = {"op": "Cutout", "holes": 1, "length": 8}


def user(function="noise", size=None, file=FILE.hash, **parameters):
    return {"op": "User", "file": file, "function": function, "parameters": parameters, "size": size}


def calls(file, function, parameters):
    assert file == FILE.hash
    return FILE.call(function, parameters)


def pipeline(*ops, calls=calls, mode="RGB"):
    return Pipeline.parse({"format": 1, "order": "pillow13", "mode": mode, "ops": list(ops)}, calls)


def run(pipe, source=None, key=(0, 0, 0, 0)):
    source = source or image()
    plan = pipe.draw(source.size, Keyed(*key))
    out = np.zeros(plan.shape, dtype=np.uint8)
    pipe.run(source, Keyed(*key), out, np.zeros((pipe.boxes, 4), np.int32) if pipe.boxes else None)
    return out


def test_data_go_round_and_the_digest_holds_the_file_and_all_parameters():
    given = [1, 1.0, -0.5, "text", None, True, [[1, [2.5]], []]]
    ops = [user("noise", scale=value) for value in given] + [user("vignette"), user(size=[24, 25]), user(file="0" * 32)]
    digests = set()
    for op in ops:
        pipe = pipeline(op, calls=None)
        assert pipe.to_data()["ops"] == [op]
        again = Pipeline.parse(json.loads(json.dumps(pipe.to_data())))
        assert again == pipe and again.digest == pipe.digest
        digests.add(pipe.digest)
    assert len(digests) == len(ops)
    assert pipeline(user(), calls=None) == pipeline(user())  # equality does not depend on whether it is loaded


HOSTILE = [
    (user(file="../../etc/passwd"), r"User: file='../../etc/passwd': expected a file's hash"),
    (user(file=FILE.hash.upper()), "expected a file's hash"),
    (user(file=FILE.hash + "\n"), "expected a file's hash"),
    (user(file=5), "expected a file's hash"),
    (user("__import__"), "function='__import__': expected a name"),
    (user("_private"), "expected a name"),
    (user("a.b"), "expected a name"),
    (user("noise\n"), "expected a name"),
    (user("n" * 65), "expected a name"),
    (user(size=[0, 4]), "size=.*expected an integer from 1"),
    (user(size=[65535, 65535]), "expected at most"),
    (user(size=24), r"expected \[height, width\]"),
    (user(scale=float("nan")), "expected a number"),
    (user(scale=float("inf")), "expected a number"),
    (user(scale=2**63), "expected an integer"),
    (user(scale="x" * 5000), "texts of at most"),
    (user(scale={"a": 1}), "lists of these"),
    (user(scale=b"a"), "lists of these"),
    (user(scale=[[[[[1]]]]]), "nested at most"),
    (user(scale=[0] * 5000), "at most 4096 values"),
    (user(**{f"p{k}": 1 for k in range(65)}), "at most 64 values"),
    ({**user(), "parameters": [["scale", 1]]}, "expected an object"),
    ({**user(), "parameters": {"__class__": 1}}, "expected a name"),
    ({**user(), "parameters": {5: 1}}, "expected a name"),
    ({**user(), "code": "import os"}, "unknown parameter 'code'"),
    ({"op": "User", "file": FILE.hash, "function": "noise"}, "lacks the parameter 'parameters'"),
]


@pytest.mark.parametrize("op, match", HOSTILE)
def test_hostile_data_are_refused_before_anything_is_looked_up(op, match):
    def never(*_):
        raise AssertionError("looked up")

    with pytest.raises(PipelineError, match=match):
        pipeline(op, calls=never)


def test_without_its_file_it_can_be_looked_at_but_not_run():
    pipe = pipeline(CENTER, user(), calls=None)
    assert pipe.output_shape(None) == (24, 24, 3) and pipe.user_operators[0].function == "noise"
    with pytest.raises(PipelineError, match="noise of file .* is not loaded in this process"):
        run(pipe)


def test_it_runs_in_its_turn_and_on_what_came_before():
    plain = run(pipeline(CENTER))
    assert (run(pipeline(CENTER, user("invert"))) == 255 - plain).all()
    assert (run(pipeline(user("invert"), CENTER)) == 255 - plain).all()
    assert (run(pipeline(CENTER, user("invert"), user("invert"))) == plain).all()
    assert run(pipeline(CENTER, user("noise"), mode="L")).shape == (24, 24, 1)


def test_draws_follow_from_the_key_and_change_nothing_behind_them():
    both = pipeline(user("vignette", strength=0.9), user("noise"), CENTER, FLIP)
    assert (run(both, key=(1, 2, 3, 0)) == run(both, key=(1, 2, 3, 0))).all()
    assert (run(both, key=(1, 2, 3, 0)) != run(both, key=(1, 2, 3, 1))).any()
    # The flip after a function does not change with how much the function draws, or whether it draws.
    flips = [
        [pipeline(user(name), CENTER, FLIP).draw((50, 41), Keyed(0, 0, k, 0)).primitives[-1] for k in range(20)]
        for name in ("vignette", "noise", "invert")
    ]
    assert flips[0] == flips[1] == flips[2] and len(set(map(repr, flips[0]))) > 1
    twice = pipeline(user("noise"), user("noise")).draw((50, 41), Keyed(0, 0, 0, 0)).primitives
    assert twice[0].key != twice[1].key


def test_it_stands_in_containers():
    inverted = 255 - run(pipeline(CENTER))
    for op in (
        {"op": "RandomApply", "ops": [user("invert")], "p": 1.0},
        {"op": "RandomChoice", "groups": [[user("invert")], []], "p": [1.0, 0.0]},
        {"op": "RandomOrder", "groups": [[user("invert")], []]},
    ):
        pipe = pipeline(CENTER, op)
        assert pipe.output_shape(None) == (24, 24, 3)
        assert [one.function for one in pipe.user_operators] == ["invert"]
        assert (run(pipe) == inverted).all()


def test_a_given_size_holds_for_what_follows():
    pipe = pipeline(user("letterbox", size=[40, 40], side=40), {**CENTER, "size": [30, 30]})
    assert pipe.output_shape(None) == (30, 30, 3) and run(pipe).shape == (30, 30, 3)
    assert pipeline(user("letterbox", size=[40, 40], side=40)).output_shape(None) == (40, 40, 3)
    with pytest.raises(PipelineError, match="not fixed"):
        pipeline(user("noise")).output_shape(None)
    with pytest.raises(OperatorFailed, match="letterbox returned 39x39 pixels, expected were 40x40"):
        run(pipeline(user("letterbox", size=[40, 40], side=39)))


def test_it_cannot_stand_behind_a_mask():
    with pytest.raises(PipelineError, match="User follows Cutout"):
        pipeline(CENTER, CUTOUT, user())


def test_lists_arrive_as_tuples():
    file = OperatorFile(b"def f(image, a):\n    assert a == (1, (2, 'x')), a\n    return image", "my_ops.py")
    op = user("f", file=file.hash, a=[1, [2, "x"]])
    run(pipeline(op, calls=lambda _, function, parameters: file.call(function, parameters)))
