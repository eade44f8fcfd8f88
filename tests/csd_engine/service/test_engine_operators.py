"""Users' operators on a real engine: found by hash in its directory, run by workers only; a refusal says what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from csd_engine.batchfile.reader import read_batch
from csd_engine.errors import EngineRefused
from csd_engine.prepare.operator_file import OperatorFile, content_hash
from csd_engine.prepare.sample import sample_digest
from csd_engine.protocol import codec as say
from csd_engine.transforms.pipeline import Pipeline
from ddlp.sources.engine.link import Probed
from tests.engine_process import EPOCH, SEED, pipeline, refused_start, wait_for

MY_OPS = Path(__file__).parents[2] / "my_ops.py"
PLAIN = pipeline()
LINE = 1 + [line.lstrip()[:6] for line in MY_OPS.read_text().splitlines()].index("raise ")


@pytest.fixture(scope="module")
def operators(tmp_path_factory):
    """A directory that only its owner may enter. Files are found there by their hash, so tests may share it."""
    return tmp_path_factory.mktemp("operators")


@pytest.fixture(scope="module")
def engine(module_start, jpegs, operators):
    return module_start("--root", str(jpegs[0]), "--operators", str(operators))


@pytest.fixture
def link(engine):
    link = engine.link()
    yield link
    link.close()


def put(file, directory):
    path = directory / f"{file.hash}.py"
    path.write_bytes(file.source)
    path.chmod(0o600)
    return path


def use(recipe, file, function, run_here=True, **parameters):
    """Append a function of the file to the recipe's pipeline. ``run_here=False`` if this process can't load the file."""
    data = PLAIN.to_data()
    user = {"op": "User", "file": file.hash, "function": function, "parameters": parameters, "size": None}
    data["ops"] = [*data["ops"], user]
    recipe.pipeline = Pipeline.parse(data, (lambda _, name, given: file.call(name, given)) if run_here else None)
    return recipe


def test_batches_come_bit_by_bit_and_files_are_found_while_it_runs(link, recipe, operators):
    file = OperatorFile(MY_OPS.read_bytes(), str(MY_OPS))
    plain = recipe.expected(recipe.items(0))
    use(recipe, file, "noise", scale=20)
    with pytest.raises(EngineRefused, match=rf"does not have {file.hash}.py: `ddlp deploy .*{operators}/{file.hash}.py"):
        recipe.open(link, SimpleQueue())
    put(file, operators)
    events = SimpleQueue()
    job = recipe.open(link, events)
    assert job.probe(SEED, EPOCH, [(0, 0)]) == [Probed(sample_digest(recipe.expected(recipe.items(0))[0], None))]
    for number in range(3):
        items = recipe.lease(job, number, 5 * number)
        recipe.check(job.path(wait_for(events, say.Published)), number, items)
    assert (recipe.expected(recipe.items(0)) != plain).any()
    assert os.listdir(operators) == [f"{file.hash}.py"]


def test_an_engine_without_a_directory_says_how_to_get_one(start, recipe):
    engine = start("--root", str(recipe.root))
    link = engine.link()
    use(recipe, OperatorFile(MY_OPS.read_bytes(), str(MY_OPS)), "invert")
    with pytest.raises(EngineRefused, match="started without --operators DIR. `ddlp deploy ... --operators FILE`"):
        recipe.open(link, SimpleQueue())
    link.close()


def test_a_changed_file_is_not_run(link, recipe, operators, tmp_path):
    """The service checks the file when the job opens, and the worker that runs it checks it again."""
    file = OperatorFile(MY_OPS.read_bytes() + b"# that is changed\n", str(MY_OPS))
    path = put(file, operators)
    job = use(recipe, file, "invert").open(link, SimpleQueue())
    path.write_text(f"open({str(tmp_path / 'was run')!r}, 'w')\ndef invert(image): return image\n")
    (answer,) = job.probe(SEED, EPOCH, [(0, 0)])
    assert answer.refused and "it was changed" in answer.error
    with pytest.raises(EngineRefused, match="its bytes are not those that its name says"):
        recipe.open(link, SimpleQueue())
    assert not (tmp_path / "was run").exists()


def test_what_its_worker_cannot_load_is_refused_with_the_line(link, recipe, operators):
    for text, function, parameters, match in (
        ("import torchvision_of_mine", "f", {}, "line 1, imports torchvision_of_mine, which this computer does not have"),
        ("def f(image): return image", "f", {"strength": 1}, "strength"),
    ):
        file = SimpleNamespace(source=text.encode(), hash=content_hash(text.encode()))
        put(file, operators)
        events = SimpleQueue()
        job = use(recipe, file, function, run_here=False, **parameters).open(link, events)
        (answer,) = job.probe(SEED, EPOCH, [(0, 0)])
        assert answer.refused and re.search(match, answer.error), answer
        job.send_lease(1, "0" * 32, SEED, EPOCH, [(0, 0)])
        failed = wait_for(events, say.Failed)
        assert failed.fatal and re.search(match, failed.reason), failed


def test_prints_and_a_forgotten_breakpoint_do_not_garble_the_protocol(engine, link, recipe, operators):
    """What it prints goes to the engine's log. Its standard input is empty: it does not read the service's commands."""
    text = (
        "import os, sys\n"
        "def f(image):\n"
        "    print('hello from f')\n"
        '    os.write(1, b\'{"say": "published"}\\n\')\n'
        "    assert sys.stdin.read() == ''\n"
        "    return image\n"
        "def g(image):\n"
        "    breakpoint()\n"
        "    return image\n"
    )
    file = OperatorFile(text.encode(), "my_ops.py")
    put(file, operators)
    events = SimpleQueue()
    plain = recipe.expected(recipe.items(0))
    job = use(recipe, file, "f").open(link, events)
    items = recipe.items(0)
    for number in range(3):
        job.send_lease(number, recipe.identity(items), SEED, EPOCH, items)
        published = wait_for(events, (say.Published, say.Failed))
        assert isinstance(published, say.Published), published
    assert np.array_equal(read_batch(job.path(published), recipe.identity(items), 2, recipe.layout).images, plain)
    job.close(2)
    job = use(recipe, file, "g").open(link, events)
    job.send_lease(1, recipe.identity(items), SEED, EPOCH, items)
    assert re.search("line [89], in g: BdbQuit", wait_for(events, say.Failed).reason)
    assert "hello from f" in engine.log


def test_one_that_never_ends_costs_its_worker(start, recipe, operators):
    """The worker is killed and replaced, and other jobs go on."""
    engine = start("--root", str(recipe.root), "--operators", str(operators), "--worker-timeout", "1")
    file = OperatorFile(b"def f(image):\n    while True: pass\n", "my_ops.py")
    put(file, operators)
    link = engine.link()
    events = SimpleQueue()
    job = use(recipe, file, "f").open(link, events)
    job.send_lease(1, "0" * 32, SEED, EPOCH, [(0, 0)])
    assert "the worker process" in wait_for(events, say.Failed).reason
    job.close()
    recipe.pipeline = PLAIN
    other = SimpleQueue()
    job = recipe.open(link, other)
    items = recipe.lease(job, 1)
    recipe.check(job.path(wait_for(other, say.Published)), 1, items)
    link.close()


def test_one_that_fails_on_a_sample_fails_its_lease_only(link, recipe, operators):
    file = OperatorFile(MY_OPS.read_bytes(), str(MY_OPS))
    put(file, operators)
    events = SimpleQueue()
    job = use(recipe, file, "moody", error="SystemExit").open(link, events)
    kinds = set()
    for number in range(24):
        job.send_lease(number, recipe.identity([(number, 0)]), SEED, EPOCH, [(number, 0)])
        event = wait_for(events, (say.Published, say.Failed))
        kinds.add(type(event))
        if isinstance(event, say.Failed):
            assert not event.fatal
            assert f"{file.hash}.py, line {LINE}, in moody: SystemExit: not in the mood. Correct the operator" in event.reason
    assert kinds == {say.Published, say.Failed}


@pytest.mark.parametrize("where", ["below a root", "below the spool", "writable", "missing"])
def test_an_engine_does_not_start_with_an_unsafe_directory(home, recipe, tmp_path, where):
    directory = {"below a root": recipe.root / "operators", "below the spool": home / "spool" / "operators"}.get(
        where, tmp_path / "operators"
    )
    if where != "missing":
        directory.mkdir(mode=0o700, parents=True)
    if where == "writable":
        directory.chmod(0o777)
    said = refused_start(home, recipe.root, "--operators", str(directory))
    if where == "below a root":
        directory.rmdir()
    assert f"csd_engine: --operators {directory}" in said
