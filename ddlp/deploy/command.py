r"""Put the engine on a device over SSH, under a name: csd="csd0" is all that a training script needs then.

    ddlp deploy user@board --name csd0 --root /mnt/nvme/imagenet --spool /mnt/nvme/spool \
        --host-root /data/imagenet --host-spool /mnt/board/spool
    ddlp deploy admin@node7 --name node7 --root s3://bucket/train/ --environment /etc/ddlp-storage --spool /srv/spool
    ddlp deploy --name csd0                   # once more, with what was given before: mends what is not as it should be
    ddlp deploy --name csd0 --upgrade         # this host's version; back to the old one if it does not answer
    ddlp deploy --name csd0 --uninstall       # leaves nothing of ours there, unless other hosts use it, and no record here

The system's ssh is used: ~/.ssh/config, agent, keys and jump hosts work as they do there. Nobody is asked for a password
unless you say -o BatchMode=no.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from csd_engine.cache.place import cache_directory
from csd_engine.data.objects.environment import environment_file
from csd_engine.data.objects.urls import check_url, is_url
from ddlp.deploy.deployment import Wanted, deploy
from ddlp.deploy.findings import Level
from ddlp.deploy.install import make_bundle
from ddlp.deploy.kernel import CHOICES as KERNEL_CHOICES
from ddlp.deploy.removal import uninstall
from ddlp.deploy.steps import Steps
from ddlp.deploy.survey import modules
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord
from ddlp.errors import DDLPError

# The engine's own, passed on by name; python -m csd_engine --help documents them.
ENGINE_OPTIONS = (
    "--workers", "--memory", "--quota-bytes", "--quota-batches", "--reserve-bytes", "--lease-timeout", "--worker-timeout",
    "--sample-timeout", "--cpus", "--slowdown", "--log-level", "--sys", "--cache", "--environment",
)  # fmt: skip
_SSH_OPTIONS = (("-F", "FILE"), ("-p", "PORT"), ("-i", "KEY"), ("-J", "HOST"))


def add_ssh_arguments(parser: argparse.ArgumentParser) -> None:
    """ssh's own options, under their own names."""
    group = parser.add_argument_group("ssh's own options")
    for option, metavar in _SSH_OPTIONS:
        group.add_argument(option, dest=f"ssh{option}", metavar=metavar)
    group.add_argument("-o", "--ssh-option", dest="ssh-o", metavar="NAME=VALUE", action="append", default=[])


def ssh_options(options: argparse.Namespace) -> tuple[str, ...]:
    """The ssh options that were given, with absolute paths."""
    given: list[str] = []
    for option, metavar in _SSH_OPTIONS:
        value = getattr(options, f"ssh{option}")
        if value is not None:
            given += [option, os.path.abspath(os.path.expanduser(value)) if metavar in ("FILE", "KEY") else value]
    for value in getattr(options, "ssh-o"):
        given += ["-o", value]
    return tuple(given)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add = parser.add_argument
    add("destination", nargs="?", metavar="user@host", help="as for ssh; default: as before, with ssh options and --address")
    add("--name", help="what csd= calls it, e.g. csd0; default: the host's name, where it has one")
    add(
        "--root",
        action="append",
        default=[],
        metavar="DIR|URL",
        help="data set directory on the device, or the URL of a storage from which it requests objects; may be repeated",
    )
    add(
        "--host-root",
        action="append",
        default=[],
        metavar="DIR",
        help="the same directory on this host, one for each --root DIR; default: the same path. A URL has none",
    )
    add("--spool", metavar="DIR", help="directory on the device for finished batches, for ddlp alone: new or empty at first")
    add("--host-spool", metavar="DIR", help="the same directory on this host, over a shared file system; or none, the default")
    add("--home", metavar="DIR", help="where on the device all of ours goes, for ddlp alone; default ~/.ddlp/NAME")
    add("--address", metavar="HOST", help="where this host reaches the engine, or tcp://HOST:PORT; default: as ssh does")
    add("--listen-port", type=int, metavar="PORT", help="the engine's TCP port; default 7711")
    add("--python", metavar="PATH", help="the interpreter on the device; default: the one that suits best")
    add("--install", choices=("apt", "pip", "no"), default="no", help="install what is missing there; default: say what")
    add("--bundle", type=Path, metavar="DIR", help="install what is missing from the .whl and .deb files in DIR; no network")
    add("--kernel", choices=KERNEL_CHOICES, help="compile it on the device, or here, or do without; default: as it can be done")
    add("--operators", type=Path, action="append", default=[], metavar="FILE", help="a file of operators of yours; repeatable")
    add("--upgrade", action="store_true", help="replace another version there by this host's")
    add("--uninstall", action="store_true", help="remove the engine from the device, and its record and keys here")
    add("--all", action="store_true", help="with --uninstall: remove the engine even though other hosts use it")
    add("--forget", action="store_true", help="with --uninstall, for a device that is gone: remove the record and keys alone")
    add_ssh_arguments(parser)
    engine = parser.add_argument_group("the engine's own options, see python -m csd_engine --help")
    for option in ENGINE_OPTIONS:
        engine.add_argument(option, metavar="VALUE")
    bundle = parser.add_argument_group("a bundle for --bundle")
    bundle.add_argument(
        "--make-bundle",
        type=Path,
        metavar="DIR",
        help="download wheels into DIR, obstore's too with --root URL, and do nothing else",
    )
    bundle.add_argument("--arch", default="arm64", help="the device's: arm64 or amd64; default arm64")
    bundle.add_argument("--python-version", default="3.11", metavar="3.X", help="the device's; default 3.11")


