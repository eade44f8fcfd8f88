"""Builds the kernel (csd_engine/kernels) with the package where there is a C compiler; all else stands in setup.cfg.

The library is loaded with ctypes, so one wheel serves every Python on its platform: py3-none-linux_x86_64. Without a
compiler the package installs all the same, works through Pillow, and its wheel is py3-none-any.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:  # nor is it asked for a wheel yet, only for what it needs to make one
        bdist_wheel = None

KERNELS = os.path.join("csd_engine", "kernels")
tried = set()  # what this process has compiled, or could not


def _load_build():
    """Return csd_engine.kernels.build, from its file: the package cannot be imported before it is installed."""
    spec = importlib.util.spec_from_file_location("kernel_build", os.path.join(KERNELS, "build.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildKernel(build_ext):
    """Compiles the kernel as a plain shared library; that it cannot is no error."""

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, extension):
        build = _load_build()
        target = self.get_ext_fullpath(extension.name)
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        if target in tried:
            return  # a wheel asks twice
        tried.add(target)
        if os.path.exists(target):
            os.unlink(target)  # of an earlier build: not to be taken for this one's
        try:
            build.build_kernel(target, os.environ.get("CC", "cc"))
        except build.KernelError as error:
            print(f"ddlp: no kernel, Pillow will do the work: {error}", file=sys.stderr)


commands = {"build_ext": BuildKernel}
if bdist_wheel:

    class Wheel(bdist_wheel):
        """Tags the wheel by what is in it: the platform's only where the kernel was built."""

        def run(self):
            self.run_command("build_ext")
            extension = self.get_finalized_command("build_ext")
            if not all(map(os.path.exists, extension.get_outputs())):
                self.root_is_pure = True
                self.distribution.ext_modules = []
            super().run()

        def get_tag(self):
            return "py3", "none", "any" if self.root_is_pure else super().get_tag()[2]

    commands["bdist_wheel"] = Wheel

setup(
    ext_modules=[
        Extension("csd_engine.kernels._kernel", sorted(glob(os.path.join(KERNELS, "src", "*.c"))), optional=True),
    ],
    cmdclass=commands,
)
