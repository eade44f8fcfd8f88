#!/usr/bin/env bash
# Makes the project's virtual environment and installs ddlp into it, editable. Other scripts (quickstart.sh, test.sh) source this
# one and call `setup_venv EXTRA...`. Started by itself, it takes the extras as arguments:
#
#   ./scripts/setup_venv.sh quickstart        # -> .venv/bin/python
#
# DDLP_VENV   another place for the environment (default: .venv in the project)
# PYTHON      the interpreter to make it with (default: python3, else the newest of python3.10 to python3.14)
# DDLP_CONSTRAINTS   the versions to install (default: constraints.txt, which all tests have passed with; empty: any that setup.cfg
#             allows, as in an environment that this script did not make)
#
# It is quick if nothing has changed: a stamp for each extra has a hash of the constraints, setup.cfg, setup.py, pyproject.toml, the
# kernel's sources and the project's path.
# Sets VENV and PY for the script that sources it.

setup_venv_fail() { # what happened, where, what to do: a line each
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

setup_venv_python() { # prints the first interpreter that is new enough
  local candidate found=""
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
    command -v "$candidate" >/dev/null || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
    found="$found $candidate ($("$candidate" -V 2>&1))"
  done
  setup_venv_fail "no Python 3.10 or newer (looked at:${found:- ${PYTHON:-python3, python3.10 to python3.14}, none there})." \
    "Install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: PYTHON=/path/to/python3 $0"
}

setup_venv() {
  local root extras extra stamp missing="" python free_mb constraints
  local -a wanted=()
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  VENV=${DDLP_VENV:-$root/.venv}
  PY=$VENV/bin/python
  constraints=${DDLP_CONSTRAINTS-$root/constraints.txt}
  [ ! -e "$PY" ] || [ -e "$VENV/.ddlp-made" ] || constraints="" # an environment of the user's keeps the versions that it has
  stamp=$(cat ${constraints:+"$constraints"} "$root/setup.cfg" "$root/setup.py" "$root/pyproject.toml" "$root"/scripts/build_backend.py "$root"/csd_engine/kernels/{build.py,compilers.py} "$root"/csd_engine/kernels/src/{*.?,*/*} <(echo "$root") | sha256sum | cut -c1-16)
  if [ -e "$PY" ] && ! "$PY" -c 'import pip' 2>/dev/null; then
    # An upgrade has removed its interpreter, or an earlier attempt was interrupted. Make it again only if this script made it.
    [ -z "${DDLP_VENV:-}" ] || [ -e "$VENV/.ddlp-made" ] ||
      setup_venv_fail "$PY does not run or has no pip." "DDLP_VENV points there and this script did not make it: repair it, or choose another place."
    echo "setup: $VENV is broken; making it again" >&2
    rm -rf "$VENV"
  fi
  for extra in "$@"; do
    [ -e "$PY" ] && [ "$(cat "$VENV/.ddlp-$extra" 2>/dev/null)" = "$stamp" ] || missing="$missing,$extra"
  done
  [ -n "$missing" ] || return 0

  if [ ! -e "$PY" ]; then
    python=$(setup_venv_python) || exit 1
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
      setup_venv_fail "$python ($("$python" -V 2>&1)) has no venv module with ensurepip, which Debian and Ubuntu ship apart." \
        "Install it (as root: apt-get install python3-venv) and run this again; or name an environment that exists: DDLP_VENV=/path/to/venv $0"
    echo "setup: making $VENV with $("$python" -V 2>&1)" >&2
    mkdir -p "$VENV" 2>/dev/null ||
      setup_venv_fail "can't write $VENV." "Choose a place that you can write: DDLP_VENV=/path/to/venv $0"
    touch "$VENV/.ddlp-made"
    "$python" -m venv "$VENV" || setup_venv_fail "python -m venv failed for $VENV (above)." "Remove it and run this again."
  fi
  "$PY" -c 'import torch' 2>/dev/null || {
    echo "setup: installing; the first time this downloads PyTorch with CUDA, about 5 GB" >&2
    free_mb=$(df -Pm "$VENV" | awk 'NR == 2 { print $4 }')
    [ "${free_mb:-0}" -ge 16000 ] || echo "setup: only $free_mb MB free at $VENV; torch and its download need about 16000" >&2
  }
  # pip unpacks below TMPDIR, and on many systems /tmp is a small file system in memory.
  mkdir -p "$VENV/tmp"
  extras=${missing#,}
  if grep -qsx "$stamp" "$VENV"/.ddlp-*; then
    # ddlp is there as it is now: beside it comes what the extras need. To install it again would take its kernel away from what runs.
    mapfile -t wanted < <("$PY" -c 'import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for one in map(Requirement, requires("ddlp")):
    if any(one.marker and one.marker.evaluate({"extra": extra}) for extra in sys.argv[1:]):
        one.marker = None
        print(one)' ${extras//,/ })
  fi
  [ ${#wanted[@]} -gt 0 ] || wanted=(-e ".[$extras]")
  (cd "$root" && TMPDIR=${TMPDIR:-$VENV/tmp} PIP_DISABLE_PIP_VERSION_CHECK=1 "$PY" -m pip install ${constraints:+-c "$constraints"} "${wanted[@]}") ||
    setup_venv_fail "pip could not install .[$extras] into $VENV (its message is above)." \
      "Run this again once the network, the disk or the proxy (PIP_INDEX_URL, PIP_CERT) is in order."
  rm -rf "$VENV/tmp"
  for extra in ${extras//,/ }; do echo "$stamp" >"$VENV/.ddlp-$extra"; done
  echo "setup: ready, $VENV" >&2
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  case ${1:-} in -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
  [ $# -gt 0 ] || set -- quickstart
  setup_venv "$@"
  echo "$PY"
fi
