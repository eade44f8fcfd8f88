#!/usr/bin/env bash
# Makes wheels with the kernel for x86_64, arm64 and 32-bit ARM (glibc 2.17 and newer), from the last commit, by zig on this computer.
# Tries each of them: in a new environment here, and, as root, on emulated ARM boards.
#
#   ./scripts/wheels.sh              # -> dist/*.whl
#   ./scripts/wheels.sh DIRECTORY
#
# PYTHON   the interpreter to make them with (default: .venv's, else python3); it needs pip and venv
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
mkdir -p "${1:-dist}"
dist=$(cd "${1:-dist}" && pwd)
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
work=$(mktemp -d) board=""
end() {
  [ -z "$board" ] || ./scripts/csd_emulator.sh down --name "$board" || true
  rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM
report="csd_engine.kernels.report"

# tried WHEEL REPORT: fails unless the report says that the kernel works and came with the wheel.
tried() {
  echo "wheels: $1: $2"
  grep -q '"made": "came with the wheel' <<<"$2" && grep -q '"variant": "[a-z]' <<<"$2" || {
    echo "wheels: the kernel of $1 does not work there. Look at why_not above" >&2
    exit 1
  }
}

for target in x86_64-linux-gnu aarch64-linux-gnu arm-linux-gnueabihf; do
  git clone -q . "$work/$target" # in a new directory, since a build would use what an earlier one has left
  DDLP_WHEEL=$target "$python" -m pip wheel -q --no-deps -w "$work/made" "$work/$target"
done
for wheel in "$work"/made/*_"$(uname -m)".whl; do
  "$python" -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install -q --no-deps "$wheel" numpy Pillow pyzmq
  tried "${wheel##*/}" "$(cd / && "$work/venv/bin/python" -m "$report")"
done
for arch in armhf:armv7l arm64:aarch64; do
  wheel=$(echo "$work"/made/*_"${arch#*:}".whl)
  if [ "$(id -u)" != 0 ]; then
    echo "wheels: ${wheel##*/}: not tried, an emulated board needs root"
    continue
  fi
  board=w$$
  ./scripts/csd_emulator.sh up --arch "${arch%:*}" --name "$board"
  ./scripts/csd_emulator.sh ssh "$board" "cat > ddlp.whl && python3 -m zipfile -e ddlp.whl ddlp" <"$wheel"
  tried "${wheel##*/}" "$(./scripts/csd_emulator.sh ssh "$board" "PYTHONPATH=ddlp python3 -m $report")"
  ./scripts/csd_emulator.sh down --name "$board"
  board=""
done
mv "$work"/made/*.whl "$dist"
ls -l "$dist"/*.whl
