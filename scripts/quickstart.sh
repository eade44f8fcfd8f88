#!/usr/bin/env bash
# From nothing to a training run: makes the environment and a JPEG data set below ./data, compares DataLoader with each strategy, trains a model.
#
#   ./scripts/quickstart.sh                       # five minutes at most after the install
#   ./scripts/quickstart.sh --help                # what the training script takes; all arguments go to it
#
# DDLP_VENV   another place for the virtual environment (default: .venv in the project)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup_venv.sh
setup_venv quickstart
exec "$PY" templates/quickstart.py "$@"
