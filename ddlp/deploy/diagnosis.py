"""What the facts about a deployed device mean, each with its way out. Pure, but it reads this host's own keys and files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from csd_engine.errors import EngineError
from csd_engine.kernels.report import KernelReport
from csd_engine.machine.build import build
from csd_engine.protocol.codec import Status
from csd_engine.protocol.keys import load_pair, load_public
from ddlp.deploy import checks
from ddlp.deploy.advice import other_root, upgrade
from ddlp.deploy.census import CensusResult, Few
from ddlp.deploy.checks import MIB
from ddlp.deploy.findings import Finding, bad, ok, warn
from ddlp.deploy.parity import Parity
from ddlp.deploy.place import code_bytes
from ddlp.deploy.survey import Python, Survey
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord
from ddlp.transfer.gds.probe import Probe

__all__ = [
    "of_census", "of_files", "of_kernel", "of_keys", "of_lingering", "of_no_boot", "of_no_root", "of_parity", "of_probe",
    "of_service", "of_status", "of_versions",
]  # fmt: skip

_LITTLE_MEMORY_BYTES = 32 * MIB  # one more large image, and the system may kill a worker


def of_files(record: DeviceRecord, survey: Survey) -> Iterator[Finding]:
    """The engine's files, settings and operators on the device."""
    again = f"ddlp deploy --name {record.name}"
    if survey.current is None or not survey.whole:
        yield bad(f"no engine in {survey.home}", "its files were removed, or never came there", again)
    elif survey.current != build():
        yield warn(
            f"build {survey.current[:12]} is there, this host has {build()[:12]}",
            "versions differ: what one side has learnt the other may not know",
            upgrade(record.name),
        )
    elif survey.whole != code_bytes():
        yield bad(f"the engine's files in {survey.home} were changed", f"{survey.whole} bytes, not {code_bytes()}", again)
    else:
        yield ok(f"build {build()[:12]}, as here")
    if survey.settings is None:
        yield bad(f"no engine.json in {survey.home}", "the engine's settings are in it", again)
    for number in sorted(set(record.operators) - set(survey.operators)):
        name = record.operators[number]
        kept = (book.directory(record.name) / "operators" / f"{number}.py").exists()
        way_out = again if kept else f"{again} --operators {name}"
        yield bad(f"your operators {name} are not there", "pipelines that use them are refused", way_out)


def of_kernel(report: KernelReport, record: DeviceRecord | None = None) -> Finding:
    """Which kernel a device has, or (without its record) this host."""
    where = "this host" if record is None else record.name
    if report.variant:
        return ok(f"kernel of {where}: {report}")
    if record is None:
        return warn("no kernel on this host", "Pillow does the work, slower", report.why_not)
    if record.kernel_choice == "none":
        return ok(f"no kernel on {where}, as you chose (--kernel none): Pillow does the work")
    again = f"ddlp deploy --name {record.name} --kernel auto (compiles one, there or here, or says what that needs)"
    return warn(f"no kernel on {where}", f"Pillow does the work, slower: {report.why_not}", again)


def of_keys(record: DeviceRecord, survey: Survey) -> Finding:
    """Whether each side has the other's public key."""
    again = f"ddlp deploy --name {record.name}"
    where = book.directory(record.name)
    try:
        ours = load_pair(where / "host.key_secret").public.decode()
        theirs = load_public(where / "server.key").decode()
    except (OSError, EngineError) as error:
        return bad(f"this host's keys in {where}", str(error), f"{again} (makes and exchanges them)")
    if survey.server_key is None:
        return bad(f"no keys in {survey.home}/keys", "the engine can't start without", f"{again} (makes and exchanges them)")
    if survey.server_key != theirs:
        return bad("the engine has another key than this host knows", "its keys were made anew", f"{again} (exchanges them)")
    if ours not in survey.clients:
        return bad(
            "the engine does not know this host's key", "it lets in only hosts that it knows", f"{again} (exchanges them)"
        )
    return ok("each side knows the other's key")


