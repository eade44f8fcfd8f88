"""Find out what is wrong with a device, and what to do: its SSH, system, files, kernel, keys, service, spool, data, pixels.

Without a name this computer alone is looked at: whether it has the kernel, and whether files of the spool can be read
straight into the GPU's memory (a probe file is written there, read and removed); and what would bring them.

Checks go from causes to effects; what depends on a failed one is not asked. At the end stands the one thing to do first.
Nothing is changed. The exit status is 1 where something stands in the way, else 0.

The data sets on both sides are compared: all names and sizes, and the contents of a sample (drawn anew each time, with the
largest and the last changed files); --verify compares the contents of all files.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator

from csd_engine.data.objects.environment import environment_file
from csd_engine.errors import EngineError, EngineUnreachable
from csd_engine.kernels.report import report
from csd_engine.tools.census import CensusBrokenOff
from ddlp.deploy import checks, diagnosis
from ddlp.deploy.address import engine_address
from ddlp.deploy.advice import upgrade
from ddlp.deploy.census import CensusResult, take_census
from ddlp.deploy.command import reserve_bytes
from ddlp.deploy.findings import Finding, Level, bad, ok
from ddlp.deploy.kernel import look
from ddlp.deploy.options import add_device, add_json
from ddlp.deploy.parity import compare_device
from ddlp.deploy.place import engine_module
from ddlp.deploy.prove import Trial, check_port, of_spool, of_storage, some_images
from ddlp.deploy.service import Service
from ddlp.deploy.settings import Settings
from ddlp.deploy.shell import CommandFailed, Shell
from ddlp.deploy.steps import Step, Steps
from ddlp.deploy.survey import Survey, survey
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord
from ddlp.devices.device import Device
from ddlp.errors import DDLPError
from ddlp.sources.engine.device_link import link_to
from ddlp.sources.engine.embedded import default_spool
from ddlp.sources.engine.link import EngineLink
from ddlp.transfer.gds.probe import probe

__all__ = ["Checkup", "examine", "examine_host"]

_GREET_TIMEOUT_S = 10.0
_DIGESTS_TIMEOUT_S = 1800.0  # for reading the sample of files: at most 1 GiB


@dataclasses.dataclass
class Checkup:
    """What was found, causes before effects: (check, finding). Also the checks that were left out because another failed."""

    name: str
    findings: list[tuple[str, Finding]] = dataclasses.field(default_factory=list)
    not_asked: list[str] = dataclasses.field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Nothing stands in the way."""
        return all(finding.level is not Level.BAD for _, finding in self.findings)

    @property
    def first(self) -> Finding | None:
        """What to do first: the first finding with a way out, of those that stand in the way, else of the warnings."""
        for level in (Level.BAD, Level.WARN):
            for _, finding in self.findings:
                if finding.level is level and finding.way_out:
                    return finding
        return None

    def to_data(self) -> dict[str, object]:
        """Plain data for JSON."""
        first = self.first
        return {
            "name": self.name,
            "healthy": self.healthy,
            "first": None if first is None else first.way_out,
            "checks": [
                {"check": check, **vars(finding), "level": finding.level.value} for check, finding in self.findings
            ],
            "not_asked": self.not_asked,
        }


def examine(record: DeviceRecord, steps: Steps, *, verify: bool = False) -> Checkup:
    """Check a device.

    Args:
        record: of it.
        steps: prints as it goes.
        verify: compare the contents of all files of the data sets.
    """
    with Shell(record.destination, record.ssh_options) as shell:
        return _Examination(record, shell, steps, verify).run()


