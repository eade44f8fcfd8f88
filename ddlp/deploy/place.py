"""What is put on the device: the engine's code by its build, the keys, the settings, the user's operators. All below HOME.

HOME/ddlp-home                   the mark: what is in HOME is ours
HOME/engines/BUILD/csd_engine/   unpacked archives
HOME/current                     link to one of them
HOME/keys/                       the engine's pair, made there; clients/: who may come in, and with which directories
HOME/operators/HASH.py           the user's operators
HOME/run/                        the supervisor's: process id, state, log
HOME/engine.json                 the engine's command line
HOME/spool-is-ours               directories of spools and caches that were made by us, one a line
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import shlex
import tarfile
from collections.abc import Sequence
from pathlib import Path

import csd_engine
from csd_engine.machine.build import build, source_files
from csd_engine.prepare.operator_file import SUFFIX, content_hash
from csd_engine.protocol.keys import load_public, make_pair
from ddlp.deploy import homedir, spooldir
from ddlp.deploy.shell import CommandFailed, Shell
from ddlp.deploy.survey import Survey
from ddlp.devices import address_book as book
from ddlp.errors import DDLPError

__all__ = [
    "archive", "check_home", "claim", "client_file", "code_bytes", "drop_old_builds", "engine_module", "exchange_keys",
    "make_directory", "own_build_is_there", "put_engine", "put_operators", "remove_all", "remove_client", "switch",
]  # fmt: skip

_HOME_NAMES = (
    "current", ".current", "keys", "operators", "run", "venv", "bundle", "engine.json", "spool-is-ours",
    homedir.MARK,  # removed last, so that a later run can finish a removal that broke off
)  # fmt: skip

_CACHE = """\
cache={}
if [ -d "$cache" ]; then
  ls -A "$cache" | LC_ALL=C grep -xE 'shelf-[0-9a-f]{{32}}|[.]lock' | while read -r one; do rm -rf "$cache/$one"; done
  grep -qxF -e "$cache" "$home/spool-is-ours" 2> /dev/null && rmdir "$cache" 2> /dev/null
fi
"""


def check_home(home: str) -> str:
    """Return the directory, or raise DDLPError where it would need quoting in a crontab or a systemd unit."""
    if not re.fullmatch(r"(~|)/[\w@+.,/ -]*[\w]", home) or ".." in home.split("/"):
        raise DDLPError(f"--home {home!r}: write ~/DIR or an absolute path of letters, digits and . , _ @ + - alone.")
    return home


def claim(shell: Shell, survey: Survey) -> None:
    """Make our directory and mark it, before anything is put there."""
    if not survey.claimed:
        shell.must(f"home={shlex.quote(survey.home)}\n{homedir.CLAIM}", f"making {survey.home}", timeout_s=60)


def engine_module(python: str, home: str, *words: str, code: str = "current", before: str = "") -> str:
    """The shell command that runs a module of the engine in HOME/`code`, with its arguments.

    Args:
        python: the interpreter there.
        home: our directory there.
        words: the module and its arguments.
        code: below `home`, the directory that holds the package.
        before: further environment variables in the shell's notation, with a space at the end.
    """
    path = f"PYTHONPATH={shlex.quote(f'{home}/{code}')}"
    # numpy's threads do nothing here, and take a fifth of its import.
    return f"cd / && {before}{path} PYTHONSAFEPATH=1 OPENBLAS_NUM_THREADS=1 {shlex.quote(python)} -m {shlex.join(words)}"


def code_bytes() -> int:
    """Bytes of all the files together, to see whether an unpacked copy is whole."""
    return sum(path.stat().st_size for path in source_files())


def archive() -> bytes:
    """A .tar.gz of the package's sources, including the kernel's C code, without owners, times and caches."""
    above = Path(csd_engine.__file__).resolve().parent.parent
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in source_files():
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(above).as_posix())
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=0)


def own_build_is_there(survey: Survey) -> bool:
    """Whether `current` leads to this host's csd_engine, and all its files are there."""
    return survey.current == build() and survey.whole == code_bytes()


def put_engine(shell: Shell, home: str) -> str:
    """Unpack this host's csd_engine under its build, beside what is there; returns the build."""
    number = build()
    engines = shlex.quote(f"{home}/engines")
    # Unpack under another name first: if the connection breaks off, nothing is left that looks complete.
    script = (
        f"umask 022; mkdir -p {engines} && cd {engines} && rm -rf .new.* && mkdir .new.$$ && "
        f"tar -xzf - -C .new.$$ && rm -rf {number} && mv .new.$$ {number} || {{ rm -rf .new.$$; exit 1; }}"
    )
    shell.must(script, "unpacking the engine", input=archive(), timeout_s=120)
    return number


def switch(shell: Shell, home: str, number: str) -> None:
    """Let `current` lead to a build; in one atomic step if the device's `mv` can do that."""
    shell.must(
        f"cd {shlex.quote(home)} && ln -sfn engines/{number} .current && "
        "{ mv -fT .current current 2> /dev/null || { rm -f .current; ln -sfn engines/" + number + " current; }; }",
        "switching to the new engine",
        timeout_s=60,
    )


