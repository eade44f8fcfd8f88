#!/usr/bin/env bash
# Checks everything: ruff, mypy, vermin, codespell, pytest. Arguments go to pytest; then only pytest runs, in one process.
#
#   ./scripts/test.sh                    # without the tests that are marked slow
#   ./scripts/test.sh --all              # with them: before a release, and after a change to what they test
#   ./scripts/test.sh tests/ddlp/schedule/test_ledger.py -k lost
#
# DDLP_VENV   another place for the virtual environment (default: .venv in the project)
# DDLP_LACKING   a file that gets a line for each test that was skipped for what this machine lacks: Debian's packages, a tab, the test
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
chosen=(-m "not slow")
[ "${1:-}" != --all ] || { chosen=(); shift; }
source scripts/setup_venv.sh
setup_venv test dev dali docs frameworks ray quickstart
if [ $# -gt 0 ]; then
  echo "test: pytest"
  exec "$PY" -m pytest "$@"
fi
export OMP_WAIT_POLICY=passive # threads of torch's that wait leave the processor to the other processes
export OPENBLAS_NUM_THREADS=1 # numpy starts hundreds of times, and its threads take a fifth of that
unset PYTHONDONTWRITEBYTECODE # the tests start hundreds of processes, and each would compile ddlp
unset CI # what tests lack is skipped here, and no failure; .ci/run brings it and runs them again

said=$(mktemp)
checks() { # beside the tests, in the processor time that they leave
  renice -n 10 "$BASHPID" >/dev/null
  "$PY" -m ruff check . && "$PY" -m mypy && # ruff knows the syntax of Python 3.8, vermin its library
    "$VENV/bin/vermin" --quiet --no-tips --target=3.8- csd_engine && "$VENV/bin/codespell"
}
set -m # a process group of its own
checks >"$said" 2>&1 &
set +m
checking=$!
end() {
  kill -- "-$checking" 2>/dev/null || true
  while kill -0 -- "-$checking" 2>/dev/null; do sleep 0.1; done
  rm -f "$said"
}
trap end EXIT
trap 'exit 130' INT TERM
status=0
# In a new checkout one process compiles what is imported: five that begin at once would each compile it. What is wrong the run tells.
[ -d tests/__pycache__ ] || "$PY" -m pytest --collect-only -q "${chosen[@]}" >/dev/null 2>&1 || true
# Five processes keep two cores busy, as most tests wait for others. A file's tests stay in one of them.
"$PY" -m pytest -n 5 --dist loadfile --no-loadscope-reorder --durations=25 "${chosen[@]}" || status=1
wait "$checking" || status=1
cat "$said"
exit "$status"