class _Examination:
    """One examination. Its attributes hold what the checks have found out so far."""

    def __init__(self, record: DeviceRecord, shell: Shell, steps: Steps, verify: bool) -> None:
        self._record, self._shell, self._steps, self._verify = record, shell, steps, verify
        self._checkup = Checkup(record.name)
        self._last_survey: Survey | None = None
        self._link: EngineLink | None = None
        self._versions: dict[str, str] | None = None  # what the engine tells

    def run(self) -> Checkup:
        try:
            self._check("this host", _host)
            reached = connected = self._check("ssh", self._connect)
            fit = self._check("device", self._system, reached)
            reached = reached and self._last_survey is not None
            files = self._check("engine", self._files, reached)
            self._check("kernel", self._kernel, files and self._python_runs)
            keys = self._check("keys", lambda _: iter([diagnosis.of_keys(self._record, self._survey)]), reached)
            runs = self._check("service", self._service, files)
            # If ssh fails, the engine may still answer. Then training goes on, and only ssh must be mended.
            greeted = self._check("handshake", self._greet, runs and keys if connected else True)
            self._check("spool", lambda _: iter([of_spool(self._shell, self._record)]), reached)
            alike = self._check("data", self._data, files and self._python_runs)
            # A user can bypass the engine's checks of versions, so the pixels themselves are compared.
            same = self._check("pixels", self._pixels, files and fit)
            self._check("images", self._images, greeted and alike and same)
        finally:
            if self._link is not None:
                self._link.close()
        return self._checkup

    def _check(self, title: str, ask: Callable[[Step], Iterable[Finding]], possible: bool = True) -> bool:
        """Make one check if that is possible; True if nothing in it stands in the way."""
        if not possible:
            self._checkup.not_asked.append(title)
            return False
        good = True
        with self._steps.step(title) as step:

            def tell(finding: Finding) -> None:
                nonlocal good
                good = good and finding.level is not Level.BAD
                self._checkup.findings.append((title, finding))
                step.say(finding)

            try:
                for finding in ask(step):
                    tell(finding)
            except (DDLPError, EngineError) as error:
                what, _, way_out = str(error).partition(". ")
                tell(bad(what, "", way_out or "Mend that, and ask again."))
        return good

    @property
    def _survey(self) -> Survey:
        assert self._last_survey is not None
        return self._last_survey

    @property
    def _python_runs(self) -> bool:
        return self._survey.python is not None and self._survey.python.new_enough

    # -- the checks

    def _connect(self, _: Step) -> Iterator[Finding]:
        self._shell.connect()
        yield ok(f"{self._record.destination} answers")

    def _system(self, _: Step) -> Iterator[Finding]:
        record = self._record
        roots = [device for _, device in record.roots]
        environment = environment_file(record.options.get("--environment", "none"))
        self._last_survey = survey(self._shell, record.home, record.device_spool, roots, record.python, environment)
        for finding in checks.check(self._survey, reserve_bytes(record.engine_options)):
            yield self._as_command(finding)

    def _as_command(self, finding: Finding) -> Finding:
        """Name the command in the way out of a finding that `ddlp deploy` makes as well: it names options only."""
        if finding.level is Level.OK or "--" not in finding.way_out:
            return finding
        way_out = f"{finding.way_out} (These are options of: ddlp deploy --name {self._record.name})"
        return dataclasses.replace(finding, way_out=way_out)

    def _files(self, _: Step) -> Iterator[Finding]:
        return diagnosis.of_files(self._record, self._survey)

    def _kernel(self, _: Step) -> Iterator[Finding]:
        yield diagnosis.of_kernel(look(self._shell, self._record.python, self._survey.home), self._record)

    def _service(self, _: Step) -> Iterator[Finding]:
        boots, user = None, ""
        if self._record.service == "systemd":
            service = Service.of(self._record, self._shell)
            boots, user = service.is_enabled(), service.not_lingering()
        yield from diagnosis.of_service(self._record, self._survey, boots)
        if user:
            yield diagnosis.of_lingering(user)

    def _greet(self, _: Step) -> Iterator[Finding]:
        record = self._record
        if self._last_survey is not None:
            port = check_port(record.address or engine_address(record))  # the address is empty until the engine has answered
            if port.level is Level.BAD:
                yield self._as_command(port)
                return
        link = link_to(dataclasses.replace(Device.at(record.name), connect_timeout_s=_GREET_TIMEOUT_S))
        try:
            welcome = link.open()
            status = link.status()
        except EngineError as error:
            link.close()
            yield self._why_not_greeted(error)
            return
        self._link, self._versions = link, dict(welcome.versions)
        python = None if self._last_survey is None else self._last_survey.python
        yield from diagnosis.of_versions(record, self._versions, python)
        yield from diagnosis.of_status(record, status)

    def _why_not_greeted(self, error: EngineError) -> Finding:
        name = self._record.name
        what, _, way_out = str(error).partition(". ")
        if self._last_survey is None:
            return bad(what, "", f"Mend ssh first; then ask again: ddlp doctor {name}")
        if isinstance(error, EngineUnreachable):
            again = f"ddlp stop {name} && ddlp start {name}. See ddlp logs {name}"
            return bad("the engine runs, but hangs", f"its port is open, and nothing comes from it ({what})", again)
        return bad(what, "", upgrade(name) if "protocol" in str(error) else way_out)

    def _data(self, step: Step) -> Iterator[Finding]:
        for url in self._record.urls:
            there = Settings.parse(self._survey.settings)
            yield of_storage(self._shell, self._record, url, there.environment if there else "", self._versions)
        for host, device in self._record.directories:
            if not os.path.isdir(host):
                yield diagnosis.of_no_root(self._record, host, device)
                continue
            try:
                yield from diagnosis.of_census(self._record, host, device, self._compare(host, device, step))
            except CommandFailed as error:
                yield bad(f"the data set in {device} can't be compared", str(error), upgrade(self._record.name))

    def _compare(self, host: str, device: str, step: Step) -> CensusResult:
        record = self._record
        skip = _left_out(host, record.host_spool) | _left_out(device, record.device_spool, record.home)
        census = [record.python, record.home, "csd_engine.tools.census", device]
        options = [f"--skip={path}" for path in sorted(skip)] + ["--verify"] * self._verify

        def ask(paths: list[bytes]) -> Iterable[bytes]:
            step.doing = f"contents of {len(paths)} files"
            command, doing = engine_module(*census, "--digests"), "comparing contents"
            names = b"".join(path + b"\0" for path in paths)
            with self._shell.stream(command, doing, input=names, timeout_s=_DIGESTS_TIMEOUT_S) as read:
                return b"".join(iter(lambda: read(1 << 16), b"")).split(b"\0")[:-1]

        def progress(result: CensusResult) -> None:
            step.doing = f"{result.files:,} files"

        broken: CensusBrokenOff
        with self._shell.stream(engine_module(*census, *options), "comparing data sets") as read:
            left_out = {os.fsencode(path) for path in skip}
            try:
                return take_census(host, read, ask, verify=self._verify, skip=left_out, progress=progress)
            except CensusBrokenOff as error:
                broken = error  # the end of the block first raises the command's own error, if any: it says more
        raise broken

    def _pixels(self, _: Step) -> Iterator[Finding]:
        return diagnosis.of_parity(self._record, compare_device(self._shell, self._record))

    def _images(self, _: Step) -> Iterator[Finding]:
        """Let the engine prepare some of the user's images: this tests all of the above together."""
        assert self._link is not None
        if not self._record.directories:
            yield ok("no --root is a directory: there are no images to compare")
        for host, device in self._record.directories:
            if paths := some_images(host):
                with Trial(self._link, host, paths) as trial:
                    yield trial.compare(self._record, device)


