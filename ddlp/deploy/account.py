"""The engine's own user on a device where root deploys, as functions of a POSIX shell. Keys and code stay root's."""

from __future__ import annotations

from ddlp.deploy import spooldir

__all__ = ["ACCOUNT", "DROP", "TAKE"]

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
