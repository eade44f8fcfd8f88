"""The engine as a service on the device: under systemd, or under our supervisor alone, which nothing starts at boot.

Either way the supervisor (`csd_engine.tools.supervisor`) runs the engine, keeps its log and tells its state.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from ddlp.deploy.sandbox import DROP, TAKE, quoted, sandbox
from ddlp.deploy.shell import CommandFailed, Shell
from ddlp.devices.address_book import DeviceRecord

__all__ = ["KEEPS", "Service", "state_of", "supervisor_command", "unit"]

START_TIMEOUT_S = 180.0  # until the engine says that it serves; Python with numpy takes its time on a board
_STOP_TIMEOUT_S = 40.0
_SYSTEM_UNITS = "/etc/systemd/system"
_PAUSE = "if sleep 0.2 2> /dev/null; then i=$((i+2)); else sleep 1; i=$((i+10)); fi"  # i in tenths; not every sleep takes them

# Compare whole arguments: a shell with these words in its script is not our supervisor. Most busybox greps have no -z.
KEEPS = r"""
keeps() {
  case "
$(tr '\0' '\n' 2> /dev/null < "/proc/$1/cmdline")
" in *"
csd_engine.tools.supervisor
$2
"*) ;; *) return 1 ;; esac
}
"""
"""Defines `keeps PID HOME`: whether a process is the supervisor of a directory."""


def state_of(text: str) -> str:
    """Return the supervisor's state as a device has told it; empty if it says that it is ready, and not where it listens."""
    text = text.strip()
    return "" if text.startswith("ready") and not re.match(r"ready \S+:[0-9]{1,5}(\s|$)", text) else text


def supervisor_command(python: str, home: str) -> str:
    """The shell command that runs the supervisor in the foreground."""
    return (
        f"env PYTHONPATH={shlex.quote(home + '/current')} PYTHONSAFEPATH=1 "
        f"{shlex.quote(python)} -m csd_engine.tools.supervisor {shlex.quote(home)}"
    )


def unit(name: str, python: str, home: str, limits: str, *, user: bool) -> str:
    """Text of the systemd unit: of the user's own systemd, or of the system's. `limits`: the lines of `sandbox`."""
    start = quoted(python).replace("$", "$$")
    return (
        f"[Unit]\nDescription=ddlp engine {name}\nAfter=network-online.target remote-fs.target\n"
        "Wants=network-online.target\n\n"
        f"[Service]\nEnvironment={quoted(f'PYTHONPATH={home}/current')} PYTHONSAFEPATH=1\n"
        f"ExecStart={start} -m csd_engine.tools.supervisor {quoted(home)}\n"
        "Restart=always\nRestartSec=5\nTimeoutStopSec=30\nWorkingDirectory=/\nLimitNOFILE=16384\n"  # connections are files
        f"{limits}\n"
        f"[Install]\nWantedBy={'default.target' if user else 'multi-user.target'}\n"
    )


_SYSTEMD = f"""\
if [ "$(id -u)" = 0 ]; then ctl=systemctl; units={_SYSTEM_UNITS}
else
  ctl='systemctl --user'; units=${{XDG_CONFIG_HOME:-$HOME/.config}}/systemd/user
  export XDG_RUNTIME_DIR="${{XDG_RUNTIME_DIR:-/run/user/$(id -u)}}"  # over SSH this may not be set
fi
"""
_LINGERS = 'loginctl show-user "$(id -un)" --property=Linger 2> /dev/null | grep -qx Linger=yes'
_LINGER = '{ loginctl enable-linger || sudo -n loginctl enable-linger "$(id -un)"; } > /dev/null 2>&1'  # no polkit: as root


