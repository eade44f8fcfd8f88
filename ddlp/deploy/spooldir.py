"""What in a spool directory is ddlp's, in the words of a POSIX shell on the device; `csd_engine.spool` makes it."""

from __future__ import annotations

import shlex

from csd_engine.spool import KEPT, MADE, MARK, OURS

__all__ = ["FOREIGN", "REMOVE"]

_KEPT = " ".join(KEPT)
_LIST = f'for one in . {_KEPT}; do (cd "$spool/$one" 2> /dev/null && ls -A) | sed "s,^,$one/,"; done'


def _grep(options: str, pattern: str) -> str:
    return f"LC_ALL=C grep {options} {shlex.quote(f'^({pattern})$')}"


FOREIGN = f"""\
foreign() {{ [ -f "$spool/{MARK}" ] || {{ {_LIST}; }} | {_grep("-vE", OURS)} | head -n 1; }}
"""
"""Defines `foreign`, which prints the path below $spool of something that is not ours, if that is no spool of ours already."""

REMOVE = f"""\
{FOREIGN}if [ -d "$spool" ] && [ -z "$(foreign)" ]; then
  {{ {_LIST}; }} | {_grep("-E", MADE)} | while read -r one; do rm -rf "$spool/$one"; done
  for one in {_KEPT}; do rmdir "$spool/$one" 2> /dev/null; done
  rm -f "$spool/{MARK}"
fi
"""
"""Removes what is ours in $spool."""
