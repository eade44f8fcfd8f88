"""Python runs this when it starts, in the processes that tests start: tests/conftest.py has put this directory on PYTHONPATH.

What torchvision has for torch.compile brings torch._dynamo with it, which takes as long as all else of torch and torchvision
together, 2.5 s of a processor; and the tests import them in a hundred processes and more. No test compiles a model. So here
torch._dynamo is imported by whoever calls it.
"""

import sys
from contextlib import contextmanager

_COMPILER = "torch._dynamo.utils"


@contextmanager
def _boxes():
    """They ask one function of its, on GPUs."""

    def is_compile_supported(device_type):
        from torch._dynamo import utils

        return utils.is_compile_supported(device_type)

    sys.modules[_COMPILER] = later = type(sys)(_COMPILER)
    later.is_compile_supported = is_compile_supported
    yield
    del sys.modules[_COMPILER]


@contextmanager
def _tensors():
    """They keep it from compiling one function."""
    import torch

    disable, torch.compiler.disable = torch.compiler.disable, lambda function: function
    yield
    torch.compiler.disable = disable


_LIGHTER = {"torchvision.ops.roi_align": _boxes, "torchvision.tv_tensors": _tensors}


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in _LIGHTER or "torch._dynamo" in sys.modules:
            return None
        from importlib.machinery import PathFinder, SourceFileLoader

        class Loader(SourceFileLoader):
            def exec_module(self, module):
                with _LIGHTER[name]():
                    super().exec_module(module)

        found = PathFinder.find_spec(name, path)
        if found:
            found.loader = Loader(name, found.origin)
        return found


sys.meta_path.insert(0, _Finder())
