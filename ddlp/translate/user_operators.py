"""A user's own operators: functions with numpy and Pillow in a separate file. A device can run them too.

    # my_ops.py
    def vignette(image, rng, strength=0.5): ...

    ops = ddlp.load_operators("my_ops.py")
    transform = Compose([RandomResizedCrop(224), ops.vignette(strength=0.3), ToTensor()])

docs/operators.md says what these functions may do.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from csd_engine.errors import OperatorFileError
from csd_engine.prepare.operator_file import MAX_BYTES, SUFFIX, OperatorCall, OperatorFile
from csd_engine.transforms import checks
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.user import named_values
from ddlp.process.user_warnings import warn_user
from ddlp.translate.parameters import plain

__all__ = ["Operators", "UserOperator", "load_operators", "read_operators"]

_THERE = {"numpy", "PIL", *sys.stdlib_module_names}
_OTHER_DRAWS = ("random.", "numpy.random.", "secrets.", "os.urandom")


def load_operators(path: str | os.PathLike[str]) -> Operators:
    """Return the functions of a file, for torchvision's pipelines on the host and on a device.

    Each function takes a PIL image as its first argument, and returns an image of the same mode and size (or a uint8 array). A
    parameter named ``rng`` gets a generator (`csd_engine.arithmetic.rng.Rng`, with the names of numpy's methods). A call with
    the other parameters, as in ``ops.vignette(strength=0.3)``, gives a transform. The file is read now; later changes have no
    effect.

    Raises:
        OperatorFileError: the file can't be read, does not run, or needs what a device does not have; names the line.
    """
    source = read_operators(path)
    return Operators(OperatorFile(source, os.path.abspath(os.fspath(path))))


def read_operators(path: str | os.PathLike[str]) -> bytes:
    """Read and check a file without running it. Its `csd_engine.prepare.operator_file.content_hash` is its name on a device.

    Raises:
        OperatorFileError: it can't be read, or needs what a device does not have; names the line.
    """
    name = os.path.basename(os.fspath(path))
    try:
        with open(path, "rb") as stream:
            source = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise OperatorFileError(f"the operators file {Path(path).absolute()} can't be read: {error.strerror}") from None
    if len(source) > MAX_BYTES:
        raise OperatorFileError(f"{name} is larger than {MAX_BYTES} bytes; keep data out of the file of operators")
    try:
        tree = ast.parse(source, name)
    except SyntaxError as error:
        raise OperatorFileError(f"{name}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise OperatorFileError(f"{name}: {error}") from None
    modules: dict[str, str] = {}  # a name that an import binds in the file -> the full name
    nodes = list(_run_time(tree))
    for node in nodes:
        for here, there in _imports(node):
            if there.partition(".")[0] not in _THERE:
                raise OperatorFileError(
                    f"{name}, line {node.lineno} imports {there.partition('.')[0] or 'from its own package'}, which a device "  # type: ignore[attr-defined]
                    "does not have: one file travels alone and uses Python's standard library, numpy and Pillow. Leave what "
                    "needs more in an ordinary transform, which the host runs"
                )
            modules[here] = there
        if isinstance(node, ast.Name) and node.id == "__file__":
            raise OperatorFileError(f"{name}, line {node.lineno} uses __file__, but what lies beside the file does not travel")
    for node in nodes:
        called = _called(node, modules) if isinstance(node, ast.Call) else ""
        if called.startswith(_OTHER_DRAWS):
            warn_user(
                f"ddlp: {name}, line {node.lineno} calls {called}: its numbers differ from side to side and from run to run. "  # type: ignore[attr-defined]
                "Give the function a parameter named rng and draw from it: rng.uniform, rng.integers, rng.normal, ..."
            )
    return source


def _run_time(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a file, without the parts that only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield from (other, *_run_time(other))
            continue
        yield child
        yield from _run_time(child)


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(name here, full name there) of each thing imported; the full name is empty for a relative import."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, "" if node.level else f"{node.module}.{alias.name}"


def _called(call: ast.Call, modules: dict[str, str]) -> str:
    """Full name of a called function, e.g. numpy.random.uniform; empty if the imports don't tell it."""
    names, target = [], call.func
    while isinstance(target, ast.Attribute):
        names.append(target.attr)
        target = target.value
    if not isinstance(target, ast.Name) or target.id not in modules:
        return ""
    return ".".join([modules[target.id], *reversed(names)])


class Operators:
    """The functions of one file; ``ops.vignette(strength=0.3)`` is a transform. Made by `load_operators`."""

    def __init__(self, file: OperatorFile) -> None:
        self._file = file

    def __getattr__(self, name: str) -> OperatorFunction:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._file.functions:
            known = ", ".join(self._file.functions) or "none"
            raise AttributeError(f"{self._file.name} has no function {name!r}; its functions are: {known}")
        return OperatorFunction(self._file, name)

    def __dir__(self) -> list[str]:
        return list(self._file.functions)

    def __repr__(self) -> str:
        return f"<operators of {self._file.name} ({self._file.hash}): {', '.join(self._file.functions) or 'none'}>"

    def __reduce__(self) -> Any:
        return _operators, (self._file.source, self._file.path)


def _operators(source: bytes, path: str) -> Operators:
    return Operators(OperatorFile(source, path))


class OperatorFunction:
    """A function of a file of operators. A call with its parameters gives the transform.

    Raises:
        OperatorFileError: it can't be an operator, or doesn't take these parameters.
        ValueError: a parameter is not a plain value.
    """

    def __init__(self, file: OperatorFile, name: str) -> None:
        self._file, self.__name__ = file, name
        self.__signature__ = file.signature(name)
        self.__doc__ = inspect.getdoc(file.functions[name])

    def __call__(self, *arguments: Any, **parameters: Any) -> UserOperator:
        if arguments and isinstance(arguments[0], (Image.Image, torch.Tensor)):
            raise TypeError(f"{self.__name__} was called with an image; write {self.__name__}() to make the transform first")
        try:
            given = self.__signature__.bind(*arguments, **parameters).arguments
        except TypeError as error:
            raise TypeError(f"{self._file.name}: {self.__name__}{self.__signature__}: {error}") from None
        return UserOperator(self._file, self.__name__, {name: plain(value) for name, value in given.items()})

    def __repr__(self) -> str:
        return f"<operator {self.__name__}{self.__signature__} of {self._file.name}; call it to make a transform>"


class UserOperator:
    """A user's function with its parameters: a transform of PIL images, for torchvision pipelines in ddlp and elsewhere.

    A direct call draws from torch's generator. In a pipeline of ddlp it draws from the sample's key. Its pickle contains the
    file.
    """

    def __init__(
        self, file: OperatorFile, function: str, parameters: dict[str, Any], size: tuple[int, int] | None = None
    ) -> None:
        self.file, self.function, self.size = file, function, size
        try:
            self._parameters = named_values(parameters)
        except ValueError as error:
            raise ValueError(f"{file.name}: {function} with {parameters!r:.200}: {error}") from None
        self._call = file.call(function, self.parameters)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name. Lists are tuples, as the function gets them."""
        return dict(self._parameters)

    def sized(self, height: int, width: int) -> UserOperator:
        """Return this operator with results of this size for images of any size. Each call checks the size."""
        return UserOperator(self.file, self.function, self.parameters, checks.size([height, width]))

    def to_data(self) -> dict[str, Any]:
        """The operator as plain data: the file's hash, and no code."""
        size = None if self.size is None else list(self.size)
        return {"op": "User", "file": self.file.hash, "function": self.function, "parameters": self.parameters, "size": size}

    def __call__(self, image: Image.Image) -> Image.Image:
        if not isinstance(image, Image.Image):
            raise TypeError(f"{self!r} takes a PIL image, got {type(image).__name__}; put it before ToTensor or ToImage")
        return self._call(image, int(torch.randint(2**63 - 1, ())), self.size)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        sized = "" if self.size is None else ".sized({}, {})".format(*self.size)
        return f"{self.function}({given}){sized} of {self.file.name}"

    def __reduce__(self) -> Any:
        return _operator, (self.file.source, self.file.path, self.function, self.parameters, self.size)


def _operator(
    source: bytes, path: str, function: str, parameters: dict[str, Any], size: tuple[int, int] | None
) -> UserOperator:
    return UserOperator(OperatorFile(source, path), function, parameters, size)


def operator_files(pipeline: Pipeline) -> list[OperatorFile]:
    """The files that a translated pipeline's operators come from."""
    calls = [operator.call for operator in pipeline.user_operators]
    return list({call.file.hash: call.file for call in calls if isinstance(call, OperatorCall)}.values())


def put_operators(files: Iterable[OperatorFile], directory: Path) -> None:
    """Write files to the directory in which an engine of this process finds them; raises OSError."""
    for file in files:
        path = directory / f"{file.hash}{SUFFIX}"
        if not path.exists():
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as stream:  # mode 0600
                stream.write(file.source)
            os.replace(stream.name, path)


def by_name(text: str, files: Iterable[OperatorFile]) -> str:
    """A device's message with the files' names as the user knows them. A device knows only their hashes."""
    for file in files:
        text = text.replace(f"{file.hash}{SUFFIX}", f"{file.name} ({file.hash[:8]})")
    return text
