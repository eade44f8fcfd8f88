"""What can go wrong between this host and a device's shell, and what ssh's own words mean: each with its way out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ddlp.errors import DDLPError

__all__ = ["ShellError", "Slow", "explain"]


class ShellError(DDLPError):
    """Something went wrong between this host and the device's shell; the message ends with the way out."""


class Slow(ShellError):
    """A command did not end in time."""


_LOAD_KEY = "Load it into an agent (eval $(ssh-agent); ssh-add ~/.ssh/KEY), or name it with -i KEY or in ~/.ssh/config"
# ssh's messages; the first match counts. {d} is the destination, {0} the first group of the pattern.
_FAULTS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one that this host knows. Was the device set up anew, or has another machine taken its "
        "address? Ask whoever runs it for the new fingerprint; if it is this one ({fingerprint}), forget the old key with "
        "{forget} and connect once by hand: ssh {d}",
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "this host has never met it. Connect once by hand and compare the fingerprint: ssh {d}",
    ),
    (
        r"(Permission denied \([^)]*\)|Too many authentication failures|UNPROTECTED PRIVATE KEY FILE"
        r"|Password change required[^\n]*|agent refused operation)",
        f"it does not let this user in ({{0}}). {_LOAD_KEY}; put its .pub file there with ssh-copy-id {{d}}. To be asked for "
        "a password: -o BatchMode=no",
    ),
    (
        r"(Bad configuration option[^\n]*|[Bb]ad owner or permissions[^\n]*|Can't open user config file[^\n]*"
        r"|unknown option[^\n]*|keyword \S+ extra arguments[^\n]*|(?:command-line|\S+): line \d+:[^\n]*|usage: ssh)",
        "ssh does not take its options ({0}). Correct them; what works with ssh works here",
    ),
    (
        r"Could not resolve hostname ([^\n]*)",
        "its name can't be resolved ({0}). Correct it, or add it to ~/.ssh/config",
    ),
    (
        r"(Connection refused)",
        "the machine answers, but no SSH server does ({0}). Start sshd there, or give its port: -p PORT",
    ),
    (
        r"(Connection timed out|Operation timed out|No route to host|Network is unreachable|Connection reset"
        r"|kex_exchange_identification[^\n]*|banner exchange[^\n]*|Connection closed by [^\n]*)",
        "no SSH connection comes about ({0}). Is it switched on, is the address right, does a firewall lie between? Try: "
        "ssh -v {d}",
    ),
)


def explain(target: str, ssh_options: Sequence[str], err: str, out: str = "") -> ShellError:
    """What ssh's own words mean.

    Args:
        target: the destination that ssh was given.
        ssh_options: the options that ssh was given before the destination.
        err, out: its standard error, and what came from the device.
    """
    options = " ".join(map(shlex.quote, ssh_options))
    destination = f"{options} {target}".strip()
    for pattern, text in _FAULTS:
        match = re.search(pattern, err)
        if match is None:
            continue
        forget = re.search(r"ssh-keygen -f \S+ -R \S+", err)
        if forget is None:
            offending = re.search(r"Offending \S+ key in (\S+):(\d+)", err)
            remove = f"sed -i {offending[2]}d {offending[1]}" if offending else "ssh-keygen -R HOST"
        else:
            remove = forget[0]
        fingerprint = re.search(r"\b(SHA256:[\w+/=]+)", err)
        caught = match[1].strip() if match.groups() else ""
        words = text.format(caught, d=destination, forget=remove, fingerprint=fingerprint[1] if fingerprint else "see ssh")
        return ShellError(f"can't connect to {target}: {words}.")
    said = " ".join((err.strip() or out.strip() or "it said nothing").split())[-500:]
    return ShellError(
        f"{target} lets this user in, but runs no commands for it ({said}). Give the user a login shell there, "
        f"and see: ssh {destination} true."
    )
