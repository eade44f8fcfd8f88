"""Deploying an engine: the steps in their order. Each looks first and changes only what is not as it should be.

So a second run changes nothing, and the next run mends one that was broken off anywhere.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from csd_engine.data.objects.environment import environment_file
from csd_engine.errors import EngineError, EngineRefused
from csd_engine.machine.build import build
from ddlp.deploy import address, checks, diagnosis, kernel, place, settings, spooldir
from ddlp.deploy.advice import upgrade
from ddlp.deploy.findings import DeviceNotReady, Finding, Level, bad, ok, warn
from ddlp.deploy.install import install_apt, install_bundle, install_pip
from ddlp.deploy.prove import Trial, check_port, of_spool, of_storage, some_images
from ddlp.deploy.service import Service
from ddlp.deploy.shell import CommandFailed, Shell, ShellError
from ddlp.deploy.steps import Step, Steps
from ddlp.deploy.survey import Python, Survey, survey
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord
from ddlp.devices.device import Device
from ddlp.errors import DDLPError
from ddlp.sources.engine.device_link import link_to
from ddlp.sources.engine.link import EngineLink

__all__ = ["Wanted", "deploy"]

_GREET_TIMEOUT_S = 20.0
_RATE_S = 4.0  # how long a device's images/s are measured


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is to be deployed.

    Attributes:
        record: name, destination, ssh_options, roots, spools, home, engine_options and the given values, as wanted. Values
            that are found out later are those of the run before, if there was one.
        given_options: those of engine_options that were given now, with their values.
        changes: the options given now that would change the engine's settings.
        reserve_bytes: what the engine leaves free on the spool's disk.
        install: ``apt``, ``pip`` or ``no``.
        bundle: directory of .whl and .deb files to install from; None.
        operators: files of the user's operators.
        upgrade: replace another build by this host's.
    """

    record: DeviceRecord
    given_options: Mapping[str, str]
    changes: tuple[str, ...]
    reserve_bytes: int
    install: str
    bundle: Path | None
    operators: tuple[Path, ...]
    upgrade: bool


def deploy(wanted: Wanted, steps: Steps) -> tuple[DeviceRecord, list[Finding]]:
    """Deploy; returns the stored record, and the findings that the user should look at.

    Raises:
        DeviceNotReady: checks failed; nothing was changed, except that requested packages may be installed.
        ShellError, EngineError, DDLPError: a step failed. The next run goes on from there.
    """
    with book.locked(wanted.record.name), Shell(wanted.record.destination, wanted.record.ssh_options) as shell:
        return _Deployment(wanted, shell, steps).run()


