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
  echo "test: pytest"
fi
exec "$PY" -m pytest "$@"
