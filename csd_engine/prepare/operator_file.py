"""The user's files of operators: named by the hash of their content, run once a process, called for each sample.

Host and device run the same bytes. A device takes them only from its own directory, to which they were copied by SSH. It never
runs anything that a host sends over the engine's socket.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import stat
import sys
import threading
import types
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np
from PIL import Image

from csd_engine.arithmetic.rng import Rng
from csd_engine.errors import EngineError, OperatorFailed, OperatorFileError
from csd_engine.machine.directory import distrusted, first_above

__all__ = ["MAX_BYTES", "SUFFIX", "OperatorCall", "OperatorDirectory", "OperatorFile", "content_hash"]

MAX_BYTES = 1 << 20
SUFFIX = ".py"
RNG = "rng"  # the parameter that gets the sample's generator
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_FIRST = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_lock = threading.Lock()


def content_hash(source: bytes) -> str:
    """The 32 hex digits (blake2b-128) that name a file with these bytes."""
    return hashlib.blake2b(source, digest_size=16).hexdigest()


class OperatorFile:
    """A file of operators, run in this process.

    Args:
        source: its bytes. Later changes of the file have no effect.
        path: of the file, for messages and tracebacks.

    Raises:
        OperatorFileError: it can't be run here; names the line and the reason.
    """

    def __init__(self, source: bytes, path: str) -> None:
        self.source = source
        self.hash = content_hash(source)
        self.path = path
        self.name = os.path.basename(path)
        self._module = self._run()

    def _run(self) -> types.ModuleType:
        name = f"ddlp_operators_{self.hash}"
        with _lock:
            module = sys.modules.get(name)
            if module is not None:
                return module
            module = types.ModuleType(name)
            sys.modules[name] = module  # dataclasses, among others, look a class's module up
            try:
                exec(compile(self.source, self.path, "exec", dont_inherit=True), module.__dict__)
            except (Exception, SystemExit) as error:
                del sys.modules[name]
                raise OperatorFileError(self._why(error, module)) from error
            return module

    def _why(self, error: BaseException, module: types.ModuleType) -> str:
        if isinstance(error, SyntaxError) and error.filename == self.path:
            version = ".".join(map(str, sys.version_info[:2]))
            return f"{self.name}, line {error.lineno}: Python {version} here does not read it: {error.msg}"
        place = self.place(error, module)
        if isinstance(error, ImportError) and error.name:
            return (
                f"{place} imports {error.name}, which this computer does not have: operators use Python's standard "
                f"library, numpy and Pillow ({error})"
            )
        return f"{place} fails as it is loaded: {type(error).__name__}: {error}"

    def place(self, error: BaseException, module: Optional[types.ModuleType] = None) -> str:
        """The innermost line of this file in an error's traceback, in words."""
        names = (self._module if module is None else module).__dict__
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals is names:
                line = trace.tb_lineno
            trace = trace.tb_next
        return f"{self.name}, line {line}," if line else self.name

    @property
    def functions(self) -> Dict[str, types.FunctionType]:
        """The functions that can be operators: those that the file itself defines, without a leading underscore."""
        return {
            name: value
            for name, value in vars(self._module).items()
            if inspect.isfunction(value) and value.__module__ == self._module.__name__ and not name.startswith("_")
        }

    def signature(self, function: str) -> inspect.Signature:
        """The parameters that the user gives, without the image and ``rng``.

        Raises:
            OperatorFileError: there is no such function, or it can't be an operator.
        """
        operator = self.functions.get(function)
        if operator is None:
            known = ", ".join(self.functions) or "none"
            raise OperatorFileError(f"{self.name} has no function {function!r}; its functions are: {known}")
        parameters = list(inspect.signature(operator).parameters.values())
        where = f"{self.name}: {function}{inspect.signature(operator)}"
        if not parameters or parameters[0].kind not in _FIRST or parameters[0].name == RNG:
            raise OperatorFileError(f"{where}: the first parameter must be the image, a PIL.Image")
        if any(parameter.kind not in _NAMED for parameter in parameters[1:]):
            raise OperatorFileError(f"{where}: all parameters after the image must have names of their own (no *, ** or /)")
        if inspect.isgeneratorfunction(operator) or inspect.iscoroutinefunction(operator):
            raise OperatorFileError(f"{where}: an operator must return its image, not yield or await it")
        return inspect.Signature([parameter for parameter in parameters[1:] if parameter.name != RNG])

    def call(self, function: str, parameters: Mapping[str, Any]) -> OperatorCall:
        """Return a function with its parameters.

        Raises:
            OperatorFileError: there is no such function, or it does not take these parameters.
        """
        signature = self.signature(function)
        try:
            signature.bind(**parameters)
        except TypeError as error:
            raise OperatorFileError(f"{self.name}: {function}{signature}: {error}, given were {sorted(parameters)!r}") from None
        return OperatorCall(self, function, dict(parameters))


