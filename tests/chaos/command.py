"""`python -m tests.chaos`: faults while training, for some minutes, and a verdict."""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from csd_engine.errors import EngineError, EngineUnreachable
from ddlp.errors import DDLPError
from tests.chaos.faults import FAULTS, Fault, wait_for_engines
from tests.chaos.planted import PLANTED
from tests.chaos.training import ENDINGS, Ending, Plan, draw_ending
from tests.chaos.world import REPOSITORY, CardedEngine, Finding, OwnProcesses, World
from tests.ddlp.faults.scene import processes

__all__ = ["can_unshare", "main"]

_UNSHARE = ["unshare", "--mount", "--propagation", "private"]

_ABOUT = """\
Trains while faults strike. Checks that every sample comes exactly once, with its bits, and that nothing hangs or stays behind.

  python -m tests.chaos --seed 1 --minutes 30            everything, in an order that the seed decides
  python -m tests.chaos --seed 1 --rounds 5 --only net   faults whose names contain "net", for five rounds
  python -m tests.chaos --list                           the faults alone
  python -m tests.chaos --plant skipped-checksum         plant a bug first: the run must find it (exit status 1)

Two engines run as processes of their own, each with a small spool; one of them is reached through a bad network. Two more with
cards join them later. Each round makes a loader by chance (strategy, workers, devices, pool, transfer, order), trains one or
more epochs, and strikes up to nine times.
What is checked: the samples and their bits against what the host alone makes; the time of a round; afterwards descriptors,
threads, processes, shared memory and the engines' spools. As root the spools and /dev/shm are file systems of the run's own, in
a mount namespace: without that, faults of a full or read-only spool are left out. Without a C compiler no clock jumps.

Exit status 0: nothing was found. 1: something was found; it is told with the round and its seed. 2: the run could not begin.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seed", type=int, default=0, help="seed of all draws (0)")
    add("--minutes", type=float, default=1.0, help="no round begins after so many minutes (1)")
    add("--rounds", type=int, help="at most so many rounds")
    add("--only", action="append", metavar="NAME", help="faults and endings whose name contains this; may be given again")
    add("--plant", choices=PLANTED, help="plant this bug first")
    add("--patience", type=float, default=90.0, metavar="S", help="a round that takes longer hangs, an end a third of it (90)")
    add("--list", action="store_true", help="print the names of all faults and endings")
    add("--inner", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join([*(fault.name for fault in FAULTS), *ENDINGS]))
        return 0
    names = [*(fault.name for fault in FAULTS), *ENDINGS]
    if options.only and not any(part in name for part in options.only for name in names):
        print(f"chaos: no fault is called anything like {' or '.join(options.only)}; --list names them", file=sys.stderr)
        return 2
    if options.inner:
        return _run(options, Path(options.inner))
    return _supervise(list(sys.argv[1:] if arguments is None else arguments))


def can_unshare() -> bool:
    """Return whether a mount namespace can be made here. It takes root, and a root directory that is no plain chroot's."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def _supervise(arguments: list[str]) -> int:
    """Run the command in another process, and check that nothing of it is left."""
    home = Path(tempfile.mkdtemp(prefix="ddlp-chaos-", dir="/tmp"))  # short: a socket's path may have at most 107 bytes
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "tests.chaos", *arguments, "--inner", str(home)]
    if can_unshare():
        # Its shared memory is its own: what other programs have there is no finding.
        own = 'mount -t tmpfs ddlp-chaos /dev/shm; exec "$@"'
        command = [*_UNSHARE, "sh", "-c", own, "sh", *command]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing may be left then, either
    child = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "DDLP_CHAOS": mark, "TMPDIR": str(home)})
    try:
        status = child.wait()
    except KeyboardInterrupt:  # the child has got it too
        status = child.wait()
    finally:
        left = [one for one in processes() if mark in one.environment]
        for one in left:
            try:
                os.kill(one.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        shutil.rmtree(home, ignore_errors=True)
    if left and status == 0:
        print(f"chaos: FOUND: {len(left)} processes were left: {[one.command for one in left][:5]}")
        return 1
    return 1 if status < 0 else status


def _run(options: argparse.Namespace, home: Path) -> int:
    warnings.simplefilter("ignore")
    os.environ["DDLP_HOME"] = str(home / "ddlp")  # this host's keys for engines with cards
    struck: collections.Counter[str] = collections.Counter()
    only = options.only or [""]
    faults = [fault for fault in FAULTS if any(part in fault.name for part in only)]
    world = World(home, options.seed, options.patience)
    if options.plant:
        PLANTED[options.plant](world)
    endings = [name for name in ENDINGS if any(part in name for part in only)] or _endings_for(faults)
    of_cards = 1.0 if options.only and any(fault.of is CardedEngine for fault in faults) else 0.3
    began, number, finding = time.monotonic(), 0, None
    world.add_engines()
    try:
        while time.monotonic() - began < 60 * options.minutes and number != options.rounds:
            number += 1
            if world.random.random() < of_cards:
                world.add_carded_engines()
            ending = draw_ending(world.random, endings)
            print(f"{time.monotonic() - began:7.1f} s  round {number}: {ending}", end="", flush=True)
            with _patience(options.patience, f"in round {number} of seed {options.seed}"):
                _round(world, ENDINGS[ending], faults, number, struck)
            if ending != "two whole epochs":
                struck[ending] += 1
            print(flush=True)
        world.close()
    except KeyboardInterrupt:
        print("\nchaos: interrupted")
        return 130
    except Finding as error:
        finding = str(error)
    except Exception:
        finding = f"training raised\n{traceback.format_exc()}"
    finally:
        if world.engines:
            _close_quietly(world)
    minutes = (time.monotonic() - began) / 60
    faults_done = f"{struck.total()} faults of {len(struck)} kinds"
    print(f"\nchaos: seed {options.seed}, {number} rounds, {faults_done} in {minutes:.1f} minutes")
    for name, count in struck.most_common():
        print(f"  {count:5}  {name}")
    if finding is not None:
        print(f"chaos: FOUND in round {number} of seed {options.seed}: {finding}")
        return 1
    print("chaos: nothing lost, doubled or wrong; nothing hung; nothing left behind")
    return 0


def _endings_for(faults: list[Fault]) -> list[str]:
    """Return the endings in which one of these faults can be applied, one for each kind of fault."""
    of_processes = [issubclass(fault.of, OwnProcesses) for fault in faults]
    found = ["pool of this machine", "user code on a pool"] if any(of_processes) else []
    return found if all(of_processes) else ["two whole epochs", *found]


def _round(world: World, ending: Ending, faults: list[Fault], number: int, struck: collections.Counter[str]) -> None:
    epoch = 2 * (number % 5)
    for one in (epoch, epoch + 1):  # computed before an image is replaced
        world.truth.of(one), world.other_truth.of(one)
    with world.leaves_nothing():
        plan = Plan(world, ending.struck(world), faults, world.random.randrange(0, 10), partial(_note, struck))
        plan.begin()
        before = struck.total()
        try:
            ending.run(world, epoch, plan)
        except (EngineError, DDLPError) as error:  # a device that was never reached is an error of the training run
            if struck.total() == before and not plan.engines_were_down:
                if not (isinstance(error, EngineUnreachable) and all(engine.answers() for engine in world.named)):
                    raise  # otherwise this computer is just slow
            print(f", raised at the first meeting: {str(error)[:60]}...", end="", flush=True)
        finally:
            plan.mend()
            world.changed.clear()
        wait_for_engines(world)
        gc.collect()


def _note(struck: collections.Counter[str], name: str) -> None:
    struck[name] += 1
    print(f", {name}", end="", flush=True)


@contextlib.contextmanager
def _patience(seconds: float, where: str) -> Iterator[None]:
    """End this process, with the stacks of its threads, if this takes longer."""

    def end() -> None:
        print(f"\nchaos: FOUND {where}: it hangs, {seconds:g} s were not enough", flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.name, timer.daemon = "patience", True
    timer.start()
    faulthandler.dump_traceback_later(seconds + 10, exit=True)  # if no thread gets to run
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        faulthandler.cancel_dump_traceback_later()


def _close_quietly(world: World) -> None:
    try:
        world.close()
    except Finding as error:
        print(f"chaos: and {error}")


