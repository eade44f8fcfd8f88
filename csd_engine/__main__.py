"""`python -m csd_engine`: run an engine, or make its keys."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from csd_engine.data.objects.environment import load_environment
from csd_engine.data.roots import Roots
from csd_engine.errors import EngineError
from csd_engine.machine.computer import cpus
from csd_engine.machine.sizes import size_bytes
from csd_engine.protocol.keys import fresh_pair, make_keys, make_pair
from csd_engine.service.engine_log import set_up

if TYPE_CHECKING:
    from csd_engine.service.members import Members

_EXPLANATION = """\
An engine prepares batches of images for training jobs on other computers. Run it on the computer next to the storage:

  1. Make keys once:      python -m csd_engine --make-keys KEYS
     Copy KEYS/server.key, KEYS/host.key and KEYS/host.key_secret to the host that trains. Every further host makes its
     own pair; put its public .key file into KEYS/clients/ (read anew at each connection, no restart needed).
  2. Run the engine:      python -m csd_engine --listen tcp://0.0.0.0:7711 --keys KEYS \\
                              --root /data/imagenet --spool /data/spool
  3. On the host:         DDLPLoader(..., csd="tcp://device:7711")

Where the host sees the spool directory too (a shared file system; never one disk that two systems mount at once), it
reads the batches there; elsewhere they are sent over the connection.
The engine reads only below its --root directories and SPOOL/files, and writes only below its --spool and, where it has one,
its --cache. Of users' code it runs only the files in its --operators directory, which come by SSH and are named by their
contents' hash.
At SIGTERM it retires: it begins nothing more, finishes the batches that it has begun, and ends when hosts have fetched them.
A second SIGTERM, or Ctrl-C, ends it at once. It leaves no batch; what hosts sent stays in its spool for the next time.
"""


def _size(text: str) -> int:
    size = size_bytes(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 500M or 8G")
    return size


def _cpus(text: str) -> List[int]:
    try:
        return sorted({int(number) for number in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of CPU numbers; write 1 or 2,3") from None


def _at_least(kind: Callable[[str], Any], low: float) -> Callable[[str], Any]:
    def check(text: str) -> Any:
        value = kind(text)
        if not value >= low:
            raise argparse.ArgumentTypeError(f"{text} is less than {low}")
        return value

    check.__name__ = getattr(kind, "__name__", "number")  # for argparse's messages
    return check


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the engine's command line."""
    parser = argparse.ArgumentParser(
        prog="python -m csd_engine", description=_EXPLANATION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--make-keys", metavar="DIR", help="make fresh keys for an engine and one host in DIR and exit")
    add("--make-pair", nargs=2, metavar=("DIR", "NAME"), help="make DIR/NAME.key and .key_secret (server, host) and exit")
    add("--listen", metavar="ADDRESS", help="ipc:///path/to/socket or tcp://HOST:PORT (tcp://*:0 picks a port)")
    add(
        "--root",
        metavar="PATH[=DEVICE_PATH]",
        action="append",
        default=[],
        help="a directory that jobs may read, as the host names it, and what it is called here; may be repeated. Or a URL: "
        "s3://bucket/prefix/, gs://, az:// or https://server/directory/. The engine requests its objects itself, by obstore, "
        "with the settings and credentials of its environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID ...)",
    )
    add("--spool", metavar="DIR", help="for batch files, and for ddlp alone: new or empty at first; one engine a spool")
    add("--keys", metavar="DIR", help="key directory, see above")
    add(
        "--card",
        metavar="DIR",
        help="instead of --keys: the engine makes keys for itself, and writes into DIR where it is. Hosts with pool=DIR find "
        "it there, and leave their public keys. DIR must belong to this user, and nobody else may write to it",
    )
    add(
        "--card-host",
        metavar="HOST",
        default="",
        help="with --card, where --listen names no address: how hosts reach this computer; default: by its host name",
    )
    add(
        "--operators",
        metavar="DIR",
        help="directory of users' operator files, <hash>.py each; outside the roots and the spool, writable by its owner only",
    )
    add(
        "--cache",
        metavar="DIR[:SIZE]",
        default="none",
        help="keep what is the same in every epoch (pixels after Resize and CenterCrop, objects of a storage) in DIR, in SIZE "
        "(200G, say) at most, default a fifth of its free space; outside the roots and the spool, writable by its owner only",
    )
    add(
        "--environment",
        metavar="FILE",
        default="none",
        help="settings and credentials of object storages, for URLs of --root: a line NAME=VALUE for each, such as "
        "AWS_ACCESS_KEY_ID=... FILE is read at the start; it lies outside the roots, the spool and the cache, belongs to the "
        "engine's user or root, and has mode 600",
    )
    add("--reach", metavar="URL", help="say whether this object storage answers here, by --environment, and exit")
    add(
        "--workers",
        type=_at_least(int, 1),
        metavar="N",
        help="worker processes; default: one for each CPU it may use, by affinity and cgroup quota",
    )
    add(
        "--quota-batches",
        type=_at_least(int, 1),
        default=1024,
        metavar="N",
        help="batch files in the spool at once, over all jobs; default 1024 (the bytes are the limit that matters)",
    )
    add("--quota-bytes", type=_size, default=8 << 30, metavar="SIZE", help="their bytes; default 8G")
    add(
        "--reserve-bytes",
        type=_size,
        default=1 << 30,
        metavar="SIZE",
        help="free space to leave on the spool's disk; default 1G",
    )
    add(
        "--upload-bytes",
        type=_size,
        default=8 << 30,
        metavar="SIZE",
        help="arrays that hosts send, kept in the spool for the next time, half of it at most for one host; the least recently "
        "used go first; default 8G",
    )
    add(
        "--memory",
        type=_size,
        default=0,
        metavar="SIZE",
        help="memory to reckon with: where it is scarce, workers decode very large images one at a time; no image may take "
        "a quarter of it, no worker half; default: what this computer, or this process's control group, has",
    )
    add(
        "--lease-timeout",
        type=_at_least(float, 0.1),
        default=30.0,
        metavar="S",
        help="drop the jobs of a host that is silent for S seconds; default 30",
    )
    add(
        "--worker-timeout",
        type=_at_least(float, 0.1),
        default=30.0,
        metavar="S",
        help="replace a worker process that is at one sample for S seconds; default 30",
    )
    add(
        "--sample-timeout",
        type=_at_least(float, 0.01),
        default=3.0,
        metavar="S",
        help="leave an image to the host that takes Pillow S seconds of a processor to decode; default 3",
    )
    add(
        "--retire-s",
        type=_at_least(float, 0),
        default=20.0,
        metavar="S",
        help="end S seconds after SIGTERM at the latest, even if hosts have not fetched all batches; default 20, since "
        "Kubernetes, and systemd as ddlp deploy sets it up, kill it after 30",
    )
    add(
        "--slowdown",
        type=_at_least(float, 1),
        default=1.0,
        metavar="F",
        help="for benches: work F times slower, as a device's processor would",
    )
    add(
        "--mapped",
        action="store_true",
        help="hosts are on this computer and map batch files instead of reading them: write over removed ones",
    )
    add("--cpus", type=_cpus, metavar="LIST", help="run on these CPUs only, e.g. 1 or 2,3")
    add("--sys", metavar="DIR", default="/sys", help="where /sys is, for the sensors; in a container: where the host's is")
    add("--parent", type=int, default=0, metavar="PID", help="end when this parent process is gone")
    add(
        "--members",
        metavar="DIR",
        help="end when no process holds a shared lock (flock) on DIR/lock any more, and remove DIR",
    )
    add("--private", metavar="DIR", action="append", default=[], help="directory to remove at the end; may be repeated")
    add(
        "--trust-roots",
        action="store_true",
        help="allow every absolute path as a root; for an engine that its only host started itself, on ipc:// only",
    )
    add("--log-level", default="warning", choices=("debug", "info", "warning", "error"), help="default warning")
    return parser


def _run(options: argparse.Namespace) -> None:
    # Imported here: small boards make keys too, and numpy and the engine take seconds to import there.
    from csd_engine.service.members import Members
    from csd_engine.service.spool import remove_tree

    members = None
    try:
        members = Members.look_on(options.members) if options.members else None
        _serve(options, members)
    finally:
        for directory in options.private:
            remove_tree(directory)
        if members is not None:
            members.remove()


def _serve(options: argparse.Namespace, members: Optional[Members]) -> None:
    from csd_engine.cache.place import cache_at_start, cache_directory
    from csd_engine.machine.descriptors import raise_limit
    from csd_engine.prepare.operator_file import OperatorDirectory
    from csd_engine.protocol.cards import PostedCard, open_cards
    from csd_engine.service.engine import EngineOptions, Service

    needed = ("listen", "spool") if options.card else ("listen", "spool", "keys")
    missing = [name for name in needed if not getattr(options, name)]
    if missing:
        raise EngineError(f"--{', --'.join(missing)} missing. See python -m csd_engine --help.")
    if options.card:
        if options.keys:
            raise EngineError("--card with --keys: both say which hosts to let in. Leave one of them out.")
        open_cards(options.card)
    if options.trust_roots and not options.listen.startswith("ipc://"):
        raise EngineError(f"--trust-roots with --listen {options.listen}: hosts could read any file. Give --root.")
    if not options.trust_roots and not options.root:
        raise EngineError("no --root given: the engine could read nothing. Add --root /path/to/dataset.")
    if options.cpus:
        try:
            os.sched_setaffinity(0, options.cpus)  # inherited by the workers
        except (OSError, ValueError) as error:
            raise EngineError(f"--cpus {options.cpus}: {error}. Name CPUs of this computer, see lscpu.") from None
    raise_limit()
    roots = Roots.parse(options.root, options.trust_roots)
    operators = None
    hosts_write = [device for _, device in roots.pairs] + [options.spool]
    if options.operators:
        operators = OperatorDirectory.at_start(options.operators, hosts_write)
    cache = cache_at_start(options.cache, hosts_write)
    load_environment(options.environment, [*hosts_write, *filter(None, [cache_directory(options.cache)])])
    pair = fresh_pair() if options.card else None
    service = Service(
        EngineOptions(
            listen=options.listen,
            keys=os.path.abspath(options.card or options.keys),
            pair=pair,
            spool=options.spool,
            roots=roots,
            workers=options.workers or cpus(),
            quota_batches=options.quota_batches,
            quota_bytes=options.quota_bytes,
            reserve_bytes=options.reserve_bytes,
            upload_bytes=options.upload_bytes,
            memory_bytes=options.memory,
            lease_timeout_s=options.lease_timeout,
            worker_timeout_s=options.worker_timeout,
            sample_timeout_s=options.sample_timeout,
            slowdown=options.slowdown,
            parent=options.parent,
            members=members,
            operators=operators,
            sys=options.sys,
            mapped=options.mapped,
            retire_s=options.retire_s,
            cache=cache,
        )
    )

    card: Optional[PostedCard] = None

    def announce() -> None:
        nonlocal card
        if pair is not None:
            card = PostedCard(options.card, service.endpoint, pair.public, options.card_host)
        try:
            print(json.dumps({"ready": service.endpoint, "pid": os.getpid()}), flush=True)
        except OSError:
            pass  # the process that waited for it is gone

    def retires() -> None:
        if card is not None:
            card.withdraw()

    try:
        service.run(announce, retires)
    finally:
        if card is not None:  # first, so that no host begins to connect
            card.remove()
        service.close()


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line; return the exit status."""
    options = make_parser().parse_args(arguments)
    set_up(options.log_level)
    try:
        if options.make_keys:
            print(f"keys are in {make_keys(options.make_keys)}; see python -m csd_engine --help for what goes where")
        elif options.make_pair:
            print(make_pair(*options.make_pair))
        elif options.reach:
            from csd_engine.data.objects.store import ObjectStore

            load_environment(options.environment, ())
            print(ObjectStore(options.reach).reach())
        else:
            _run(options)
    except EngineError as error:
        print(f"csd_engine: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
