"""Replace the keys of a device and of this host for it by fresh ones, over SSH.

The host's key: a new pair is made here, the engine is told its public half beside the old one, and once this host has come in
with it, the old key is taken off the engine's list. Connections that were opened with the old one end then: running training
goes on, and joins the device again with the new key.

The engine's key: a new pair is made on the device, and the engine started anew with it. Where this host does not come in then,
the engine goes back to the old pair. An engine has one key only: other hosts that use it have to learn the new one by
`ddlp deploy --name NAME`, and train without the device until then.

Secret halves stay where they are made. What broke off in between is finished or taken back by the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil

from csd_engine.errors import EngineError
from csd_engine.protocol.keys import load_pair, load_public, make_pair
from ddlp.deploy import place, settings
from ddlp.deploy.options import add_device
from ddlp.deploy.service import Service
from ddlp.deploy.shell import Shell, ShellError
from ddlp.deploy.steps import Step, Steps
from ddlp.deploy.survey import Survey, survey
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord
from ddlp.devices.device import Device
from ddlp.errors import DDLPError
from ddlp.sources.engine.device_link import link_to

_NEXT = "next-keys"  # below the device's directory here: what is tried before it takes the old ones' place
_GREET_TIMEOUT_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("action", choices=["rotate"], help="make fresh keys, and take the old ones away")
    add_device(parser)
    parser.add_argument("--only", choices=["host", "engine"], help="the key of this host, or of the engine; default: both")


def run(options: argparse.Namespace) -> int:
    """Do it."""
    record, steps = book.load(options.name), Steps()
    with book.locked(record.name), Shell(record.destination, record.ssh_options) as shell:
        rotation = _Rotation(shell, record)
        if options.only != "engine":
            with steps.step("host key") as step:
                rotation.host(step)
        if options.only != "host":
            with steps.step("engine key") as step:
                rotation.engine(step)
    return 0


class _Rotation:
    """New keys for one device."""

    def __init__(self, shell: Shell, record: DeviceRecord) -> None:
        self._shell, self._record = shell, record
        self._here = book.directory(record.name)
        self._next = self._here / _NEXT
        self._again = f"ddlp deploy --name {record.name}"
        if not (self._here / "host.key_secret").exists() or not (self._here / "server.key").exists():
            raise DDLPError(f"this host has no keys for {record.name} yet. First: {self._again}")

    def _survey(self) -> Survey:
        return survey(self._shell, place.check_home(self._record.home), self._record.device_spool, [])

    def _greet(self) -> None:
        """Come in with the keys in the directory of those that are tried. Raises EngineError."""
        link = link_to(Device(self._record.address, self._next, None, connect_timeout_s=_GREET_TIMEOUT_S))
        try:
            link.open()
        finally:
            link.close()

    def _begin(self) -> None:
        """Make an empty directory for the keys that are tried."""
        shutil.rmtree(self._next, ignore_errors=True)
        self._next.mkdir(mode=0o700)

    # -- this host's

    def host(self, step: Step) -> None:
        """Replace this host's pair."""
        survey = self._survey()
        old = load_public(self._here / "host.key").decode()
        if load_pair(self._here / "host.key_secret").public.decode() != old:  # broken off: the new pair was used already
            self._finish_host(survey, old)
            step.say("an earlier run is finished: the new key is in use, the old one is gone")
            return
        if old not in survey.clients:
            raise DDLPError(f"the engine of {self._record.name} does not know this host's key. First: {self._again}")
        self._begin()
        make_pair(self._next, "host")
        new = load_public(self._next / "host.key").decode()
        shutil.copyfile(self._here / "server.key", self._next / "server.key")
        roots = survey.clients[old]
        if roots:
            self._shell.put(roots.encode() + b"\n", place.client_file(survey.home, new, "roots"))
        self._shell.put((self._next / "host.key").read_bytes(), place.client_file(survey.home, new, "key"))
        try:
            self._greet()
        except EngineError as error:
            place.remove_client(self._shell, survey.home, new)
            shutil.rmtree(self._next)
            raise DDLPError(f"{self._record.name} was not reached with the new key, and the old one stays: {error}") from error
        os.replace(self._next / "host.key_secret", self._here / "host.key_secret")  # from here on the new one is used
        self._finish_host(survey, old)
        step.say("the engine knows the new one, this host has come in with it, and the old one is gone")

    def _finish_host(self, survey: Survey, old: str) -> None:
        """Take the old key away, on both sides; that of this host last, since it tells the next run that this one broke off."""
        place.remove_client(self._shell, survey.home, old)
        if (self._next / "host.key").exists():
            os.replace(self._next / "host.key", self._here / "host.key")
        shutil.rmtree(self._next, ignore_errors=True)

    # -- the engine's

    def engine(self, step: Step) -> None:
        """Replace the engine's pair, and start the engine anew."""
        survey = self._survey()
        if survey.server_key is None or survey.current is None:
            raise DDLPError(f"there is no engine with keys in {survey.home}. First: {self._again}")
        keys = shlex.quote(f"{survey.home}/keys")
        make = place.engine_module(
            self._record.python, survey.home, "csd_engine", "--make-pair", f"{survey.home}/keys/next", "server"
        )
        self._shell.must(f"umask 077; rm -rf {keys}/next; {make}", "making the engine's keys", timeout_s=300)
        public = self._shell.must(f"cat {keys}/next/server.key", "reading the engine's new public key", timeout_s=60)
        self._begin()
        shutil.copyfile(self._here / "host.key_secret", self._next / "host.key_secret")
        os.chmod(self._next / "host.key_secret", 0o600)
        (self._next / "server.key").write_text(public)
        try:
            self._exchange(keys, "old", "next")
            self._restart()
            self._greet()
        except (EngineError, ShellError) as error:
            with contextlib.suppress(ShellError):
                self._exchange(keys, "next", "old")
                self._restart()
            shutil.rmtree(self._next)
            raise DDLPError(f"{self._record.name} did not serve with the new key, and goes back to the old: {error}") from error
        os.replace(self._next / "server.key", self._here / "server.key")
        shutil.rmtree(self._next)
        self._shell.must(f"rm -rf {keys}/old {keys}/next", "removing the engine's old keys", timeout_s=60)
        step.say("the engine was started anew with the new one, this host has come in, and the old one is gone")
        rest = settings.others(survey, self._record.name)
        if rest:
            step.say(f"{settings.hosts(rest)} must learn it: ddlp deploy --name {self._record.name}, typed there")

    def _exchange(self, keys: str, away: str, here: str) -> None:
        """Move the engine's pair into the directory `away`, and that of `here` into its place."""
        self._shell.must(
            f"umask 077; cd {keys} && [ -e {here}/server.key_secret ] && rm -rf {away} && mkdir {away} && "
            f"mv server.key server.key_secret {away}/ && mv {here}/server.key {here}/server.key_secret .",
            "exchanging the engine's keys",
            timeout_s=60,
        )

    def _restart(self) -> None:
        service = Service.of(self._record, self._shell)
        service.stop()
        service.start()