class OperatorCall:
    """A user's function with its parameters, which is called for each sample. Several threads may call it at once."""

    def __init__(self, file: OperatorFile, function: str, parameters: Dict[str, Any]) -> None:
        self.file = file
        self.name = function
        self._function: Callable[..., Any] = file.functions[function]
        self._parameters = parameters
        self._draws = RNG in inspect.signature(self._function).parameters

    def __call__(self, image: Image.Image, key: int, size: Optional[Tuple[int, int]] = None) -> Image.Image:
        """Call the function, and return its result after checks.

        Args:
            image: of mode RGB or L. The function may draw on it.
            key: 64 bits, for ``rng``.
            size: (height, width) that the result must have; None: the image's own.

        Raises:
            OperatorFailed: the function raised (its exception is the cause), or returned something other than such an image.
        """
        if type(image) is not Image.Image:
            image = image.copy()  # the class of an opened file has its path, which differs between host and device
        mode = image.mode
        width, height = image.size
        expected = (height, width) if size is None else size
        more = {RNG: Rng(key)} if self._draws else {}
        try:
            result = self._function(image, **self._parameters, **more)
        except (Exception, SystemExit) as error:
            place = self.file.place(error)
            raise OperatorFailed(f"{place} in {self.name}: {type(error).__name__}: {error}") from error
        if isinstance(result, np.ndarray):
            result = self._from_array(result, mode)
        if not isinstance(result, Image.Image):
            raise self._wrong(f"a {type(result).__name__}", "return a PIL.Image or a uint8 array")
        if result.mode != mode:
            raise self._wrong(f"an image of mode {result.mode} for one of {mode}", f"end with .convert({mode!r})")
        if (result.height, result.width) != expected:
            raise self._wrong(
                f"{result.width}x{result.height} pixels, expected were {expected[1]}x{expected[0]} (width x height)",
                f"keep the image's size, or say the size of the result: {self.name}(...).sized(height, width)",
            )
        return result

    def _wrong(self, what: str, way_out: str) -> OperatorFailed:
        return OperatorFailed(f"{self.file.name}: {self.name} returned {what}; {way_out}")

    def _from_array(self, array: np.ndarray, mode: str) -> Image.Image:
        shapes = {"RGB": "(height, width, 3)", "L": "(height, width)"}
        fits = array.ndim == 3 and array.shape[2] == 3 if mode == "RGB" else array.ndim == 2
        if array.dtype != np.uint8 or not fits or not array.size:
            raise self._wrong(
                f"{array.dtype} of shape {array.shape}",
                f"an array must be uint8 of {shapes[mode]}: np.clip(np.rint(array), 0, 255).astype(np.uint8)",
            )
        return Image.fromarray(np.ascontiguousarray(array))


class OperatorDirectory:
    """The directory of one engine's operator files, ``<hash>.py`` each. Each job reads it anew.

    A file is run only if the hash of its bytes is its name, and only if nobody else could have written it. Both are checked
    before each run. `OperatorDirectory` itself runs files only in `call`.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @staticmethod
    def at_start(path: str, hosts_write: Sequence[str]) -> OperatorDirectory:
        """Return the directory if it is safe to run files from it.

        Args:
            path: of the directory.
            hosts_write: real paths of directories that hosts may write to: the data sets' roots, the spool.

        Raises:
            EngineError: it does not exist, others may write to it, or it lies below one of ``hosts_write``.
        """
        real = os.path.realpath(path)
        if not os.path.isdir(real):
            raise EngineError(f"--operators {path}: not a directory here. Make it: mkdir -m 700 {path}")
        trouble = distrusted(os.stat(real))
        if trouble:
            raise EngineError(f"--operators {path}: {trouble}. What lies there is run: chmod 700 it, as the engine's user.")
        above = first_above(real, hosts_write)
        if above is not None:
            raise EngineError(
                f"--operators {path} lies below {above}, to which hosts may write. What lies there is run: choose a "
                "directory outside all --root directories and the --spool."
            )
        return OperatorDirectory(real)

    def read(self, file: str) -> bytes:
        """Return the bytes of a file after checks.

        Raises:
            OperatorFileError: it does not exist, was changed, or others may write to it.
        """
        path = os.path.join(self.path, file + SUFFIX)
        if re.fullmatch("[0-9a-f]{32}", file) is None:
            raise OperatorFileError(f"{file!r:.80} is not an operator file's hash (32 hex digits)")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise OperatorFileError(
                f"the device does not have {file}{SUFFIX}: `ddlp deploy ... --operators FILE` copies it there; by hand, "
                f"copy it to {path}"
            ) from None
        except OSError as error:
            raise OperatorFileError(f"{path} on the device can't be read: {error.strerror}. Deploy it again.") from None
        try:
            status = os.fstat(descriptor)
            trouble = "it is not a regular file" if not stat.S_ISREG(status.st_mode) else distrusted(status)
            source = b""
            if not trouble:
                with open(descriptor, "rb", closefd=False) as stream:
                    source = stream.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
        if not trouble and content_hash(source) != file:
            trouble = "its bytes are not those that its name says: it was changed"
        if trouble:
            raise OperatorFileError(f"{path} on the device is not used: {trouble}. Deploy it again.")
        return source

    def call(self, file: str, function: str, parameters: Mapping[str, Any]) -> OperatorCall:
        """Return a function of a file. The file is run now if this process has not run it yet. For worker processes only."""
        return OperatorFile(self.read(file), os.path.join(self.path, file + SUFFIX)).call(function, parameters)