def _host(_: Step) -> Iterator[Finding]:
    yield diagnosis.of_kernel(report())


def examine_host(steps: Steps, spool: str | None = None) -> Checkup:
    """Check this computer alone: its kernel, and the way from its spool to a GPU. ``spool``: None: the loader's default."""
    spool = os.path.abspath(spool or default_spool())
    checkup = Checkup("this host")

    def gpu(_: Step) -> Iterator[Finding]:
        yield from diagnosis.of_probe(spool, probe(spool))

    for title, ask in (("kernel", _host), ("gpu", gpu)):
        with steps.step(title) as step:
            for finding in ask(step):
                checkup.findings.append((title, finding))
                step.say(finding)
    return checkup


def _left_out(root: str, *directories: str | None) -> set[str]:
    """Those of the directories that lie below the root, relative to it. They are ours and not part of a data set."""
    inside = set()
    for directory in directories:
        if directory is not None and posixpath.normpath(directory).startswith(posixpath.normpath(root).rstrip("/") + "/"):
            inside.add(posixpath.relpath(directory, root))
    return inside


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_device(parser, without="this host alone")
    parser.add_argument("--verify", action="store_true", help="compare the contents of all files, not of a sample")
    parser.add_argument(
        "--spool", metavar="DIR", help="without NAME: where batch files lie; default: $DDLP_SPOOL, else the temporary directory"
    )
    add_json(parser, "the findings")


def run(options: argparse.Namespace) -> int:
    """Examine and print; the exit status is 1 where something stands in the way."""
    if options.name is not None and options.spool is not None:
        raise DDLPError(f"--spool is for this host alone; leave it out, or the name {options.name}.")
    steps = Steps(io.StringIO() if options.json else None)
    if options.name is None:
        checkup = examine_host(steps, options.spool)
    else:
        checkup = examine(book.load(options.name), steps, verify=options.verify)
    if options.json:
        print(json.dumps(checkup.to_data()))
        return 0 if checkup.healthy else 1
    print()
    if checkup.not_asked:
        print(f"Not asked, since it depends on what failed: {', '.join(checkup.not_asked)}.")
    first = checkup.first
    if first is None:
        print(f"Nothing is wrong with {checkup.name}.")
    elif checkup.healthy:
        print(f"{checkup.name} works. What could be better: {first.what}. {first.way_out}")
    else:
        print(f"Do this first: {first.way_out}")
    return 0 if checkup.healthy else 1
