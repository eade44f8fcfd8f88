#!/usr/bin/env bash
# Checks everything: ruff, mypy, vermin, pytest. Arguments go to pytest; then only pytest runs.
#
#   ./scripts/test.sh
#   ./scripts/test.sh tests/ddlp/test_ledger.py -k lost
#
# DDLP_VENV   another place for the virtual environment (default: .venv in the project)
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source scripts/setup_venv.sh

systems="" boards="" output=""
end() { # what runs in the background; boards and half-made systems are taken down by whoever made them
  trap '' INT TERM
  [ -z "$boards" ] || { kill -INT -- "-$boards" && wait "$boards"; } 2>/dev/null || true
  [ -z "$systems" ] || { kill -TERM -- "-$systems" && wait "$systems"; } 2>/dev/null || true
  [ -z "$output" ] || rm -f "$output"
}

beside="" # tests/board: emulated boards, which only root can make, wait for SSH half of the time, so they run beside the others
if [ $# -eq 0 ] && [ "$(id -u)" = 0 ]; then
  beside=yes
  trap end EXIT
  trap 'exit 130' INT TERM
  # Their Debian systems, where they are not cached, take a minute or two each: meanwhile the environment is installed. What
  # goes wrong here is told by the first of their tests.
  # shellcheck disable=SC2016 # for that bash to expand
  setsid bash -c 'trap "exit 143" TERM # once what runs has taken its board down
    for arch in armhf arm64; do
      ./scripts/csd_emulator.sh up --bare --arch $arch --name "w$$" && ./scripts/csd_emulator.sh down --name "w$$"
    done' >/dev/null 2>&1 &
  systems=$!
fi
setup_venv test dev dali docs
if [ -n "$beside" ]; then
  wait "$systems" || true
  systems=""
  output=$(mktemp)
  # A shell has what it starts in the background ignore Ctrl-C; these are to take their boards down then.
  # After them the engine's, and what needs no other processes, so that there are two at work all the time and never three.
  # shellcheck disable=SC2016 # for that bash to expand
  env --default-signal=INT setsid bash -c 'status=0
    trap "exit 130" INT
    "$0" -m pytest --durations=10 tests/board || status=$?
    "$0" -m pytest --durations=10 tests/csd_engine || status=$?
    "$0" -m pytest --durations=10 --ignore=tests/board --ignore=tests/csd_engine -m "not real_processes" || status=$?
    exit $status' "$PY" >"$output" 2>&1 &
  boards=$!
fi
if [ $# -eq 0 ]; then
  echo "test: ruff"
  "$PY" -m ruff check .
  echo "test: mypy"
  "$PY" -m mypy
  echo "test: vermin (csd_engine runs on Python 3.8; ruff knows its syntax, vermin its library)"
  "$VENV/bin/vermin" --quiet --no-tips --target=3.8- csd_engine
fi
if [ -n "$beside" ]; then
  echo "test: pytest, ddlp with real processes; tests/board, the engine and the others at the same time, their output follows"
  status=0
  "$PY" -m pytest --durations=25 --ignore=tests/board --ignore=tests/csd_engine -m real_processes || status=$?
  wait "$boards" || status=$?
  boards=""
  cat "$output"
  exit $status
fi
echo "test: pytest"
exec "$PY" -m pytest "$@"