def drop_old_builds(shell: Shell, home: str, keep: str) -> None:
    """Remove all builds but one."""
    script = (
        f"home={shlex.quote(home)}\n{homedir.BUILDS}"
        f'builds | while read -r one; do [ "$one" = {keep} ] || rm -rf "$home/engines/$one"; done'
    )
    shell.must(script, "removing old engines", timeout_s=60)


def client_file(home: str, key: str, kind: str) -> str:
    """The file about a host that may come in: its public key (``key``), or its directories (``roots``)."""
    return f"{home}/keys/clients/{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.{kind}"


def remove_client(shell: Shell, home: str, key: str) -> None:
    """Take a host off the engine's list, by its public key."""
    files = [client_file(home, key, kind) for kind in ("key", "roots")]
    shell.must(f"rm -f {shlex.join(files)}", "removing a host's key", timeout_s=60)


def exchange_keys(shell: Shell, survey: Survey, name: str, number: str) -> bool:
    """Make each side's pair of keys on that side, and copy the public keys across; True if that changed something.

    The secret keys of both sides stay where they were made.
    """
    changed = False
    here, home = book.directory(name), survey.home
    theirs = survey.server_key
    if theirs is None:
        assert survey.python is not None
        words = ("csd_engine", "--make-pair", f"{home}/keys", "server")
        shell.must(
            f"umask 077; {engine_module(survey.python.path, home, *words, code=f'engines/{number}')}",
            "making the engine's keys",
            timeout_s=300,
        )
        changed = True
    if not (here / "host.key_secret").exists():
        make_pair(here, "host")
        changed = True
    ours = load_public(here / "host.key").decode()
    if ours not in survey.clients:
        shell.put((here / "host.key").read_bytes(), client_file(home, ours, "key"))
        changed = True
    if theirs is None or not _is(here / "server.key", theirs):
        (here / "server.key").write_text(
            shell.must(f"cat {shlex.quote(f'{home}/keys/server.key')}", "reading the engine's public key", timeout_s=60)
        )
        changed = True
    return changed


def _is(path: Path, key: str) -> bool:
    return path.exists() and load_public(path).decode() == key


def make_directory(shell: Shell, home: str, path: str, mode: str = "") -> None:
    """Make the spool or the cache if it is missing, and record on the device that we made it.

    Args:
        shell: to the device.
        home: our directory there.
        path: of the spool or the cache.
        mode: as chmod takes it; empty: as the user's umask says.
    """
    made, option = shlex.quote(path), f"-m {mode}" if mode else ""
    script = (
        f"[ -d {made} ] || {{ mkdir -p {option} {made} && printf '%s\\n' {made} >> {shlex.quote(f'{home}/spool-is-ours')}; }}"
    )
    shell.must(script, f"making {path}", timeout_s=60)


def put_operators(shell: Shell, survey: Survey, name: str, files: Sequence[Path]) -> dict[str, str]:
    """Copy the user's operator files under their hashes, also those of earlier runs; returns hash -> name of the new ones.

    This host keeps a copy of each beside the device's record. It is needed if the file changes or the device is set up anew.

    Raises:
        DDLPError: a file can't be read.
    """
    kept = book.directory(name) / "operators"
    given = {}
    for path in files:
        try:
            content = path.read_bytes()
            compile(content, str(path), "exec")
        except (OSError, SyntaxError, ValueError) as error:
            raise DDLPError(f"--operators {path}: {error}. Give a file of Python functions.") from None
        number = content_hash(content)
        given[number] = path.name
        kept.mkdir(exist_ok=True)
        (kept / f"{number}{SUFFIX}").write_bytes(content)
    new = {}
    for path in sorted(kept.glob(f"*{SUFFIX}")):
        if path.stem not in survey.operators:
            shell.put(path.read_bytes(), f"{survey.home}/operators/{path.name}")
            new[path.stem] = given.get(path.stem, path.name)
    return {**new, **given}


def remove_all(shell: Shell, home: str, spool: str | None, cache: str = "") -> str:
    """Remove everything of ours: in spool and cache, and HOME itself. What is not ours stays, and directories that hold it.

    If HOME is not ours at all, it stays as it is, and the function returns a name in it.

    Raises:
        CommandFailed: something can't be removed.
    """
    there = shlex.quote(home)
    # Touch only what has our marks: the user chooses HOME, and it may be any directory.
    lines = [f"home={there}"]
    if spool is not None:
        lines.append(spooldir.removal(spool))
    if cache:
        lines.append(_CACHE.format(shlex.quote(cache)))
    lines += [
        f'{homedir.BUILDS}{homedir.FOREIGN_HOME}there=$(foreign_home); printf %s "$there"; [ -z "$there" ] || exit 0',
        'builds | while read -r one; do rm -rf "$home/engines/$one" || exit 1; done || exit 1',
        'rm -rf "$home"/engines/.new.*; rmdir "$home/engines" 2> /dev/null',
        "rm -rf " + " ".join(f'"$home"/{name}' for name in _HOME_NAMES) + " || exit 1",
        'rmdir "$home" 2> /dev/null; case $home in */.ddlp/*) rmdir "${home%/*}" 2> /dev/null ;; esac; exit 0',
    ]
    try:
        return shell.must("\n".join(lines), f"removing {home}", timeout_s=300)
    except CommandFailed as error:
        raise CommandFailed(f"{error} What is left can be removed by hand: rm -r {home}.") from None
