#!/usr/bin/env bash
# Delivers epochs to a torch_xla device and trains on it, also by templates/train_cifar10.py beside the CPU, in a separate environment:
# torch_xla needs its own version of torch.
#
#   ./scripts/xla_check.sh
#
# DDLP_XLA_VENV   another place for that environment (default: .venv-xla in the project)
# PJRT_DEVICE     the device (default: CPU, torch_xla's own on any machine; TPU on one that has it)
# PYTHON          an interpreter that torch_xla has wheels for (2.9: Python 3.10 to 3.13 on x86-64)
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
export PJRT_DEVICE=${PJRT_DEVICE:-CPU}
export DDLP_VENV=${DDLP_XLA_VENV:-$PWD/.venv-xla}
export DDLP_CONSTRAINTS="" # torch_xla needs its own versions
source scripts/setup_venv.sh
setup_venv test xla
"$PY" -c 'import torch_xla' || setup_venv_fail "torch_xla cannot be imported (above)." "See https://github.com/pytorch/xla for what it needs."
exec "$PY" -m pytest tests/ddlp/test_xla.py tests/templates/test_xla.py "$@"
