#!/usr/bin/env bash
# Renews the sets of versions that the scripts install: constraints.txt has the newest, constraints-oldest.txt the oldest that
# setup.cfg allows of ddlp's own requirements, on Python 3.11. Run ./scripts/test.sh and ./scripts/oldest_check.sh afterwards, and
# commit the files if they have passed.
#
#   ./scripts/renew_constraints.sh
#   ./scripts/renew_constraints.sh 'torch<=2.14.1' 'torchvision<=0.29.1'     # limits of yours for the newest
#
# Needs uv on the PATH (pip install uv). Downloads only the packages' metadata.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
command -v uv >/dev/null || {
  echo "renew_constraints: there is no uv here, which finds versions that fit each other. Install it: pip install uv" >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
resolve() { uv pip compile --quiet --no-annotate --no-header --no-emit-package pip setup.cfg "$@"; } # pip is that of the environment
renew() { # renew FILE COMMENT: writes the versions that were found to FILE
  { printf '# %s\n' "$2" "Written by scripts/renew_constraints.sh: don't edit."; cat "$work/found"; } >"$1"
  echo "renew_constraints: $1, $(wc -l <"$work/found") versions"
}

printf '%s\n' "$@" >"$work/limits"
extras=(quickstart report test dev docs dali frameworks ray recipes audit)
resolve --universal --python-version 3.10 -c "$work/limits" "${extras[@]/#/--extra=}" >"$work/found"
renew constraints.txt "The versions that scripts/setup_venv.sh installs, and that all tests have passed with."

resolve --python-version 3.11 --resolution lowest-direct >"$work/core"
# Only packages that setup.cfg names are old. Their requirements, and the tests' packages, are the newest that fit.
names=$(sed -n '/^install_requires/,/^$/s/^    \([A-Za-z]*\).*/\1/p' setup.cfg | tr '[:upper:]\n' '[:lower:]|')
grep -E "^(${names%|})==" "$work/core" >"$work/oldest"
resolve --python-version 3.11 --python-platform x86_64-manylinux_2_28 -c "$work/oldest" --extra=test >"$work/found"
renew constraints-oldest.txt "The oldest versions that setup.cfg allows, on Python 3.11: scripts/oldest_check.sh installs them."