def run(options: argparse.Namespace) -> int:
    """Deploy, uninstall, or make a bundle."""
    if options.make_bundle is not None:
        print("\n".join(make_bundle(options.make_bundle, options.arch, options.python_version, modules(options.root))))
        return 0
    before = _before(options)
    steps = Steps()
    if options.uninstall:
        uninstall(_to_remove(options, before), steps, forget=options.forget, for_all=options.all)
        return 0
    wanted = _wanted(options, before)
    record, findings = deploy(wanted, steps)
    wrong = [finding for finding in findings if finding.level is Level.BAD]
    print()
    if wrong:
        print(f"{record.name} answers, but:")
        for finding in wrong:
            print(finding)
        return 1
    print(
        "Nothing had to be changed." if not steps.changed else f"{record.name} is ready.", f'Use it with csd="{record.name}".'
    )
    return 0


def _name(options: argparse.Namespace) -> str:
    if options.name is not None:
        return book.check_name(options.name)
    if options.destination is None:
        raise DDLPError("which device? Give user@host, or --name of one that is known (see ddlp status).")
    name = str(options.destination).rpartition("@")[2].partition(".")[0]
    if name.isdigit() or not book.is_name(name):  # 192.168.1.5 and 192.168.1.6 are not one device, called 192
        raise DDLPError(f"{options.destination} has no name to call the device by. Give it one: --name csd0.")
    return name


def _before(options: argparse.Namespace) -> DeviceRecord | None:
    name = _name(options)
    try:
        return book.load(name)
    except book.UnknownDevice:
        return None
    except DDLPError:
        if options.destination is None and not options.forget:
            raise
        return None  # the record is damaged, but not needed: all is given anew, or is to be forgotten


def _to_remove(options: argparse.Namespace, before: DeviceRecord | None) -> DeviceRecord:
    name = _name(options)
    if before is None and (options.destination is None or options.forget):
        if options.forget:
            return _empty(name, "-")
        raise DDLPError(f"no device is called {name!r}. To remove what may be left on a device: give user@host as well.")
    record = before or _empty(name, options.destination)
    changes = {"destination": options.destination, "home": options.home, "device_spool": options.spool}
    record = dataclasses.replace(record, **{key: value for key, value in changes.items() if value is not None})
    given = ssh_options(options)
    return dataclasses.replace(record, ssh_options=given) if given or before is None else record


def _empty(name: str, destination: str) -> DeviceRecord:
    return DeviceRecord(name, destination, (), "", (), None, "", f"~/.ddlp/{name}", "python3", "", "")


