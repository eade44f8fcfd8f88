"""Which files in a spool directory are ddlp's, as functions of a POSIX shell; `csd_engine.service.spool` makes these files."""

from __future__ import annotations

import shlex

from csd_engine.service.spool import KEPT, MADE, MARK, OURS
from ddlp.deploy.findings import warn
from ddlp.deploy.shell import Shell, Slow
from ddlp.deploy.steps import Steps
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord
from ddlp.errors import DDLPError

__all__ = ["FOREIGN", "GIVE", "REMOVE", "clear_replaced", "removal"]

_KEPT = " ".join(KEPT)
_LIST = f'for one in . {_KEPT}; do (cd "$spool/$one" 2> /dev/null && ls -A) | sed "s,^,$one/,"; done'


def _grep(options: str, pattern: str) -> str:
    return f"LC_ALL=C grep {options} {shlex.quote(f'^({pattern})$')}"


FOREIGN = f"""\
foreign() {{ [ -f "$spool/{MARK}" ] || {{ {_LIST}; }} | {_grep("-vE", OURS)} | head -n 1; }}
"""
"""Defines `foreign`, which prints a path below $spool that is not ours. It prints nothing if $spool has our mark."""

REMOVE = f"""\
{FOREIGN}if [ -d "$spool" ] && [ -z "$(foreign)" ]; then
  {{ {_LIST}; }} | {_grep("-E", MADE)} | while read -r one; do rm -rf "$spool/$one"; done
  for one in {_KEPT}; do rmdir "$spool/$one" 2> /dev/null; done
  rm -f "$spool/{MARK}"
fi
"""
"""Removes what is ours in $spool."""

GIVE = f"""\
give() {{
  [ "$(stat -c %U "$spool/.")" != "$1" ] || return 0
  {{ {_LIST}; }} | {_grep("-E", MADE)} | grep -v '^files/' |
    while read -r one; do chown -Rh "$1" "$spool/$one" || exit 1; done || return 1
  for one in {_KEPT} {MARK}; do [ ! -e "$spool/$one" ] || chown -h "$1" "$spool/$one" || return 1; done
  chown "$1:" "$spool/."
}}
"""
"""Defines `give USER`, which makes what is ours in $spool that user's. What hosts have put below files stays theirs."""


def removal(spool: str) -> str:
    """The shell script that removes our files in a spool, and the spool itself if we made it. $home must be set."""
    made_by_us = 'grep -qxF -e "$spool" "$home/spool-is-ours" 2> /dev/null'
    return f'spool={shlex.quote(spool)}\n{REMOVE}{made_by_us} && rmdir "$spool" 2> /dev/null'


def clear_replaced(shell: Shell, steps: Steps, now: DeviceRecord) -> None:
    """Remove our files in the spool that the engine had at its last deployment, if it has another spool now.

    Raises:
        ShellError: as `Shell.must`.
    """
    try:
        before = book.load(now.name)
    except DDLPError:
        return
    there = (now.destination, now.ssh_options, now.home)
    if before.device_spool == now.device_spool or (before.destination, before.ssh_options, before.home) != there:
        return
    old = before.device_spool
    # An engine removes its lock when it ends. A lock means: another engine uses this spool, or ours does by another path.
    locked = f"[ -e {shlex.quote(f'{old}/.lock')} ] && echo locked && exit 0"
    with steps.step("old spool") as step:
        try:
            script = f"{locked}\nhome={shlex.quote(now.home)}\n{removal(old)}; exit 0"
            said = shell.must(script, f"clearing the spool {old}", timeout_s=60)
        except Slow as error:  # a slow disk or network file system may be the reason for the new spool
            step.say(warn(f"{old}: what is ddlp's there stays", str(error), "Remove it by hand."))
            return
        step.say(f"{old}: left as it is, an engine uses it" if said else f"{old}: what was ddlp's there is removed")
