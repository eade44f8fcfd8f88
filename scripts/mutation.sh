#!/usr/bin/env bash
# Changes the code in one place at a time, and sees whether the quick tests that concern it notice: ledger, strategies, protocol,
# states, batches of user code.
#
#   ./scripts/mutation.sh                                        # all groups: schedule, protocol, states, usercode; hours
#   ./scripts/mutation.sh ddlp/schedule/ledger.py --sample 100   # one file, and 100 of its mutants
#   ./scripts/mutation.sh --coverage                             # the branch coverage by the same tests instead
# --sample draws by --seed (0). scripts/mutation.py tells which changes are made. Ends with status 1 if a mutant survives.
#
# DDLP_MUTATION_VENV   another place for mutmut and coverage (default: .venv-mutation; they find the rest in the project's environment)
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source scripts/setup_venv.sh
setup_venv test
venv=${DDLP_MUTATION_VENV:-$PWD/.venv-mutation}
if [ ! -e "$venv/.ddlp-made" ]; then
  "$PY" -m venv "$venv"
  "$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ddlp.pth"
  "$venv/bin/python" -m pip install -q mutmut==3.8.1 coverage==7.17.4
  touch "$venv/.ddlp-made"
fi
exec "$venv/bin/python" -m scripts.mutation "$@"
