"""What a device is like, found out by one POSIX shell script that needs no Python there."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from csd_engine.data.objects.urls import is_url
from ddlp.deploy import homedir, spooldir
from ddlp.deploy.findings import DeviceNotReady, bad
from ddlp.deploy.service import KEEPS, state_of
from ddlp.deploy.shell import Shell, number_in

__all__ = ["Directory", "PrivateFile", "Python", "Survey", "modules", "survey"]

_MODULES = ("numpy", "PIL", "zmq")

# Runs under Python 2 as well, to tell that it is one. Fields: version, then NAME=VERSION or NAME=!ERROR.
_PROBE = """\
import sys
out = [".".join(map(str, sys.version_info[:3]))]
if sys.version_info >= (3, 8):
    def put(name, what):
        try:
            out.append("%s=%s" % (name, what()))
        except Exception as error:
            out.append("%s=!%s" % (name, str(error).replace("|", "/").replace("\\n", " ")[:200]))
    for name in sys.argv[1:]:
        put(name, lambda: __import__(name).__version__)
    put("curve", lambda: __import__("zmq").has("curve"))
    put("jpeg", lambda: __import__("PIL.features").features.check("jpg"))
    for name in ("venv", "ensurepip", "pip"):  # not imported: that takes seconds on a board
        put(name, lambda: __import__("importlib.util").util.find_spec(name) is not None)
    put("prefix", lambda: "own" if sys.prefix != sys.base_prefix else "system")
print("|".join(out))
"""

_SCRIPT = r"""
say() { printf '%s=%s\n' "$1" "$(printf %s "$2" | tr '\n' ' ')"; }
say epoch "$(date +%s)"
say system "$(uname -s)"; say machine "$(uname -m)"
uid=$(id -u); say uid "$uid"; say user "$(id -un)"
[ -r /etc/os-release ] && say os "$(. /etc/os-release; echo "$PRETTY_NAME")"
case $home in "~/"*) home=$HOME/${home#"~/"} ;; esac
say home "$home"
say cores "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)"
while read -r key value _; do case $key in
  MemTotal:) say memory_kib "$value" ;;
  MemAvailable:) say available_kib "$value" ;;
esac; done < /proc/meminfo
group=$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null)
[ -r "/sys/fs/cgroup$group/memory.max" ] && say memory_limit "$(cat "/sys/fs/cgroup$group/memory.max")"
place() {
  near=$2; while [ ! -e "$near" ] && [ "$near" != / ] && [ "$near" != . ]; do near=$(dirname "$near"); done
  kind=none; [ -e "$2" ] && kind=file; [ -d "$2" ] && kind=directory
  may=; [ -r "$near" ] && [ -x "$near" ] && may=r; [ -w "$near" ] && may=${may}w
  free=$(df -Pk "$near" 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "$free"; })
  say "$1" "$kind|$may|$free|$2"
}
place place.home "$home"; say foreign_home "$(foreign_home)"
[ -f "$home/$mark" ] && say claimed yes
place place.spool "$spool"; say foreign "$(foreign)"
for root in "$@"; do place place.root "$root"; done
if [ -n "$environment" ]; then
  kind=none; [ -e "$environment" ] && kind=other; [ -f "$environment" ] && kind=file
  say environment "$kind|$(stat -L -c '%a|%U' "$environment" 2> /dev/null || echo '|')|$environment"
fi
case $modules in *obstore*) ;; *)  # for URLs of other hosts that use the engine
  grep -qE '"--root", "[A-Za-z0-9+.-]+://' "$home/engine.json" 2> /dev/null && modules="$modules obstore" ;;
esac
say modules "$modules"
if [ -n "$python" ]; then
  set -- "$python"  # and what pip has put beside it, if it was for this one
  [ "$home/venv/bin/python" -ef "$(command -v "$python")" ] && set -- "$python" "$home/venv/bin/python"