def of_service(record: DeviceRecord, survey: Survey, boots: bool | None) -> Iterator[Finding]:
    """Whether the engine runs and listens where it should, and is started at boot (``boots``; None: nothing can do it)."""
    logs = f"See ddlp logs {record.name}"
    kind, _, rest = survey.state.partition(" ")
    if survey.supervisor is None:
        said = f"it last said: {survey.state}" if survey.state else "it has left no word"
        yield bad("the engine does not run", f"stopped, ended, or the device was switched off in between ({said})",
                  f"ddlp start {record.name}")  # fmt: skip
    elif kind == "failed":
        reason = rest.partition(" ")[2]
        yield bad("the engine ends again and again", reason[-400:] or "it says nothing", f"Mend that. {logs}")
    elif kind != "ready":
        yield bad(f"the engine is not ready ({survey.state or 'no word'})", "it starts just now, or hangs", f"Wait. {logs}")
    elif rest.split()[0].rpartition(":")[2] != str(record.listen_port):
        yield bad(f"the engine listens on {rest.split()[0]}", f"it was deployed to listen on port {record.listen_port}",
                  f"ddlp deploy --name {record.name}")  # fmt: skip
    else:
        yield ok(f"the engine runs ({record.service}) and listens on {rest.split()[0]}")
    if boots is False:
        yield warn("nothing starts the engine at boot", "its entry is gone", f"ddlp deploy --name {record.name}")


def of_no_boot(record: DeviceRecord, said: str) -> Finding:
    """An engine that nothing starts at boot, since its entry could not be made."""
    return warn(
        "nothing starts the engine when the device boots",
        f"a supervisor of ours keeps it running until then; {said.partition('. ')[0]}",
        f"Mend that and deploy again: ddlp deploy --name {record.name}. Until then, after a reboot: ddlp start {record.name}",
    )


def of_lingering(user: str) -> Finding:
    """A user without lingering, whose own systemd runs the engine."""
    return bad(
        f"lingering is off for {user}",
        "some seconds after this user's last SSH session closes, systemd ends all of the user's services, the engine too",
        f"As root, there: loginctl enable-linger {user}",
    )


def of_versions(record: DeviceRecord, versions: dict[str, str], python: Python | None) -> Iterator[Finding]:
    """The versions that a running engine reports, and whether the installed ones (``python``; None: not known) are the same."""
    summary = ", ".join(f"{name} {versions[name]}" for name in ("csd_engine", "python", "numpy", "pillow") if name in versions)
    if versions.get("build") == build():
        yield ok(f"{record.address} answers: {summary}")
    else:
        yield warn(f"{record.address} answers: {summary}", "it runs another build of the engine than this host's",
                   f"{upgrade(record.name)}; if its files are this host's already: "
                   f"ddlp stop {record.name} && ddlp start {record.name}")  # fmt: skip
    replaced = checks.replaced(python, versions)
    if replaced:
        yield bad("packages there were replaced, and the engine runs with the old ones", replaced,
                  f"ddlp stop {record.name} && ddlp start {record.name}")  # fmt: skip
    changed = [
        f"{name} {record.versions[name]} -> {versions[name]}"
        for name in ("python", "numpy", "pillow", "pyzmq")
        if name in versions and record.versions.get(name, versions[name]) != versions[name]
    ]
    if changed:
        yield warn("versions there have changed since it was deployed", ", ".join(changed), "See below whether pixels differ.")


def of_status(record: DeviceRecord, status: Status) -> Iterator[Finding]:
    """What a running engine says about its computer."""
    if status.note:
        yield warn("the engine says", status.note, f"See ddlp status {record.name}")
    if status.memory_available_bytes < _LITTLE_MEMORY_BYTES:
        yield warn(
            f"{status.memory_available_bytes // MIB} MB of memory left",
            "one large image more, and the kernel ends a worker",
            f"End what else runs there, or use fewer workers: ddlp deploy --name {record.name} --workers N",
        )


