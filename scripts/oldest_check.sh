#!/usr/bin/env bash
# Runs the core's tests in an environment with the oldest versions that setup.cfg allows (constraints-oldest.txt).
#
#   ./scripts/oldest_check.sh
#   ./scripts/oldest_check.sh tests/ddlp/dropin      # other tests; arguments go to pytest
#
# DDLP_OLDEST_VENV   another place for that environment (default: .venv-oldest in the project, about 5 GB)
# PYTHON             an interpreter of Python 3.11, for which that set was found (default: python3.11)
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
export DDLP_VENV=${DDLP_OLDEST_VENV:-$PWD/.venv-oldest}
export DDLP_CONSTRAINTS=$PWD/constraints-oldest.txt
export PYTHON=${PYTHON:-python3.11}
source scripts/setup_venv.sh
setup_venv test
# The kernel's bits with Pillow 9.4 are compared on the emulated boards (tests/board). ddlp/schedule imports the standard library alone.
[ $# -gt 0 ] || set -- tests/ddlp/{sampling,epoch,process,stats,devices,translate,sources,transfer} tests/ddlp/test_*.py \
  tests/ddlp/dropin/test_{face,iteration,user_code,states}.py
exec "$PY" -m pytest "$@"
