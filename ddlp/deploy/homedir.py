"""What in HOME, the directory on a device below which we put everything, is ddlp's, in the words of a POSIX shell there."""

__all__ = ["BUILDS", "CLAIM", "FOREIGN_HOME", "MARK"]

MARK = "ddlp-home"

BUILDS = """\
builds() { ls "$home/engines" 2> /dev/null | LC_ALL=C grep -xE '[0-9a-f]{32}'; }
"""
"""Defines `builds`, which prints the builds that are unpacked in $home. What else is in that directory is none of ours."""

FOREIGN_HOME = f"""\
{BUILDS}foreign_home() {{
  [ -f "$home/{MARK}" ] || {{ [ -f "$home/engine.json" ] && [ -n "$(builds)" ]; }} ||
    ls -A "$home" 2> /dev/null | grep -vxF lost+found | head -n 1
}}
"""
"""Defines `foreign_home`, which prints a name in $home if that is somebody's directory: no mark, not empty, no engine of an
earlier version.
"""

CLAIM = f"""mkdir -p "$home" && printf '%s\\n' 'ddlp deploy makes and removes its files here.' > "$home/{MARK}"
"""
"""Makes $home where it is not there, and marks it."""