else
  set -- "$home/venv/bin/python" python3
  for minor in 14 13 12 11 10 9 8; do set -- "$@" "python3.$minor"; done
  set -- "$@" /usr/bin/python3 /usr/local/bin/python3
fi
seen=' '
for one in "$@"; do
  path=$(command -v "$one" 2>/dev/null) || continue
  case $seen in *" $path "*) continue ;; esac
  seen="$seen$path "
  line=$(cd / && PYTHONPATH= "$path" -c "$probe" $modules 2>/dev/null < /dev/null) || line='!it does not run'
  say python "$path|$line"
  case $line in *'=!'* | '!'*) ;; *jpeg=True*) break ;; esac
done
say apt "$(command -v apt-get)"; say sudo "$(sudo -n true 2>/dev/null && echo yes)"
if [ -d /run/systemd/system ] && command -v systemctl > /dev/null; then
  if [ "$uid" = 0 ]; then systemctl show --property=Version > /dev/null 2>&1 && say systemd system
  else XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$uid} systemctl --user show-environment > /dev/null 2>&1 && say systemd user
  fi
fi
say current "$(readlink "$home/current" 2>/dev/null)"
say code_bytes "$(find -L "$home/current/csd_engine" \( -name '*.py' -o -name '*.[ch]' \) -exec cat {} + 2>/dev/null | wc -c)"
for one in $(builds); do say build "$one"; done
[ -r "$home/engine.json" ] && say settings "$(cat "$home/engine.json")"
[ -s "$home/keys/server.key_secret" ] && say server_key "$(sed -n 's/.*public-key *= *"\(.*\)".*/\1/p' "$home/keys/server.key")"
for one in "$home/keys/clients"/*.key; do
  [ -e "$one" ] && say client "$(sed -n 's/.*public-key *= *"\(.*\)".*/\1/p' "$one") $(cat "${one%.key}.roots" 2> /dev/null)"
