"""Find out by reading how files of a directory get into GPU memory: directly, through cuFile's copies, or by POSIX calls.

Version strings and what a driver says of itself don't count. A file is written there, and a process of its own reads it with
every compatibility mode off. If the right bytes arrive, reads from there are direct.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from csd_engine.service.worker_process import child_environment
from ddlp.transfer.gds.cufile import Settings, read_settings, strict, wants_p2pdma
from ddlp.transfer.gds.needs import gpus, place_of, ways_out, why_not
from ddlp.transfer.gds.probe_child import Outcome

__all__ = ["Probe", "probe"]

_OFFSET = 4096  # where a batch file's data begin
_SIZE = 32 << 20
_LOOK = "look into cuFile's log (CUFILE_LOGFILE_PATH=FILE, CUFILE_LOGGING_LEVEL=TRACE): nothing is seen that stands in the way"
_LIMIT_S = 60.0  # torch, CUDA and cuFile start within ten seconds even where disks are slow


@dataclass(frozen=True)
class Probe:
    """How files of a directory get into GPU memory.

    Attributes:
        kind: "gds": directly; "cufile-compat": cuFile copies through the host's memory; "posix": kvikio, or ddlp without
            it, reads into the host's memory and copies from there.
        reason: what proves it, or why it is no better; one line.
        ways_out: what would make it direct, each an imperative; causes first.
        gb_per_s: of one read of 32 MiB by that way, uncached; None if none was made.
        gpu: there is a GPU. False: nothing is wrong, but there is nothing to read into.
    """

    kind: str
    reason: str
    ways_out: tuple[str, ...] = ()
    gb_per_s: float | None = None
    gpu: bool = True


def probe(
    directory: str | os.PathLike[str], gpu: int = 0, *, limit_s: float = _LIMIT_S, root: str | os.PathLike[str] = "/"
) -> Probe:
    """Find out how files of a directory get into GPU memory. Takes up to four processes, one after the other.

    Args:
        directory: the spool, or where batch files lie. A file of 32 MiB is written there and removed.
        gpu: the number of the GPU to read into. Another one may be attached to another part of the machine.
        limit_s: a read that takes longer counts as failed.
        root: of the file tree in which /proc and /sys are looked up.
    """
    directory = os.path.abspath(directory)
    missing = why_not()
    if missing is not None:
        here = gpus(root) > 0
        return Probe("posix", missing[0], (missing[1],) if here else (), gpu=here)
    settings = read_settings()
    p2pdma_on = wants_p2pdma(settings)
    try:
        with _probe_file(directory) as (path, digest):
            tried = functools.partial(_try, path, digest, gpu, limit_s)
            outcomes = {"strict": tried("strict", strict(settings))}
            if not outcomes["strict"].ok and not outcomes["strict"].no_gpu:
                if not p2pdma_on and _on_nvme(directory, root):
                    outcomes["p2pdma"] = tried("strict", strict(settings, p2pdma=True))
                outcomes["cufile"] = tried("cufile", settings)
                if not outcomes["cufile"].ok or outcomes["cufile"].usual == "posix":
                    outcomes["posix"] = tried("posix", settings)
    except OSError as error:
        why = f"a probe file can't be written into {directory}: {error.strerror or error}"
        return Probe("posix", why, ("give a directory that this user may write",))
    if outcomes["strict"].no_gpu:
        return Probe("posix", outcomes["strict"].why, _no_device(root), gpu=gpus(root) > 0)
    return judge(outcomes, ways_out(directory, root, p2pdma_on=p2pdma_on))


def judge(outcomes: dict[str, Outcome], ways: tuple[str, ...]) -> Probe:
    """What the reads mean together. ``outcomes``: of "strict", and if that failed of "p2pdma", "cufile" and "posix"."""
    ways = ways or (_LOOK,)
    direct, cufile, posix = (outcomes.get(name, Outcome(False)) for name in ("strict", "cufile", "posix"))
    if direct.ok and direct.usual == "cufile":
        return Probe("gds", "a probe read with every compatibility mode off brought the file's bytes", (), direct.gb_per_s)
    if direct.ok:
        way = "set KVIKIO_COMPAT_MODE=OFF: a probe read with it was direct"
        ways = (way, *(other for other in ways if other != _LOOK))
        return Probe("posix", "kvikio goes round cuFile, though direct reads work", ways, None)
    if outcomes.get("p2pdma", Outcome(False)).ok:
        way = "set CUFILE_USE_PCIP2PDMA=true: a probe read with it was direct"
        ways = (way, *(other for other in ways if other != _LOOK and "CUFILE_USE_PCIP2PDMA" not in other))
    if cufile.ok and cufile.usual == "cufile":
        return Probe("cufile-compat", f"with compatibility modes off: {direct.why}", ways, cufile.gb_per_s)
    if cufile.ok:
        why = "kvikio goes round cuFile ($KVIKIO_COMPAT_MODE, or it can't see the system's devices)"
        return Probe("posix", why, ways, posix.gb_per_s)
    if posix.ok:
        return Probe("posix", f"cuFile can't read there: {cufile.why}", ways, posix.gb_per_s)
    return Probe("posix", f"kvikio can't read there: {posix.why}", ways)


def _no_device(root: str | os.PathLike[str]) -> tuple[str, ...]:
    if not gpus(root):
        return ()
    return ("see nvidia-smi and $CUDA_VISIBLE_DEVICES, and that torch is built for CUDA (torch.version.cuda)",)


def _on_nvme(directory: str, root: str | os.PathLike[str]) -> bool:
    place = place_of(directory, root)
    return place is not None and place.disk is not None and place.disk.kind.startswith("NVMe")


@contextlib.contextmanager
def _probe_file(directory: str) -> Iterator[tuple[str, str]]:
    """A file of random bytes on the drive, and the digest of what is read of it. Raises OSError."""
    descriptor, path = tempfile.mkstemp(prefix=".ddlp-probe-", dir=directory)
    try:
        with open(descriptor, "wb") as file:
            data = os.urandom(_SIZE)
            file.write(bytes(_OFFSET))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield path, hashlib.blake2b(data).hexdigest()
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _try(path: str, digest: str, gpu: int, limit_s: float, mode: str, settings: Settings) -> Outcome:
    """Make one read, in a child process with these settings of cuFile."""
    folder = tempfile.mkdtemp(prefix="ddlp-probe-")
    log = os.path.join(folder, "cufile.log")
    try:
        environment = {**child_environment(), "CUFILE_LOGFILE_PATH": log}
        if mode == "strict":
            file = os.path.join(folder, "cufile.json")
            with open(file, "w", encoding="utf-8") as stream:
                json.dump(settings, stream)
            # Versions of libcufile before or after 1.17 may look at the variables first.
            environment |= {"CUFILE_ENV_PATH_JSON": file, "CUFILE_ALLOW_COMPAT_MODE": "false"}
            if wants_p2pdma(settings, {}):
                environment["CUFILE_USE_PCIP2PDMA"] = "true"
        wanted = [path, str(_OFFSET), str(_SIZE), digest, mode, str(gpu)]
        outcome = run_child([sys.executable, "-m", "ddlp.transfer.gds.probe_child", *wanted], environment, limit_s)
        said = _last_error(log)
        if outcome.ok or not said:
            return outcome
        return Outcome(False, f"{outcome.why} (cuFile: {said})", None, outcome.usual, outcome.no_gpu)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_child(command: list[str], environment: dict[str, str], limit_s: float) -> Outcome:
    """Run a probe read to its end or to the limit. Nothing of it is left afterwards. Raises nothing."""
    child = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    late = False
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        late, out, err = True, b"", b""
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck inside a driver: it can't be waited for
                child.wait(5)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    if late:
        return Outcome(False, f"the read did not end within {limit_s:g} s")
    with contextlib.suppress(ValueError, TypeError, IndexError):
        return Outcome(**json.loads(out.splitlines()[-1]))
    lines = err.decode(errors="replace").strip().splitlines() or ["without a word"]
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"status {child.returncode}"
    return Outcome(False, f"the read's process ended with {how}: {lines[-1]}")


def _last_error(log: str) -> str:
    """The last error in cuFile's log, without its time, process and place."""
    try:
        with open(log, errors="replace") as stream:
            errors = re.findall(r"\bERROR\s+\S+:\d+\s+(.+)", stream.read())
    except OSError:
        return ""
    return errors[-1].strip() if errors else ""