def of_no_root(record: DeviceRecord, host: str, device: str) -> Finding:
    """A data set that is not there on this host."""
    way_out = f"Mount it; or {other_root(record, (host, device), 'DIR', device)}"
    return bad(f"data {host} is not there on this host", "a loader reads it here as well", way_out)


def of_census(record: DeviceRecord, host: str, device: str, result: CensusResult) -> Iterator[Finding]:
    """What a comparison of a data set has found."""
    ssh = f" -e {shlex.quote(shlex.join(['ssh', *record.ssh_options]))}" if record.ssh_options else ""
    copy = f"rsync -a{ssh} {shlex.quote(host + '/')} {shlex.quote(f'{record.destination}:{device}/')}"
    root = f"correct it with {other_root(record, (host, device), host, 'DIR')}"

    def differ(few: Few, what: str, why: str, way_out: str, make: type | object = bad) -> Iterator[Finding]:
        if few.count:
            subject = "file" if few.count == 1 else "files"
            yield make(f"{few.count:,} {subject} {what}: {few}", why, way_out)  # type: ignore[operator]

    if not result.files and result.missing_there.count:
        yield bad(
            f"{device} on the device holds none of the {result.missing_there.count:,} files of {host}",
            "it is another directory, or what should be there is not mounted",
            f"Mount it there; or {root}",
        )
        return
    mend = f"Copy what differs: {copy}; or, if {device} is another directory, {root}"
    yield from differ(result.unreadable, f"can't be read in {device}", "the engine needs them", "Let its user read them there.")
    yield from differ(result.refused, f"in {device} are links that lead out of it", "the engine follows none of those",
                      "Put the files there themselves, or deploy with a --root that holds what they lead to.")  # fmt: skip
    yield from differ(result.missing_there, f"missing in {device}", "the host makes their batches itself", mend)
    yield from differ(result.sizes, f"of another size in {device}", "the device would make other images of them", mend)
    yield from differ(result.contents, f"with other contents in {device}", "the device would make other images of them",
                      mend.replace("rsync -a", "rsync -a --checksum"))  # fmt: skip
    yield from differ(result.unreadable_here, f"can't be read here, in {host}", "a loader reads them here as well",
                      "Let this user read them.", warn)  # fmt: skip
    yield from differ(result.missing_here, f"more in {device}", "no loader of this host asks for them", "", warn)
    if result.same:
        yield ok(f"{host} is {device} there: {result.coverage}")


def of_parity(record: DeviceRecord, parity: Parity) -> Iterator[Finding]:
    """Whether the operators make the same pixels, and which don't."""
    versions = ", ".join(
        f"{name} {parity.there.get(name, 'none')} there, {parity.here.get(name, 'none')} here"
        for name in ("pillow", "libjpeg", "numpy", "kernel")
        if parity.here.get(name) != parity.there.get(name)
    )
    count = len(parity.rows)
    for row in parity.differing:
        yield bad(str(row), f"the device makes other pixels ({versions or 'same versions of Pillow and numpy'})",
                  f"Bring Pillow there and here to one version (pip install Pillow==..., ddlp deploy --name {record.name}); "
                  "or do without this in pipelines; or take the difference: allow_different_bits=True")  # fmt: skip
    if not parity.differing:
        yield ok(f"{count} operators and decoders make the same pixels" + (f" ({versions})" if versions else ""))


def of_probe(spool: str, probe: Probe) -> Iterator[Finding]:
    """Say how batch files of a spool get into GPU memory."""
    if not probe.gpu:
        yield ok("no NVIDIA GPU here: batches stay in the host's memory")
        return
    speed = "" if probe.gb_per_s is None else f", {probe.gb_per_s:g} GB/s in one read"
    if probe.kind == "gds":
        yield ok(f"gds: {spool} is read straight into GPU memory ({probe.reason}{speed})")
        return
    how = "cuFile copies through" if probe.kind == "cufile-compat" else "files are read into"
    way_out = "; and ".join(probe.ways_out)
    what = f"{probe.kind}: no GPUDirect Storage from {spool}; {how} the host's memory{speed}"
    yield warn(what, probe.reason, way_out[:1].upper() + way_out[1:])
