#!/usr/bin/env bash
# Trains from the object storages of others: S3 and Google Cloud Storage as moto answers for them, Azure as Azurite does. Samples,
# what is kept, changed objects, and an engine that requests them itself.
#
#   ./tests/ddlp/data/objects/clouds.sh
#
# moto and Azurite go into an environment of their own, so that their requirements change nothing in the project's.
#
# DDLP_CLOUDS    another place for that environment (default: .venv-clouds in the project)
# PYTHON         as for scripts/setup_venv.sh
set -euo pipefail
cd "$(dirname "$0")/../../../.."
case ${1:-} in -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
clouds=${DDLP_CLOUDS:-$PWD/.venv-clouds}
source scripts/setup_venv.sh
setup_venv test
command -v npm >/dev/null || setup_venv_fail "npm is missing: Azurite is a package of its registry." \
  "Install it (Debian, Ubuntu: apt-get install npm), and run this again."
if [ ! -x "$clouds/bin/moto_server" ]; then
  echo "clouds: installing moto" >&2
  "$(setup_venv_python)" -m venv "$clouds"
  "$clouds/bin/python" -m pip install --quiet --disable-pip-version-check 'moto[s3,server]'
fi
if [ ! -x "$clouds/node_modules/.bin/azurite-blob" ]; then
  echo "clouds: installing Azurite" >&2
  npm install --silent --no-save --prefix "$clouds" azurite
fi
PATH=$PATH:$clouds/bin:$clouds/node_modules/.bin "$PY" -m pytest tests/ddlp/data/objects/test_clouds.py "$@"