def _wanted(options: argparse.Namespace, before: DeviceRecord | None) -> Wanted:
    """What was given now, else what was given before, else the defaults."""
    name = _name(options)
    destination = options.destination or (before.destination if before else None)
    if destination is None:
        raise DDLPError(f"no device is called {name!r}. Give its user@host.")
    roots = _roots(options, before)
    device_spool = options.spool or (before.device_spool if before else None)
    if not roots or device_spool is None:
        what = " and ".join(
            text for text, there in (("--root DIR (its data)", roots), ("--spool DIR (for batches)", device_spool)) if not there
        )
        raise DDLPError(f"{name} needs {what}. Both are directories on the device; --root may be a storage's URL.")
    host_spool = before.host_spool if before else None
    if options.host_spool is not None:
        host_spool = None if options.host_spool == "none" else os.path.abspath(options.host_spool)
    elif options.spool is not None and before is not None and options.spool != before.device_spool:
        host_spool = None  # the new spool is another directory
    engine = _engine_options(options, before)
    start = before or _empty(name, destination)
    given = ssh_options(options)
    port = options.listen_port or start.listen_port
    record = dataclasses.replace(
        start,
        destination=destination,
        ssh_options=given if given or options.destination is not None else start.ssh_options,
        roots=roots,
        host_spool=host_spool,
        device_spool=os.path.normpath(device_spool),
        home=options.home or start.home,
        engine_options=engine,
        kernel_choice=options.kernel or start.kernel_choice,
        given_python=options.python or start.given_python,
        given_address=options.address or (start.given_address if options.destination is None else None),
        listen_port=port,
        address=start.address if port == start.listen_port else "",  # nothing will answer at the old port
    )
    _check_paths(record)
    return Wanted(
        record=record,
        given_options=_given(options),
        changes=() if before is None else _changes(before, record),
        reserve_bytes=reserve_bytes(engine),
        install=options.install,
        bundle=options.bundle,
        operators=tuple(options.operators),
        upgrade=options.upgrade,
    )


def _roots(options: argparse.Namespace, before: DeviceRecord | None) -> tuple[tuple[str, str], ...]:
    if not options.root:
        if options.host_root:
            raise DDLPError("--host-root without --root: give both, in pairs.")
        return before.roots if before else ()
    directories = [root for root in options.root if not is_url(root)]
    here: Sequence[str] = options.host_root or directories
    if len(here) != len(directories) or any(map(is_url, here)):
        urls = any(map(is_url, (*options.root, *here)))
        raise DDLPError(
            f"{len(directories)} --root DIR and {len(here)} --host-root: give one --host-root for each directory, or none."
            + (" A URL has no --host-root: it is the same on both sides." if urls else "")
        )
    hosts = iter(here)
    return tuple(
        (_url(root),) * 2 if is_url(root) else (os.path.abspath(next(hosts)), os.path.normpath(root)) for root in options.root
    )


def _url(root: str) -> str:
    """A URL as the engine writes it."""
    check_url(root, DDLPError)
    if any(character.isspace() for character in root):
        raise DDLPError(f"--root {root!r}: a URL has no blanks. Correct it.")
    return root.rstrip("/") + "/"


def _check_paths(record: DeviceRecord) -> None:
    """Raise DDLPError unless all paths on the device are absolute, and can be written into its settings."""
    cache = cache_directory(record.options.get("--cache", "none"))
    environment = environment_file(record.options.get("--environment", "none"))
    for path in (record.device_spool, *(device for _, device in record.directories), cache, environment):
        if path and (not path.startswith("/") or "=" in path or "\n" in path):
            raise DDLPError(f"{path!r}: paths on the device are written as absolute paths without '='.")


def _changes(before: DeviceRecord, wanted: DeviceRecord) -> tuple[str, ...]:
    """The options that would change the engine's settings."""
    of_each = {
        "--root": lambda record: {device for _, device in record.roots},
        "--spool": lambda record: record.device_spool,
        "--listen-port": lambda record: record.listen_port,
    }
    old, new = before.options, wanted.options
    return (
        *(option for option, value in of_each.items() if value(before) != value(wanted)),
        *(option for option in ENGINE_OPTIONS if old.get(option) != new.get(option)),
    )


def _given(options: argparse.Namespace) -> dict[str, str]:
    """The engine's options that were given now."""
    values = {option: getattr(options, option[2:].replace("-", "_")) for option in ENGINE_OPTIONS}
    return {option: value for option, value in values.items() if value is not None}


def _engine_options(options: argparse.Namespace, before: DeviceRecord | None) -> tuple[str, ...]:
    """The engine's options: those given now, and the others as they were given before."""
    from csd_engine.__main__ import make_parser  # brings zmq, which --help does not need

    values = {**(before.options if before else {}), **_given(options)}
    flat = tuple(part for option in ENGINE_OPTIONS if option in values for part in (option, values[option]))
    try:
        make_parser().parse_args(flat)
    except SystemExit:
        raise DDLPError(f"the engine does not take {shlex.join(flat)}. See python -m csd_engine --help.") from None
    return flat


def reserve_bytes(engine: tuple[str, ...]) -> int:
    """The bytes that the engine leaves free on its spool's disk with these options."""
    from csd_engine.__main__ import make_parser

    return int(make_parser().parse_args(engine).reserve_bytes)