class _Deployment:
    """One run. Its attributes hold what the steps have found out so far."""

    def __init__(self, wanted: Wanted, shell: Shell, steps: Steps) -> None:
        self._wanted, self._shell, self._steps = wanted, shell, steps
        self._record = wanted.record
        self._findings: list[Finding] = []
        self._survey: Survey
        self._address: str  # where the engine is to be reached
        self._number = ""  # the build that is to run
        self._restart = False
        self._before: tuple[str, str] | None = None  # build and settings to go back to
        self._keeps_another_build = False
        self._started = False  # by this run
        self._reads: list[str] = []  # the paths that the engine reads
        self._cache = ""  # the directory of its cache; empty: it has none
        self._environment = ""  # the file with settings and credentials of storages; empty: it has none

    def run(self) -> tuple[DeviceRecord, list[Finding]]:
        with self._steps.step("connect") as step:
            self._shell.connect()
            self._address = address.engine_address(self._record)
            step.say(f"{self._record.destination} answers")
        self._check()
        self._refuse_changes_to_another_build()
        place.claim(self._shell, self._survey)
        if checks.missing(self._survey):
            self._install()
        self._restart |= bool(self._record.build) and self._record.python != self._python
        self._record = dataclasses.replace(
            self._record,
            home=self._survey.home,
            python=self._python,
            machine=self._survey.machine,
            service="systemd" if self._survey.systemd else "supervised",
        )
        if not self._record.address:
            book.save(self._record)  # ddlp logs, stop and --uninstall need it, even if a later step fails
        self._put()
        self._serve()
        link = self._greet()
        try:
            self._prove(link)
        finally:
            link.close()
        return self._record, self._findings

    # -- before anything is changed

    @property
    def _python(self) -> str:
        assert self._survey.python is not None
        return self._survey.python.path

    def _look(self) -> list[Finding]:
        record = self._record
        roots = [device for _, device in record.roots]
        home = place.check_home(record.home)
        environment = environment_file(record.options.get("--environment", "none"))
        self._survey = survey(self._shell, home, record.device_spool, roots, record.given_python, environment)
        if self._survey.python is None and record.given_python is not None:  # removed since it was given, say
            self._survey = dataclasses.replace(self._survey, python=Python(record.given_python, ()))
        return [*checks.check(self._survey, self._wanted.reserve_bytes), *settings.check(self._survey, record)]

    def _check(self) -> None:
        with self._steps.step("check") as step:
            findings = self._look()
            wanted = self._wanted
            will_install = wanted.install != "no" or wanted.bundle is not None
            of_python = set(checks.check_python(self._survey)) if will_install else set()
            for finding in findings:
                step.say(finding)
            self._stop_if_bad([finding for finding in findings if finding not in of_python])
            self._findings += [finding for finding in findings if finding.level is Level.WARN]

    def _stop_if_bad(self, findings: list[Finding]) -> None:
        wrong = [finding for finding in findings if finding.level is Level.BAD]
        if wrong:
            raise DeviceNotReady(self._record.name, *wrong)

    @property
    def _another_build(self) -> str | None:
        """The build that runs there, if it is not this host's; else None."""
        survey = self._survey
        return survey.current if survey.current not in (None, build()) and survey.whole > 0 else None

    def _refuse_changes_to_another_build(self) -> None:
        wanted, another = self._wanted, self._another_build
        if another is not None and wanted.changes and not wanted.upgrade:
            name, changes = self._record.name, " and ".join(wanted.changes)
            raise DDLPError(
                f"{name} runs build {another[:12]} of the engine, this host has {build()[:12]}: {changes} would change that "
                f"one's settings. Give --upgrade as well, or first: {upgrade(name)}. Nothing was changed."
            )

    def _install(self) -> None:
        wanted = self._wanted
        with self._steps.step("install") as step:
            names = ", ".join(checks.missing(self._survey))
            if wanted.bundle is not None:
                install_bundle(self._shell, self._survey, wanted.bundle, step.waiting)
            elif wanted.install == "apt":
                install_apt(self._shell, self._survey, step.waiting)
            else:
                install_pip(self._shell, self._survey, step.waiting)
            self._steps.changed = True
            findings = self._look()
            self._stop_if_bad(findings)
            step.say(f"{names}: installed; {'; '.join(finding.what for finding in checks.check_python(self._survey))}")

    # -- what is put there

    def _put(self) -> None:
        shell, survey, wanted, record = self._shell, self._survey, self._wanted, self._record
        with self._steps.step("engine") as step:
            self._put_engine(step)
        with self._steps.step("kernel") as step:
            self._put_kernel(step)
        with self._steps.step("keys") as step:
            changed = place.exchange_keys(shell, survey, record.name, self._number)
            self._restart |= changed and survey.server_key is None
            self._note(step, changed, "exchanged: each side's secret key was made there, and stays there")
        if wanted.operators or record.operators:
            with self._steps.step("operators") as step:
                files = place.put_operators(shell, survey, record.name, wanted.operators)
                new = set(files) - set(survey.operators)
                self._record = record = dataclasses.replace(record, operators={**files, **record.operators})
                self._note(step, bool(new), f"copied: {', '.join(sorted(record.operators[file] for file in new))}")
        if self._keeps_another_build:
            there = settings.Settings.parse(survey.settings)
            if there is not None:
                self._reads, self._cache, self._environment = there.reads, there.cache, there.environment
            return  # that build may have other options than ours
        with self._steps.step("settings") as step:
            place.make_directory(shell, survey.home, record.device_spool)
            written = settings.make(survey, record, wanted.given_options, ipv6="[" in self._address)
            self._reads, self._cache, self._environment = written.reads, written.cache, written.environment
            if self._cache:
                place.make_directory(shell, survey.home, self._cache, "700")  # the service's user gets it
            changed = settings.put(shell, survey, record, written.text)
            self._restart |= changed
            if changed and survey.settings and survey.current == self._number and settings.others(survey, record.name):
                # Other hosts use this engine: if the new settings fail, the old ones must run again.
                self._before = (self._number, survey.settings)
            self._note(step, changed, "written")

    def _note(self, step: Step, changed: bool, text: str) -> None:
        step.say(text if changed else "unchanged")
        self._steps.changed |= changed

    def _tell(self, step: Step, finding: Finding) -> None:
        """Show a finding of a step other than the checks now, and again at the end unless all is well."""
        step.say(finding)
        if finding.level is not Level.OK:
            self._findings.append(finding)

    def _put_engine(self, step: Step) -> None:
        survey = self._survey
        if place.own_build_is_there(survey):
            assert survey.current is not None
            self._number = survey.current
            step.say(f"unchanged, build {self._number[:12]}")
            return
        another = self._another_build
        if another is not None and not self._wanted.upgrade:
            self._number = another
            self._keeps_another_build = True
            finding = warn(
                f"build {self._number[:12]} is there, this host has {build()[:12]}",
                "versions differ, so its engine and settings are left as they are",
                upgrade(self._record.name),
            )
            self._tell(step, finding)
            return
        if another is not None and survey.settings is not None:
            self._before = (another, survey.settings)
        self._number = place.put_engine(self._shell, survey.home)
        self._restart = self._steps.changed = True
        step.say(f"build {self._number[:12]} unpacked" + (f" beside {another[:12]}" if another is not None else ""))

    def _put_kernel(self, step: Step) -> None:
        if self._keeps_another_build:
            step.say("left as it is, with its engine")
            return
        record, home = self._record, self._survey.home
        changed, line = kernel.bring(self._shell, self._python, home, self._number, record.kernel_choice, step.waiting)
        self._restart |= changed
        self._steps.changed |= changed
        step.say(line)

    # -- the service

    @property
    def _service(self) -> Service:
        return Service.of(self._record, self._shell)

    def _serve(self) -> None:
        survey = self._survey
        with self._steps.step("service") as step:
            boots = self._enable(step)
            service = self._service
            user = service.not_lingering()
            if user:
                self._tell(step, diagnosis.of_lingering(user))
            running = survey.supervisor is not None and survey.state.startswith("ready")
            if running and not self._restart and not boots:
                step.say(f"unchanged, {self._record.service}, listens on {survey.state.split()[1]}")
                return
            self._steps.changed = True
            service.stop()
            if survey.current != self._number or self._before is not None:
                place.switch(self._shell, survey.home, self._number)
            try:
                listens = service.start()
            except ShellError as error:
                self._back(step, error)
                raise
            self._started = True
            how = {"systemd": "by systemd", "supervised": "by a supervisor of ours"}[self._record.service]
            step.say(f"{'restarted' if running else 'started'}, kept running {how}; listens on {listens}")

    def _enable(self, step: Step) -> bool:
        """Let the engine start at boot; True if that changed something. If that can't be done, the engine runs all the same."""
        try:
            return self._service.enable(self._reads, self._cache)
        except CommandFailed as error:
            self._record = dataclasses.replace(self._record, service="supervised")
            self._tell(step, diagnosis.of_no_boot(self._record, str(error)))
            return False

    def _back(self, step: Step, why: Exception) -> None:
        """Go back to the build and settings before. Without them only stop the engine, so that it does not fail again."""
        self._service.stop()
        if self._before is None:
            return
        number, settings = self._before
        place.switch(self._shell, self._survey.home, number)
        self._shell.put(settings.encode() + b"\n", f"{self._survey.home}/engine.json", 0o600)
        self._service.start()
        place.drop_old_builds(self._shell, self._survey.home, number)
        step.say(bad(f"build {self._number[:12]}", str(why), f"Build {number[:12]} runs again; nothing is lost."))

    # -- what a running engine has to prove

    def _link(self) -> EngineLink:
        device = Device(
            self._address, book.directory(self._record.name), self._record.host_spool, connect_timeout_s=_GREET_TIMEOUT_S
        )
        return link_to(device)

    def _greet(self) -> EngineLink:
        link, versions = self._shake_hands()
        replaced = "" if self._started else checks.replaced(self._survey.python, versions)
        if replaced:
            link.close()
            with self._steps.step("service") as step:
                self._service.stop()
                step.say(f"restarted, since packages there were replaced ({replaced}); listens on {self._service.start()}")
                self._steps.changed = True
            link, versions = self._shake_hands()
        if set(self._survey.builds) - {self._number}:
            place.drop_old_builds(self._shell, self._survey.home, self._number)
        self._record = dataclasses.replace(self._record, address=self._address, build=self._number, versions=versions)
        if not self._keeps_another_build:
            spooldir.clear_replaced(self._shell, self._steps, self._record)
        self._save()
        return link

    def _shake_hands(self) -> tuple[EngineLink, dict[str, str]]:
        """Connect to the running engine; returns the link, and the versions that the engine reports."""
        with self._steps.step("handshake") as step:
            reached = check_port(self._address)
            link = self._link()
            try:
                if reached.level is not Level.OK:
                    raise DeviceNotReady(self._record.name, reached)
                versions = dict(link.open().versions)
            except (EngineError, DeviceNotReady) as error:
                link.close()
                if self._before is not None:
                    self._back(step, error)
                    raise
                if isinstance(error, EngineRefused) and "protocol" in str(error):
                    raise DDLPError(f"{error} Here: {upgrade(self._record.name)}.") from error
                raise
            summary = ", ".join(f"{name} {versions[name]}" for name in ("csd_engine", "numpy", "pillow") if name in versions)
            step.say(f"{self._address}: {summary}")
        return link, versions

    def _save(self) -> None:
        try:
            unchanged = book.load(self._record.name) == self._record
        except DDLPError:
            unchanged = False
        if not unchanged:
            book.save(self._record)

    def _prove(self, link: EngineLink) -> None:
        with self._steps.step("spool") as step:
            self._tell(step, of_spool(self._shell, self._record))
        for host, device in self._record.directories:
            with self._steps.step("data") as step:
                self._tell(step, self._try(link, host, device, step))
        for url in self._record.urls:
            with self._steps.step("data") as step:
                self._tell(step, of_storage(self._shell, self._record, url, self._environment, self._record.versions))
        if not self._record.directories:
            with self._steps.step("images") as step:
                step.say(
                    "no bits were compared and no images/s measured, since no --root is a directory; the operators are "
                    f"compared by ddlp doctor {self._record.name}"
                )

    def _try(self, link: EngineLink, host: str, device: str, step: Step) -> Finding:
        """Compare some of the user's images bit by bit on both sides, and measure their rate."""
        if not os.path.isdir(host):
            return diagnosis.of_no_root(self._record, host, device)
        paths = some_images(host)
        if not paths:
            return ok(f"data {host}: no image files to compare")
        with Trial(link, host, paths) as trial:
            finding = trial.compare(self._record, device)
            if finding.level is not Level.OK:
                return finding
            rate = trial.images_per_s(lambda count: setattr(step, "doing", f"{count} images"), _RATE_S)
            return ok(finding.what + ("" if rate is None else f"; {rate:.1f} images/s through RandomResizedCrop(224)"))
