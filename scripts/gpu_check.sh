#!/usr/bin/env bash
# Checks every way into a GPU on a machine that has one: what doctor's probe read says, the tests, the benchmarks beside their bounds.
#
#   ./scripts/gpu_check.sh            all of it; figures as JSON and as tables below build/gpu
#   ./scripts/gpu_check.sh --quick    few rounds: that everything runs
#   ./scripts/gpu_check.sh --tests    the tests alone
#
# DDLP_GPU_OUT      another place for the figures (default: build/gpu)
# DDLP_GPU_PYTHON   an interpreter that has torch with CUDA and torchvision: what else is needed is installed beside them, into an
#                   environment that sees them (default: an environment of our own with everything from PyPI)
# DDLP_GPU_VENV     another place for that environment (default: .venv-gpu in the project)
# DDLP_WHEELS       a folder of wheels to install from, on a machine without network
# DDLP_GPU_SPOOL    where batch files lie (default: the system's temporary directory); a disk that GPUDirect Storage can read
set -euo pipefail
cd "$(dirname "$0")/.."
quick="" only_tests=""
case ${1:-} in
  -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
  --quick) quick=yes ;;
  --tests) only_tests=yes ;;
  "") ;;
  *) echo "gpu_check: $1? --help tells what there is." >&2; exit 2 ;;
esac
out=${DDLP_GPU_OUT:-$PWD/build/gpu}
export DDLP_VENV=${DDLP_GPU_VENV:-$PWD/.venv-gpu}
if [ -n "${DDLP_GPU_PYTHON:-}" ]; then
  PY=$DDLP_VENV/bin/python
  if [ ! -e "$PY" ]; then
    "$DDLP_GPU_PYTHON" -m venv "$DDLP_VENV"
    # --system-site-packages would show those of the interpreter that an environment was made with, not the environment's.
    packages='import sysconfig; print(sysconfig.get_paths()["purelib"])'
    "$DDLP_GPU_PYTHON" -c "$packages" >"$("$PY" -c "$packages")/beside.pth"
  fi
  needed=""
  for pair in zmq:pyzmq tqdm:tqdm pytest:pytest hypothesis:hypothesis psutil:psutil safetensors:safetensors \
    pytest_rerunfailures:pytest-rerunfailures sklearn:scikit-learn skimage:scikit-image scipy:scipy; do
    "$PY" -c "import ${pair%%:*}" 2>/dev/null || needed="$needed ${pair#*:}"
  done
  # shellcheck disable=SC2086 # names, to be split
  [ -z "$needed" ] || "$PY" -m pip install ${DDLP_WHEELS:+--no-index --find-links "$DDLP_WHEELS"} $needed
  # torch has libcufile already, and reading wants no cupy, which is what kvikio's own requirements bring (some hundred MB).
  "$PY" -c 'import torch, kvikio' 2>/dev/null || "$PY" -m pip install ${DDLP_WHEELS:+--no-index --find-links "$DDLP_WHEELS"} \
    --no-deps kvikio-cu13 libkvikio-cu13 rapids-logger packaging ||
    echo "gpu_check: no kvikio; what needs it is skipped" >&2
  export PYTHONPATH=$PWD
else
  source scripts/setup_venv.sh
  setup_venv test gpu
fi
"$PY" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
  echo "gpu_check: torch finds no GPU here. See what nvidia-smi says, and that this torch is built for CUDA:" >&2
  "$PY" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)' >&2
  exit 1
}
"$PY" -m csd_engine.kernels.build >/dev/null || echo "gpu_check: no compiled kernel; the host's side is slower without" >&2
mkdir -p "$out"
spool=${DDLP_GPU_SPOOL:-${TMPDIR:-/tmp}}
echo "gpu_check: doctor"
"$PY" -m ddlp doctor --spool "$spool" | tee "$out/doctor.txt" || true
status=0
echo "gpu_check: tests"
"$PY" -m pytest -q tests/ddlp/gpu tests/ddlp/transfer tests/ddlp/faults/test_landing.py 2>&1 | tee "$out/tests.txt" || status=$?
[ -z "$only_tests" ] || exit "$status"

bench() { # file, then the benchmark and its options
  local name=$1
  shift
  echo "gpu_check: ddlp bench $*"
  "$PY" -m ddlp bench "$@" --save "$out/$name.json" | tee "$out/$name.txt" || status=$?
}
short_gpu=() short_train=()
if [ -n "$quick" ]; then
  short_gpu=(--rounds 2 --reads 8)
  short_train=(--rounds 1 --batches 20)
fi
bench ways gpu --spool "$spool" "${short_gpu[@]}"
bench ways-cold gpu --cold --spool "$spool" "${short_gpu[@]}"
# A host that can't keep up alone, and one that can.
bench resnet50-few-cores train --model resnet50 --host-cpus 1 --engine-cpus 1 "${short_train[@]}"
bench resnet50 train --model resnet50 "${short_train[@]}"
bench vit_b_16 train --model vit_b_16 "${short_train[@]}"
echo "gpu_check: figures in $out"
exit "$status"
