"""Builds the kernel (csd_engine/kernels) with the package, with $CC, cc, gcc, clang or zig; all else stands in setup.cfg.

The library is loaded with ctypes, so one wheel serves every Python on its platform: py3-none-linux_x86_64. Without a
compiler the package installs all the same, works through Pillow, and its wheel is py3-none-any. scripts/build_backend.py asks
pip for zig where there is no compiler. DDLP_WHEEL=aarch64-linux-gnu makes a wheel for others, by zig: scripts/wheels.sh.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:  # nor is it asked for a wheel yet, only for what it needs to make one
        bdist_wheel = None

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from csd_engine.kernels import compilers  # noqa: E402 needs nothing but the standard library
from csd_engine.kernels.build import KernelError, build_kernel, c_files  # noqa: E402

# A wheel for others' computers: of which system, by its GNU name, and the platform that pip knows it by.
WHEEL = os.environ.get("DDLP_WHEEL", "")
PLATFORMS = {
    "x86_64-linux-gnu": "manylinux2014_x86_64",
    "aarch64-linux-gnu": "manylinux2014_aarch64",
    "arm-linux-gnueabihf": "manylinux2014_armv7l",
}
tried = set()  # what this process has compiled, or could not


class BuildKernel(build_ext):
    """Compiles the kernel as a plain shared library; that it cannot is no error."""

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, extension):
        target = self.get_ext_fullpath(extension.name)
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        if target in tried:
            return  # a wheel asks twice
        tried.add(target)
        if os.path.exists(target):
            os.unlink(target)  # of an earlier build: not to be taken for this one's
        if WHEEL:  # to be with the kernel or not at all
            zig = compilers.zig(WHEEL)
            if not zig:
                sys.exit(f"no wheel for DDLP_WHEEL={WHEEL}: pip install ziglang, and choose one of {', '.join(PLATFORMS)}")
            build_kernel(target, zig, ['-DDDLP_ORIGIN="came with the wheel, "'])
            return
        try:
            build_kernel(target, compilers.find() or "cc")
        except KernelError as error:
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
            if self.root_is_pure:
                return "py3", "none", "any"
            return "py3", "none", PLATFORMS[WHEEL] if WHEEL else super().get_tag()[2]

    commands["bdist_wheel"] = Wheel

setup(
    ext_modules=[
        Extension("csd_engine.kernels._kernel", [os.path.relpath(path) for path in c_files()], optional=True),
    ],
    cmdclass=commands,
)
