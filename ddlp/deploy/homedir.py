"""Which files in HOME are ddlp's, as functions of a POSIX shell. HOME is the directory on a device that holds all of ours."""

__all__ = ["BUILDS", "CLAIM", "FOREIGN_HOME", "MARK"]

MARK = "ddlp-home"

BUILDS = """\
builds() { ls "$home/engines" 2> /dev/null | LC_ALL=C grep -xE '[0-9a-f]{32}'; }
"""
"""Defines `builds`, which prints the builds that are unpacked in $home/engines. Other names in that directory are not ours."""

FOREIGN_HOME = f"""\
foreign_home() {{ [ -f "$home/{MARK}" ] || ls -A "$home" 2> /dev/null | grep -vxF lost+found | head -n 1; }}
"""
"""Defines `foreign_home`, which prints a name in $home if that is somebody else's directory: not empty, and without a mark."""

CLAIM = f"""\
mkdir -p "$home" && mkdir -p -m 700 "$home/operators" &&
  printf '%s\\n' 'ddlp deploy makes and removes its files here.' > "$home/{MARK}"
"""
"""Makes $home where it is not there, with a directory so that operators added later need no restart, and marks it."""
