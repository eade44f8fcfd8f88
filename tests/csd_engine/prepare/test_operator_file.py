"""Files of operators: run from their bytes; results are checked; only read from a directory that nobody else can write to."""

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from csd_engine.errors import EngineError, OperatorFailed, OperatorFileError
from csd_engine.prepare.operator_file import MAX_BYTES, OperatorDirectory, OperatorFile, content_hash

MY_OPS = Path(__file__).parents[2] / "my_ops.py"
KEY = 5


def file(text, name="/home/user/my_ops.py"):
    return OperatorFile(text.encode(), name)


def image(mode="RGB", width=20, height=14):
    values = np.random.RandomState(1).randint(0, 256, (height, width, 3)).astype(np.uint8)
    return Image.fromarray(values).convert(mode)


def fails(text, match):
    with pytest.raises(OperatorFailed, match=match) as caught:
        file(f"import numpy as np\n{text}").call("f", {})(image(), KEY)
    return caught.value


def test_a_file_is_named_by_its_bytes_and_run_once():
    text = "import math\ncount = [0]\ncount[0] += 1\ndef f(image):\n    count[0] += 1\n    return image\n# once"
    one, two = file(text), file(text, "/elsewhere/other.py")
    assert one.hash == content_hash(text.encode()) and len(one.hash) == 32
    assert one.functions["f"] is two.functions["f"]
    assert file(text + " more").functions["f"] is not one.functions["f"]
    assert list(one.functions) == ["f"]


def test_dataclasses_and_pickles_in_it_find_their_module():
    text = (
        "from __future__ import annotations\nimport dataclasses, pickle\n@dataclasses.dataclass\nclass A:\n    x: int\n"
        "def f(image):\n    return image if pickle.loads(pickle.dumps(A(1))) == A(1) else None\n"
    )
    assert file(text).call("f", {})(image(), KEY).size == (20, 14)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_and_arrays_come_back_as_images(mode):
    ops = OperatorFile(MY_OPS.read_bytes(), str(MY_OPS))
    source = image(mode)
    before = source.tobytes()
    for name in ("vignette", "noise", "invert"):
        result = ops.call(name, {})(source, KEY)
        assert type(result) is Image.Image and (result.mode, result.size) == (source.mode, source.size)
        assert result.tobytes() != before == source.tobytes()
    boxed = ops.call("letterbox", {"side": 16})(source, KEY, (16, 16))
    assert boxed.size == (16, 16) and boxed.mode == mode


def test_the_key_alone_decides():
    call = OperatorFile(MY_OPS.read_bytes(), str(MY_OPS)).call("noise", {"scale": 30})
    assert call(image(), 1).tobytes() == call(image(), 1).tobytes() != call(image(), 2).tobytes()


def test_a_files_path_is_not_told(tmp_path):
    """The path differs between host and engine."""
    image().save(tmp_path / "x.png")
    call = file("def f(image):\n    assert not hasattr(image, 'filename')\n    return image").call("f", {})
    with Image.open(tmp_path / "x.png") as source:
        assert call(source, KEY).size == source.size


@pytest.mark.parametrize(
    "text, match",
    [
        ("def f(image): return None", r"my_ops.py: f returned a NoneType; return a PIL.Image"),
        ("def f(image): return image.convert('L')", r"mode L for one of RGB; end with .convert\('RGB'\)"),
        ("def f(image): return image.resize((3, 4))", r"3x4 pixels, expected were 20x14 .*f\(...\).sized"),
        ("def f(image): return np.asarray(image) / 2", r"float64 of shape \(14, 20, 3\).*astype\(np.uint8\)"),
        ("def f(image): return np.asarray(image)[..., 0]", r"uint8 of shape \(14, 20\).*\(height, width, 3\)"),
        ("def f(image): return np.asarray(image)[:5]", "20x5 pixels"),
        ("def f(image): return np.asarray(image)[:0]", r"uint8 of shape \(0, 20, 3\)"),
        ("def f(image):\n    x = 1\n    return image / 2", r"my_ops.py, line 4, in f: TypeError"),
        ("def g(i):\n    return 1 // 0\ndef f(image): return g(image)", r"my_ops.py, line 3, in f: ZeroDivisionError"),
        ("def f(image):\n    return np.ones(3).reshape(2, 2)", r"my_ops.py, line 3, in f: ValueError"),
        ("import sys\ndef f(image): sys.exit(3)", r"line 3, in f: SystemExit: 3"),
        ("def f(image): return f(image)", r"line 2, in f: RecursionError"),
    ],
)
def test_what_a_function_does_wrong_is_said_with_its_line(text, match):
    fails(text, match)


def test_the_users_exception_is_the_cause():
    assert isinstance(fails("def f(image): {}['key']", "KeyError: 'key'").__cause__, KeyError)


