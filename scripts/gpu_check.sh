#!/usr/bin/env bash
# Checks every way into a GPU, on a machine that has one: by doctor's probe reads, the tests, and the benchmarks beside their bounds.
#
#   ./scripts/gpu_check.sh                 all of it; figures as JSON and as tables below build/gpu
#   ./scripts/gpu_check.sh --quick         few rounds, to see that everything runs
#   ./scripts/gpu_check.sh --tests         the tests alone
#   ./scripts/gpu_check.sh --bench         the benchmarks alone; with --quick few rounds of them
#   ./scripts/gpu_check.sh --tests -- -k streams      what follows -- goes to pytest
#
# DDLP_GPU_OUT      another place for the figures (default: build/gpu)
# DDLP_GPU_PYTHON   an interpreter that has torch with CUDA and torchvision: other packages are installed into an environment that
#                   sees both (default: an environment of our own with everything from PyPI)
# DDLP_GPU_VENV     another place for that environment (default: .venv-gpu in the project)
# DDLP_WHEELS       a folder of wheels to install from, on a machine without network
# DDLP_GPU_SPOOL    where batch files lie (default: the system's temporary directory); a disk that GPUDirect Storage can read
set -euo pipefail
quick="" tests=yes benches=yes
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --quick) quick=yes ;;
    --tests) benches="" ;;
    --bench) tests="" ;;
    --) shift; break ;;
    *) echo "gpu_check: $1? --help tells what there is." >&2; exit 2 ;;
  esac
  shift
done
for name in DDLP_GPU_OUT DDLP_GPU_PYTHON DDLP_GPU_VENV DDLP_WHEELS DDLP_GPU_SPOOL; do # relative paths are the caller's
  case ${!name:-} in
    /* | "") ;;
    */*) export "$name=$PWD/${!name}" ;;
    *) [ "$name" = DDLP_GPU_PYTHON ] || export "$name=$PWD/${!name}" ;; # an interpreter may be a name to be looked up
  esac
done
cd "$(dirname "$0")/.."
out=${DDLP_GPU_OUT:-$PWD/build/gpu}
export DDLP_VENV=${DDLP_GPU_VENV:-$PWD/.venv-gpu}
export DDLP_CONSTRAINTS="" # the torch that fits this machine's GPU
stamp=$DDLP_VENV/.ddlp-gpu-python # the interpreter whose packages the environment sees; written when it is complete
if [ -e "$DDLP_VENV" ] && [ "$(cat "$stamp" 2>/dev/null)" != "${DDLP_GPU_PYTHON:-}" ]; then
  [ -z "${DDLP_GPU_VENV:-}" ] || [ -e "$DDLP_VENV/.ddlp-made" ] || {
    echo "gpu_check: $DDLP_VENV is there, and this script did not make it. Remove it, or choose another place with DDLP_GPU_VENV." >&2
    exit 1
  }
  echo "gpu_check: $DDLP_VENV is not complete, or was not made for DDLP_GPU_PYTHON=${DDLP_GPU_PYTHON:-}; making it again" >&2
  rm -rf "$DDLP_VENV"
fi
if [ -n "${DDLP_GPU_PYTHON:-}" ]; then
  PY=$DDLP_VENV/bin/python
  if [ ! -e "$DDLP_VENV" ]; then
    mkdir -p "$DDLP_VENV"
    touch "$DDLP_VENV/.ddlp-made"
    pipless=()
    "$DDLP_GPU_PYTHON" -c 'import ensurepip' 2>/dev/null || pipless=(--without-pip) # Debian's, without python3-venv
    "$DDLP_GPU_PYTHON" -m venv "$DDLP_VENV" "${pipless[@]}"
    # --system-site-packages would show the packages of the system's interpreter. DDLP_GPU_PYTHON may be an environment's own.
    "$DDLP_GPU_PYTHON" -c 'import os
