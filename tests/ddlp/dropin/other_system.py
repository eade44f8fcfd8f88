"""A training script on other systems than Linux, simulated: ``other_system.py DIRECTORY IMAGE...``.

Each is simulated in a process of its own, a fork of this one: importing torch takes most of the time. What one prints is in
DIRECTORY/SYSTEM.stdout, darwin's and win32's, its errors in DIRECTORY/SYSTEM.stderr.

First torch is imported: its wheels for that system need none of this. Then what Python has on Linux only (for win32: on Unix
only) is removed. Then ddlp is imported. Prints what the test compares.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import io
import logging
import os
import random
import select
import signal
import sys
import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed
import zmq  # noqa: F401
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision import datasets, transforms  # noqa: F401

DIRECTORY, *IMAGES = sys.argv[1:]
faulthandler.cancel_dump_traceback_later()  # of tests/forks.py: a fork lacks its thread, and would wait for it at the end
for SYSTEM in ("darwin", "win32"):
    if os.fork() == 0:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{DIRECTORY}/{SYSTEM}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), number)
        break
    if os.wait()[1]:
        sys.exit(SYSTEM)
else:
    sys.exit()
MODULES = {"darwin": (), "win32": ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog")}[SYSTEM]
LINUX = "eventfd memfd_create O_DIRECT O_TMPFILE pidfd_open posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity"
UNIX = (
    "fork forkpty getegid geteuid getgid getuid killpg O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK pread preadv pwrite pwritev "
    "register_at_fork setsid sysconf"
)


class Missing:
    """Makes importing the modules fail that this system lacks."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def simulate() -> None:
    """Remove what the simulated system lacks."""
    for name in [*LINUX.split(), *(UNIX.split() if SYSTEM == "win32" else [])]:
        if hasattr(os, name):
            delattr(os, name)
    if SYSTEM == "win32":
        del select.poll, signal.SIGKILL, signal.SIGSTOP
    del select.epoll
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing())  # type: ignore[arg-type]
    sys.platform = SYSTEM
    real = open

    def without_proc(path: Any, *others: Any, **options: Any) -> Any:
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *others, **options)

    io.open = without_proc  # type: ignore[assignment]
    builtins.open = without_proc


simulate()
import ddlp  # noqa: E402
import ddlp.observe  # noqa: E402
from ddlp.cli import main  # noqa: E402


class Squares(Dataset):
    """The user's own samples, as dicts."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"number": index, "square": torch.tensor([index**2])}


class Numbers(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(7))


def alike(ours: Any, theirs: Any) -> bool:
    """Whether the types and values are the same."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        return torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(alike(ours[key], theirs[key]) for key in ours)
    return len(ours) == len(theirs) and all(map(alike, ours, theirs))


if __name__ == "__main__":
    to_tensor = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
    sets = [TensorDataset(torch.arange(9)), Squares(), Numbers(), ddlp.ImageFiles(IMAGES, list(range(len(IMAGES))), to_tensor)]
    advice: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = advice.append  # type: ignore[method-assign]
    logging.getLogger("ddlp").addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for data in sets:
            for workers in (0, 2) if SYSTEM == "darwin" else (0,):  # the simulated Windows can neither fork nor spawn
                for options in ({}, {"strategy": "wrr"}, {"batch_size": 3, "drop_last": True}):
                    options = {"batch_size": 4, "num_workers": workers, **options}
                    loader = ddlp.DDLPLoader(data, **options)
                    options.pop("strategy", None)
                    ours, theirs = list(ddlp.observe.progress(loader)), list(DataLoader(data, **options))
                    assert alike(ours, theirs), (data, options, ours, theirs)
                    assert loader.report().batches_cpu == len(ours) > 0
                    loader.load_state_dict(loader.state_dict())
        for order in (1, 2):  # torch's own order, from torch's own generator
            torch.manual_seed(order), np.random.seed(order), random.seed(order)
            ours = list(ddlp.DDLPLoader(sets[0], 4, shuffle=True))
            torch.manual_seed(order)
            assert alike(ours, list(DataLoader(sets[0], 4, shuffle=True)))
        said = loader.explain()
        assert "travels    nothing: 1 obstacle," in said and " is not Linux" in said and "gain " not in said
    assert not [one for one in caught if "ddlp" in str(one.message)]
    told = [one.getMessage() for one in advice]
    print(len(told), *told, sep="\n")
    for options in ({"strategy": "csd"}, {"csd": "csd0"}):
        try:
            ddlp.DDLPLoader(sets[3], 4, **options)
        except ddlp.DDLPError as error:
            print(f"{type(error).__name__}: {error}")
    for command in (["status"], ["deploy", "me@there"], ["try", "there"], ["analyse", "there"]):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            print(main(command), said.getvalue().strip())
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main(["--help"])
    print(said.getvalue().split()[1])
