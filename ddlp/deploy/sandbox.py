"""What the engine's systemd unit may do: read the data, write the spool, its cache and its log, and use TCP.

Where root deploys, the engine has a user of its own. Keys and code stay root's.

Made for systemd 239 and newer. An older one, or one without the kernel's help, passes over what it does not know, with a
warning in its journal. `docs/security.md` has what `systemd-analyze security` says of the units, and how they were run.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddlp.deploy import spooldir

__all__ = ["ACCOUNT", "DROP", "TAKE", "quoted", "sandbox"]

ACCOUNT = "ddlp-engine"
_MADE_BY_US = "made by ddlp deploy"  # in the user's entry: we remove no user that somebody else has made

# What is the user's already is left alone: an engine may be at work in it. One that runs as root would make more of root's.
TAKE = f"""\
{spooldir.GIVE}take_account() {{
  id -u {ACCOUNT} > /dev/null 2>&1 ||
    useradd --system --user-group --no-create-home --home-dir / --shell /usr/sbin/nologin --comment '{_MADE_BY_US}' {ACCOUNT} ||
    return 1
  mkdir -p "$home/run" "$spool" || return 1
  [ -z "$cache" ] || [ -n "$(ls -A "$cache")" ] || chown {ACCOUNT}: "$cache" || return 1
  [ "$(stat -c %U "$spool/.")/$(stat -c %U "$home/run")" != {ACCOUNT}/{ACCOUNT} ] || return 0
  systemctl stop "$1"; stopped=yes
  chown -R {ACCOUNT}: "$home/run" && give {ACCOUNT}
}}
"""
"""Defines `take_account UNIT`: the user is there, and owns $home/run, what is ours in $spool, and $cache where that was empty.
False if that can't be done: no useradd, or a file system that has no owners or lets this root change none. Sets $stopped if it
has stopped the engine.
"""

DROP = f"""\
drop_account() {{
  ls "$1"/ddlp-*.service > /dev/null 2>&1 || ! grep -q '^{ACCOUNT}:.*:{_MADE_BY_US}:' /etc/passwd || userdel {ACCOUNT}
}}
"""
"""Defines `drop_account UNITS`: removes the user if we made it and that directory of units holds no engine any more."""

_TEMPORARY = ("/tmp/", "/var/tmp/")
_NO_WRITTEN_CODE = ("x86_64", "aarch64")

# For the systemd of the system and for a user's own.
_BOTH = """\
NoNewPrivileges=yes
# AF_INET, AF_INET6: hosts, and object storages.
# AF_NETLINK: libzmq asks for the computer's interfaces before it listens. Not AF_UNIX: engine and workers talk through pipes,
# and the system's D-Bus could be reached by it.
RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
SystemCallArchitectures=native
# @resources stays: the engine limits its workers' memory, raises its limit of open files, and has --cpus.
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @keyring
# As a kernel without that call answers: libraries then try another one.
SystemCallErrorNumber=ENOSYS
# Not 0077: hosts read the batches as other users, through a shared file system. Keys have modes of their own.
UMask=0022
"""

# Not for a user's own systemd. It may take no capabilities away, and would not start the engine. To make a view of the files
# it needs a user namespace, if it can do that at all: root's spool would there be nobody's, and the engine would refuse it.
_SYSTEM = """\
# All is read-only, except /dev, /proc, /sys and ReadWritePaths: the state and the log, the spool, the cache.
ProtectSystem=strict
# Not yes: HOME, the data or the Python may lie there.
ProtectHome=read-only
# Passwords and keys, which no data set has.
InaccessiblePaths=-/etc/shadow -/etc/shadow- -/etc/gshadow -/etc/gshadow- -/etc/ssh -%h/.ssh -%h/.gnupg
# Temperature and energy are read in /sys, which this leaves readable.
ProtectKernelTunables=yes
ProtectControlGroups=yes
# ProcSubset=pid is missing here: the engine reads /proc/meminfo and the load.
ProtectProc=invisible
# Sensors are files of /sys. Nothing else of a device is needed: images are decoded by the CPU. /dev/shm stays the system's.
PrivateDevices=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
ProtectHostname=yes
PrivateMounts=yes
"""
_ACCOUNT = f"""\
User={ACCOUNT}
Group={ACCOUNT}
# Not empty: root has deployed, so that the engine reads data of any user, and root's keys and operators in HOME.
# It may not write what it reads there: HOME is root's.
CapabilityBoundingSet=CAP_DAC_READ_SEARCH
AmbientCapabilities=CAP_DAC_READ_SEARCH
RemoveIPC=yes
"""
_ROOT = """\
# As root, since the spool or HOME could not be given to another user. Of root's rights only those over files are left.
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH
"""


def quoted(text: str) -> str:
    """A word of a systemd unit."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def sandbox(runs_as: str, home: str, spool: str, reads: Iterable[str], machine: str, cache: str = "") -> str:
    """The lines of the unit's section [Service].

    Args:
        runs_as: ``user`` for a unit of the user's own systemd; of the system's: ``account`` or ``root``.
        home: our directory there.
        spool: the spool.
        reads: what the engine reads apart from these: the data, the file of its environment, the Python.
        machine: as `uname -m` says it.
        cache: the cache's directory; empty: there is none.
    """
    lines = _BOTH
    if machine in _NO_WRITTEN_CODE:
        # Elsewhere: libraries of 32-bit ARM were linked with executable stacks.
        lines += "MemoryDenyWriteExecute=yes\n"
    if runs_as == "user":
        return lines
    # With "-": the unit starts without them, and the engine says in its log what is missing.
    written = (f"{home}/run", spool, *([cache] if cache else []))
    lines += f"{_SYSTEM}ReadWritePaths={' '.join(quoted(f'-{path}') for path in written)}\n"
    if any(f"{path}/".startswith(_TEMPORARY) for path in (home, *written, *reads)):
        lines += "# The spool, the data or HOME lies there. By ProtectSystem the rest is read-only.\nPrivateTmp=no\n"
    else:
        lines += "PrivateTmp=yes\n"
    return lines + {"account": _ACCOUNT, "root": _ROOT}[runs_as]