from importlib.util import find_spec
found = [find_spec(name).origin for name in ("torch", "torchvision", "numpy", "PIL")]
print(*sorted({os.path.dirname(os.path.dirname(path)) for path in found}), sep="\n")' \
      >"$("$PY" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/beside.pth" || {
      echo "gpu_check: $DDLP_GPU_PYTHON must have torch, torchvision, numpy and Pillow; one is missing (above)." >&2
      exit 1
    }
    echo "$DDLP_GPU_PYTHON" >"$stamp"
  fi
  unset PYTHONPATH # its packages are in the environment now; it would hide which ones are missing there
  pip=("$PY" -m pip)
  "$PY" -c 'import pip' 2>/dev/null || pip=("$DDLP_GPU_PYTHON" -m pip --python "$PY")
  install() { "${pip[@]}" install --quiet --retries 1 ${DDLP_WHEELS:+--no-index --find-links "$DDLP_WHEELS"} "$@"; }
  needed=()
  for pair in zmq:pyzmq tqdm:tqdm pytest:pytest hypothesis:hypothesis psutil:psutil safetensors:safetensors pynvml:nvidia-ml-py \
    xdist:pytest-xdist sklearn:scikit-learn skimage:scikit-image scipy:scipy \
    nvidia.dali:nvidia-dali-cuda120; do
    "$PY" -c "import ${pair%%:*}" 2>/dev/null || needed+=("${pair#*:}")
  done
  # All at once. If that fails, one by one: those that can't be installed are left out.
  [ ${#needed[@]} = 0 ] || install "${needed[@]}" || for package in "${needed[@]}"; do
    install "$package" || echo "gpu_check: no $package; tests that need it are skipped, or fail" >&2
  done
  # Without kvikio's requirements: torch has libcufile already, and reading needs no cupy (some hundred MB).
  cuda=$("$PY" -c 'import torch; print((torch.version.cuda or "13").split(".")[0])')
  "$PY" -c 'import torch, kvikio' 2>/dev/null ||
    install --no-deps "kvikio-cu$cuda" "libkvikio-cu$cuda" rapids-logger packaging ||
    echo "gpu_check: no kvikio; tests that need it are skipped" >&2
  export PYTHONPATH=$PWD
else
  source scripts/setup_venv.sh
  for extra in gpu dali; do
    (setup_venv test "$extra") || echo "gpu_check: no ddlp[$extra]; tests that need it are skipped" >&2
  done
  setup_venv test
fi
export PYTHONUNBUFFERED=1 # so that the files have all figures, also if a time limit ends this script
"$PY" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
  echo "gpu_check: torch finds no GPU here. See what nvidia-smi says: the driver runs programs that are built for a CUDA no newer" >&2
  echo "gpu_check: than its CUDA Version. DDLP_GPU_PYTHON=/path/to/python names an interpreter with a torch that fits. This one:" >&2
  "$PY" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)' >&2
  exit 1
}
"$PY" -m csd_engine.kernels.build >/dev/null || echo "gpu_check: no compiled kernel; the host's side is slower without" >&2
mkdir -p "$out"
spool=${DDLP_GPU_SPOOL:-${TMPDIR:-/tmp}}
status=0
if [ -n "$tests" ]; then
  echo "gpu_check: doctor"
  timeout 150 "$PY" -m ddlp doctor --spool "$spool" | tee "$out/doctor.txt" || true # it found faults, or a probe hangs in the driver
  echo "gpu_check: tests"
  "$PY" -m pytest -v tests/ddlp/gpu tests/ddlp/transfer tests/ddlp/faults/test_landing.py tests/ddlp/recording/test_gpus.py "$@" 2>&1 | tee "$out/tests.txt" || status=$?
fi
[ -n "$benches" ] || exit "$status"

bench() { # bench FILE BENCHMARK OPTION...
  local name=$1 benchmark=$2
  shift 2
  echo "gpu_check: benchmarks.$benchmark $*"
  "$PY" -m "benchmarks.$benchmark" "$@" --save "$out/$name.json" 2>&1 | tee "$out/$name.txt" || status=$?
}
short_gpu=() short_train=()
few=(--rounds 2 --batches 40) # one core prepares only some hundred images/s
if [ -n "$quick" ]; then
  short_gpu=(--rounds 2 --reads 8)
  short_train=(--rounds 1 --batches 20)
  few=("${short_train[@]}")
fi
bench ways gpu --pinned 8x4 16x1 16x16 32x4 --spool "$spool" "${short_gpu[@]}"
bench ways-cold gpu --cold --spool "$spool" "${short_gpu[@]}"
# With a host that can't keep up alone, and with one that can.
bench resnet50-few-cores train --model resnet50 --host-cpus 1 --engine-cpus 1 "${few[@]}"
bench resnet50 train --model resnet50 "${short_train[@]}"
bench vit_b_16 train --model vit_b_16 "${short_train[@]}"
tar -C "$out" --exclude figures.tar.gz -czf "$out/figures.tar.gz" .
echo "gpu_check: figures in $out, all of them in its figures.tar.gz"
exit "$status"
