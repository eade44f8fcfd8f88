#!/usr/bin/env bash
# The documentation as a site.
#
#   ./scripts/docs.sh           # writes build/site/index.html, to be opened as a file; the search in it needs a server, as below
#   ./scripts/docs.sh serve     # shows it on http://127.0.0.1:8000 and follows changes; further arguments go to mkdocs
#
# DDLP_VENV   another place for the virtual environment (default: .venv in the project)
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source scripts/setup_venv.sh
setup_venv docs
[ $# -gt 0 ] || set -- build
# The theme warns at each start that it will not support mkdocs 2; setup.cfg asks for an older version anyway.
NO_MKDOCS_2_WARNING=1 exec "$PY" -m mkdocs "$@"