@pytest.mark.parametrize(
    "text, match",
    [
        ("import nothing_of_this_name", "my_ops.py, line 1, imports nothing_of_this_name, which this computer does not"),
        ("import math\nfrom PIL import NoSuchThing", "line 2, imports PIL, which"),
        ("def f(image)\n    return", "my_ops.py, line 1: Python 3.* here does not read it"),
        ("x = 1\ny = x / 0", r"my_ops.py, line 2, fails as it is loaded: ZeroDivisionError"),
        ("raise SystemExit(1)", "SystemExit"),
        ("x = '\0'", "my_ops.py"),
    ],
)
def test_a_file_that_cannot_be_loaded_says_where(text, match):
    before = set(sys.modules)
    with pytest.raises(OperatorFileError, match=match):
        file(text)
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "text, parameters, match",
    [
        ("def g(image): pass", {}, r"no function 'f'; its functions are: g"),
        ("from os.path import join as f", {}, "its functions are: none"),
        ("f = print", {}, "its functions are: none"),
        ("class f: pass", {}, "its functions are: none"),
        ("def f(): pass", {}, "first parameter must be the image"),
        ("def f(rng): pass", {}, "first parameter must be the image"),
        ("def f(*images): pass", {}, "first parameter must be the image"),
        ("def f(image, *more): pass", {}, r"f\(image, \*more\): all parameters"),
        ("def f(image, **more): pass", {}, "must have names of their own"),
        ("def f(image, a, /): pass", {}, "must have names of their own"),
        ("def f(image): yield image", {}, "not yield"),
        ("async def f(image): return image", {}, "not yield or await"),
        ("def f(image, a): pass", {}, r"f\(a\): missing a required argument: 'a', given were \[\]"),
        ("def f(image, a): pass", {"b": 1}, r"given were \['b'\]"),
        ("def f(image, rng): pass", {"rng": 1}, "rng"),
        ("def f(image): pass", {"image": 1}, "image"),
    ],
)
def test_functions_that_do_not_fit_are_refused(text, parameters, match):
    with pytest.raises(OperatorFileError, match=match):
        file(text).call("f", parameters)


def test_errors_cross_processes():
    for error in (OperatorFailed("a"), OperatorFileError("b")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


# -- the directory -------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    directory = tmp_path / "operators"
    directory.mkdir(mode=0o700)
    source = b"def f(image):\n    return image\n"
    path = directory / f"{content_hash(source)}.py"
    path.write_bytes(source)
    path.chmod(0o644)
    return directory, path, path.stem


def test_a_file_is_found_and_leaves_no_cache(stored):
    directory, path, name = stored
    operators = OperatorDirectory.at_start(str(directory), [])
    assert operators.call(name, "f", {})(image(), KEY).tobytes() == image().tobytes()
    assert os.listdir(directory) == [path.name]


def _grow(path):
    path.write_bytes(path.read_bytes() + b"\n" * MAX_BYTES)


@pytest.mark.parametrize(
    "spoil, match",
    [
        (lambda path: path.unlink(), r"does not have [0-9a-f]{32}.py: `ddlp deploy"),
        (lambda path: path.write_bytes(b"import os"), "it was changed"),
        (_grow, "it was changed"),
        (lambda path: path.chmod(0o664), r"others than its owner may write to it \(mode 664\)"),
        (lambda path: os.chown(path, 12345, -1), r"belongs to another user \(uid 12345\)"),
        (lambda path: (path.rename(path.with_suffix(".x")), path.symlink_to(path.with_suffix(".x"))), "can't be read"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not a regular file"),
        (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
    ],
    ids=["missing", "changed", "too large", "writable", "another's", "a link", "a pipe", "a directory"],
)
def test_files_that_are_not_what_their_name_says_are_not_read(stored, spoil, match):
    directory, path, name = stored
    if "user" in match and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    spoil(path)
    with pytest.raises(OperatorFileError, match=match):
        OperatorDirectory(str(directory)).read(name)


@pytest.mark.parametrize("name", ["", "..", "../" * 10 + "etc/passwd", "0" * 31, "0" * 33, "0" * 32 + "\n", "G" * 32])
def test_names_that_are_no_hashes_are_refused(stored, name):
    with pytest.raises(OperatorFileError, match="not an operator file's hash"):
        OperatorDirectory(str(stored[0])).read(name)


def test_directories_that_others_may_write_are_refused(stored, tmp_path):
    directory = stored[0]
    for hosts_write in ([str(tmp_path)], [str(directory)], ["/"]):
        with pytest.raises(EngineError, match="--operators .* lies below"):
            OperatorDirectory.at_start(str(directory), hosts_write)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(EngineError, match="lies below"):
        OperatorDirectory.at_start(str(tmp_path / "link" / "operators"), [str(tmp_path)])
    with pytest.raises(EngineError, match="not a directory here. Make it"):
        OperatorDirectory.at_start(str(tmp_path / "nothing"), [])
    for mode in (0o720, 0o702):
        directory.chmod(mode)
        with pytest.raises(EngineError, match=f"mode {mode:o}.*chmod 700"):
            OperatorDirectory.at_start(str(directory), [])