done
for one in "$home/operators"/*.py; do [ -e "$one" ] && say operator "$(basename "$one" .py)"; done
pid=$(cat "$home/run/supervisor.pid" 2>/dev/null)
[ -n "$pid" ] && keeps "$pid" "$home" && say supervisor "$pid"
say state "$(cat "$home/run/state" 2>/dev/null)"
say done yes
"""


@dataclass(frozen=True)
class Python:
    """An interpreter on the device.

    Attributes:
        path: absolute.
        version: (3, 11, 2); empty where it does not run.
        modules: of those that the engine needs: the version, or None where it can't be imported.
        broken: module -> why it can't be imported although it is there.
        curve: zmq has CURVE.
        jpeg: Pillow reads JPEG.
        venv, ensurepip, pip: these modules are there.
        own: it is in a virtual environment.
    """

    path: str
    version: tuple[int, ...]
    modules: dict[str, str | None] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    curve: bool = False
    jpeg: bool = False
    venv: bool = False
    ensurepip: bool = False
    pip: bool = False
    own: bool = False

    @property
    def new_enough(self) -> bool:
        """3.8 or newer."""
        return self.version >= (3, 8)

    @property
    def missing(self) -> tuple[str, ...]:
        """Of the modules that the engine needs those that can't be used."""
        usable = {"PIL": self.jpeg, "zmq": self.curve}
        return tuple(name for name, version in self.modules.items() if version is None or not usable.get(name, True))


@dataclass(frozen=True)
class Directory:
    """A path on the device.

    Attributes:
        path: as asked for.
        exists, is_directory: what is there.
        readable, writable: for this user; if the path is missing, of the nearest directory above it.
        free_bytes: of its file system, for this user; None: not known.
    """

    path: str
    exists: bool
    is_directory: bool
    readable: bool
    writable: bool
    free_bytes: int | None


@dataclass(frozen=True)
class PrivateFile:
    """A file on the device that is for the engine alone.

    Attributes:
        path: as asked for.
        exists, is_file: what is there, links followed.
        mode: its permissions; None: not known.
        owner: its user's name; empty: not known.
    """

    path: str
    exists: bool
    is_file: bool
    mode: int | None
    owner: str


@dataclass(frozen=True)
class Survey:
    """A device as it was found.

    Attributes:
        system, machine, os: `uname`, and the distribution's name.
        user, uid: who we are there.
        home: our directory, absolute.
        cores: that this user may use.
        memory_bytes, available_bytes: of memory (of the control group where that is less).
        clock_ahead_s: its clock against this host's, right to a second or so.
        place_home, place_spool, roots: directories.
        environment: the file with settings and credentials of storages; None: there shall be none.
        modules: the Python modules that the engine needs.
        claimed: our mark is in HOME.
        foreign_home: a name in HOME, if HOME is somebody else's directory; empty: HOME is ours, or may become ours.
        foreign: a path below the spool directory that is not ddlp's; empty: the directory is a spool, or may become one.
        python: the interpreter that suits best; None: there is none at all.
        apt: there is apt-get.
        root: commands can be run as root: ``""`` directly, ``"sudo -n "`` through sudo; None: they can't.
        systemd: ``system`` or ``user`` where it runs and we may use it; else None.
        current: the build that `current` leads to; None.
        whole: bytes of its code.
        builds: those unpacked.
        settings: text of engine.json; None.
        server_key: the engine's public key; None where there is no pair.
        clients: public key on the engine's allow-list -> text of the file with that host's directories.
        operators: hashes.
        supervisor: its process id; None: it does not run.
        state: what the supervisor last reported.
    """

    system: str
    machine: str
    os: str
    user: str
    uid: int
    home: str
    cores: int
    memory_bytes: int
    available_bytes: int
    clock_ahead_s: float
    place_home: Directory
    place_spool: Directory
    claimed: bool
    foreign_home: str
    foreign: str
    roots: tuple[Directory, ...]
    environment: PrivateFile | None
    modules: tuple[str, ...]
    python: Python | None
    apt: bool
    root: str | None
    systemd: str | None
    current: str | None
    whole: int
    builds: tuple[str, ...]
    settings: str | None
    server_key: str | None
    clients: dict[str, str]
    operators: tuple[str, ...]
    supervisor: int | None
    state: str


def modules(roots: Iterable[str]) -> tuple[str, ...]:
    """The Python modules that an engine with these roots, directories and URLs, needs."""
    return (*_MODULES, "obstore") if any(map(is_url, roots)) else _MODULES


def survey(
    shell: Shell, home: str, spool: str, roots: Sequence[str], python: str | None = None, environment: str = ""
) -> Survey:
    """Look at a device; changes nothing there.

    Args:
        shell: to it.
        home: our directory there; ``~/`` is its user's home.
        spool: the path there.
        roots: paths there, and URLs.
        python: the interpreter to use, or its environment HOME/venv if that has more modules; None: the best one.
        environment: the file there with settings and credentials of storages; empty: none.

    Raises:
        DeviceNotReady: no POSIX shell and tools there.
        ShellError: as `Shell.run`.
    """
    given = {
        "home": home, "spool": spool, "python": python or "", "probe": _PROBE, "mark": homedir.MARK, "environment": environment,
        "modules": " ".join(modules(roots)),
    }  # fmt: skip
    lines = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
    directories = shlex.join(root for root in roots if not is_url(root))
    functions = [spooldir.FOREIGN, homedir.FOREIGN_HOME, homedir.BUILDS, KEEPS]
    script = "\n".join(["export LC_ALL=C OPENBLAS_NUM_THREADS=1", *lines, f"set -- {directories}", *functions, _SCRIPT])
    began = time.time()
    # The script goes to standard input: some shells and sshds refuse so long a command line.
    done = shell.run("exec /bin/sh -s", input=script.encode(), timeout_s=300)
    if "\ndone=yes" not in done.out:
        said = " ".join((done.err or done.out or "nothing").split())[-300:]
        raise DeviceNotReady(
            shell.destination,
            bad(f"its shell said {said}", "the check needs a Linux with POSIX tools", "Install busybox or coreutils there."),
        )
    values: dict[str, list[str]] = {}
    for line in done.out.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            values.setdefault(key, []).append(value)
    try:
        return _parse(values, began)
    except (ValueError, LookupError) as error:
        raise DeviceNotReady(
            shell.destination,
            bad(f"its answers make no sense ({error!s:.99})", "our script prints others", "See what its shell prints."),
        ) from None


def _parse(values: dict[str, list[str]], began: float) -> Survey:
    def text(key: str) -> str:
        return values.get(key, [""])[-1]

    def number(key: str) -> int:
        return number_in(text(key)) or 0

    total, limit = number("memory_kib") << 10, number("memory_limit")
    available = number("available_kib") << 10
    uid, needed = number("uid"), tuple(text("modules").split())
    return Survey(
        system=text("system"),
        machine=text("machine"),
        os=text("os"),
        user=text("user"),
        uid=uid,
        home=text("home"),
        cores=max(1, number("cores")),
        memory_bytes=min(total, limit) if limit else total,
        available_bytes=min(available, limit) if limit else available,
        clock_ahead_s=number("epoch") - began,
        place_home=_directory(text("place.home")),
        place_spool=_directory(text("place.spool")),
        claimed=bool(text("claimed")),
        foreign_home=text("foreign_home"),
        foreign=text("foreign").removeprefix("./"),
        roots=tuple(map(_directory, values.get("place.root", []))),
        environment=_private_file(text("environment")) if text("environment") else None,
        modules=needed,
        python=_best([_python(line, needed) for line in values.get("python", [])]),
        apt=bool(text("apt")),
        root="" if uid == 0 else "sudo -n " if text("sudo") else None,
        systemd=text("systemd") or None,
        current=text("current").rpartition("/")[2] or None,
        whole=number("code_bytes"),
        builds=tuple(values.get("build", [])),
        settings=values["settings"][-1] if "settings" in values else None,
        server_key=text("server_key") or None,
        clients=dict(line.split(" ", 1) for line in values.get("client", []) if not line.startswith(" ")),
        operators=tuple(values.get("operator", [])),
        supervisor=number("supervisor") or None,
        state=state_of(text("state")),
    )


def _directory(line: str) -> Directory:
    kind, may, free, path = line.split("|", 3)
    free_kib = number_in(free)
    free_bytes = None if free_kib is None else free_kib << 10
    return Directory(path, kind != "none", kind == "directory", "r" in may, "w" in may, free_bytes)


def _private_file(line: str) -> PrivateFile:
    kind, mode, owner, path = line.split("|", 3)
    return PrivateFile(path, kind != "none", kind == "file", int(mode, 8) if re.fullmatch("[0-7]{1,6}", mode) else None, owner)


def _python(line: str, needed: Sequence[str]) -> Python:
    path, version, *rest = line.split("|")
    fields = dict(field.split("=", 1) for field in rest if "=" in field)
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})*", version):
        return Python(path, ())
    return Python(
        path=path,
        version=tuple(map(int, version.split("."))),
        modules={name: None if fields.get(name, "!").startswith("!") else fields[name] for name in needed},
        broken={
            name: fields[name][1:]
            for name in needed
            if fields.get(name, "").startswith("!") and not fields[name].startswith("!No module named")
        },
        curve=fields.get("curve") == "True",
        jpeg=fields.get("jpeg") == "True",
        venv=fields.get("venv") == "True",
        ensurepip=fields.get("ensurepip") == "True",
        pip=fields.get("pip") == "True",
        own=fields.get("prefix") == "own",
    )


def _best(pythons: list[Python]) -> Python | None:
    """The first that has everything; else the first that is new enough with the least missing; else any."""
    return min(pythons, key=lambda python: (not python.new_enough, len(python.missing)), default=None)