@dataclass(frozen=True)
class Service:
    """One device's service.

    Args:
        shell: to the device.
        name: the device's, for the unit's name.
        home: our directory there.
        python: the interpreter there.
        systemd: systemd runs it (the system's for root, else the user's own); else our supervisor alone.
        spool: there.
        machine: as `uname -m` says it there.
    """

    shell: Shell
    name: str
    home: str
    python: str
    systemd: bool
    spool: str
    machine: str

    @staticmethod
    def of(record: DeviceRecord, shell: Shell) -> Service:
        """The service of a device in the address book."""
        systemd = record.service == "systemd"
        return Service(shell, record.name, record.home, record.python, systemd, record.device_spool, record.machine)

    @property
    def _unit(self) -> str:
        return f"ddlp-{self.name}.service"

    def enable(self, reads: Iterable[str] = (), cache: str = "") -> bool:
        """Have systemd start it at boot; True if that changed something, False without systemd.

        Args:
            reads: the paths that the engine reads: the data of all hosts, and the file of its environment.
            cache: the directory of its cache; empty: it has none.

        Raises:
            CommandFailed: this user may not do that, say. The engine can still run, under our supervisor alone.
            ShellError: as `Shell.run`.
        """
        if not self.systemd:
            return False
        user, own, root = (
            shlex.quote(unit(self.name, self.python, self.home, limits, user=kind == "user"))
            for kind in ("user", "account", "root")
            for limits in [sandbox(kind, self.home, self.spool, [self.python, *reads], self.machine, cache)]
        )
        # systemd knows @system-service from version 239 on. An older one would allow next to nothing.
        version = "systemctl --version | sed -n '1s/^systemd \\([0-9]*\\).*/\\1/p'"
        script = (
            f'{_SYSTEMD}unit="$units/{self._unit}"; home={shlex.quote(self.home)}; spool={shlex.quote(self.spool)}; '
            f'cache={shlex.quote(cache)}; stopped=\n'
            f'{TAKE}if [ "$ctl" = systemctl ]; then text={root}\n'
            f"take_account {self._unit} > /dev/null 2>&1 && text={own}\n"
            f"else text={user}\n"
            f"{_LINGERS} || {_LINGER}; fi\n"
            f'[ "$({version})" -ge 239 ] 2> /dev/null || {{\n'
            'text=$(printf "%s." "$text" | grep -v "^SystemCall"); text=${text%.}; }\n'
            f'[ -z "$stopped" ] && printf %s "$text" | cmp -s - "$unit" && $ctl -q is-enabled {self._unit} && exit 0\n'
            'mkdir -p "$units" && printf %s "$text" > "$unit" && $ctl daemon-reload && '
            f"$ctl -q enable {self._unit} && echo changed"
        )
        return "changed" in self.shell.must(script, "installing the systemd unit", timeout_s=300)

    def not_lingering(self) -> str:
        """The user whose own systemd runs the engine, and stops it soon after the last SSH session; empty: it keeps running."""
        if not self.systemd:
            return ""
        return self.shell.run(f'{_SYSTEMD}[ "$ctl" = systemctl ] || {_LINGERS} || id -un', timeout_s=60).out.strip()

    def is_enabled(self) -> bool:
        """Whether systemd starts it at boot."""
        return self.shell.run(f"{_SYSTEMD}$ctl -q is-enabled {self._unit}", timeout_s=60).status == 0

    def start(self) -> str:
        """Start it and wait until the engine serves; returns the address on which it listens.

        Raises:
            CommandFailed: it does not come up; the message quotes the engine. The supervisor keeps trying until `stop`.
            ShellError: as `Shell.run`.
        """
        run = shlex.quote(f"{self.home}/run")
        command = f"$ctl start {self._unit}" if self.systemd else f"{supervisor_command(self.python, self.home)} --detach"
        script = (
            f"{_SYSTEMD}{self._running}run={run}; running; "
            f'[ -n "$pid" ] || {{ rm -f "$run/state"; {command} < /dev/null > /dev/null 2>&1 || exit 9; }}; '
            f"i=0; while [ $i -lt {START_TIMEOUT_S * 10:.0f} ]; do "
            f'state=$(cat "$run/state" 2> /dev/null); case $state in ready*|failed*) break ;; esac; {_PAUSE}; done; '
            'echo "$state"; case $state in ready*) ;; *) exit 8 ;; esac'
        )
        done = self.shell.run(script, timeout_s=START_TIMEOUT_S + 60)
        state = state_of(done.out)
        if done.status == 0 and state:
            return state.split()[1]
        words = state.split(maxsplit=2)
        reason = words[2] if words[:1] == ["failed"] else state or " ".join(done.err.split()) or "it says nothing"
        reason = reason[-600:].rstrip(".")
        raise CommandFailed(
            f"the engine does not start on {self.shell.destination}: {reason}. See ddlp logs {self.name}; mend that and deploy "
            "again."
        )

    @property
    def _running(self) -> str:
        """Defines `running`: sets $pid to the supervisor's process id, or to nothing.

        It does not use the supervisor's own file, which may be gone, or name another process.
        """
        # There may be hundreds of processes on a slow board: after grep, one or two are left to examine. Without -F, since
        # that ends at the first NUL in some busybox.
        return (
            f"{KEEPS}running() {{ pid=; "
            "for one in $(grep -l -e csd_engine.tools.supervisor /proc/[0-9]*/cmdline 2> /dev/null); do "
            f'one=${{one%/cmdline}}; one=${{one#/proc/}}; keeps "$one" {shlex.quote(self.home)} && pid="$pid $one"; done; }}\n'
        )

    def stop(self) -> bool:
        """Stop it, cleanly if possible; True if it ran. It is no error if nothing is there any more."""
        systemd = f"$ctl stop {self._unit} > /dev/null 2>&1; " if self.systemd else ""
        script = (
            f'{_SYSTEMD}{self._running}running; [ -n "$pid" ] && echo ran; {systemd}running; '
            # An ended process may stay listed for seconds, until process 1 reaps it; in a container perhaps for ever.
            f'for one in $pid; do kill "$one"; i=0; '
            f'while grep -q . "/proc/$one/cmdline" 2> /dev/null && [ $i -lt {_STOP_TIMEOUT_S * 10:.0f} ]; do {_PAUSE}; done; '
            'kill -9 "$one" 2> /dev/null; done; exit 0'
        )
        return "ran" in self.shell.must(script, "stopping the engine", timeout_s=_STOP_TIMEOUT_S + 60)

    def disable(self) -> None:
        """Stop it, and have nothing start it any more."""
        self.stop()
        self.shell.run(
            f'{_SYSTEMD}{DROP}unit="$units/{self._unit}"; [ -e "$unit" ] || exit 0; $ctl disable {self._unit}; '
            'rm -f "$unit"; $ctl daemon-reload; [ "$ctl" != systemctl ] || drop_account "$units"',
            timeout_s=60,
        )
