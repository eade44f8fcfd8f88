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
setup_venv test dev
if [ $# -eq 0 ]; then
  echo "test: ruff"
  "$PY" -m ruff check .
  echo "test: mypy"
  "$PY" -m mypy
  echo "test: vermin (csd_engine runs on Python 3.8; ruff knows its syntax, vermin its library)"
  "$VENV/bin/vermin" --quiet --no-tips --target=3.8- csd_engine
fi
if [ $# -eq 0 ] && [ "$(id -u)" = 0 ]; then
  # The emulated boards' tests wait for SSH most of the time, so they run beside the others.
  boards=$(mktemp)
  pid=
  trap '[ -z "$pid" ] || { kill -INT "$pid" && wait "$pid"; } 2>/dev/null; rm -f "$boards"' EXIT
  trap 'exit 130' INT TERM
  echo "test: pytest; tests/board at the same time, its output follows"
  # A shell has what it starts in the background ignore Ctrl-C; these are to take their boards down then.
  env --default-signal=INT "$PY" -m pytest --durations=10 tests/board >"$boards" 2>&1 &
  pid=$!
  status=0
  "$PY" -m pytest --ignore=tests/board || status=$?
  wait $pid || status=$?
  pid=
  cat "$boards"
  exit $status
fi
echo "test: pytest"
exec "$PY" -m pytest "$@"
