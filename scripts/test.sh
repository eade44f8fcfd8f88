#!/usr/bin/env bash
# Checks everything: ruff, mypy, vermin, codespell, pytest. Arguments go to pytest; then only pytest runs.
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
all="" chosen='-m "not slow"'
[ "${1:-}" != --all ] || { all=yes chosen=""; shift; }
source scripts/setup_venv.sh

systems="" setup="" work="" running=()
stop() { kill "-$1" -- "-$2" 2>/dev/null || kill -TERM "$2" 2>/dev/null || true; } # a signal to a session, or to what has none yet
# bash's `wait` can miss an interrupt that comes just before it blocks, and an interrupted one can forget a child. `sleep` does not.
ended() { while kill -0 "$1" 2>/dev/null; do sleep 0.1; done; }
end() { # ends what runs in the background; each of those takes down the boards and systems that it has made
  trap '' INT TERM
  local pid
  for pid in "${running[@]}"; do stop INT "$pid"; done
  for pid in $systems $setup; do stop TERM "$pid"; done
  for pid in "${running[@]}" $systems $setup; do ended "$pid"; done
  [ -z "$work" ] || rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

if [ $# -eq 0 ] && [ "$(id -u)" = 0 ]; then
  # tests/board runs on emulated boards, which only root can make. Unless they are cached, their Debian systems take a minute or
  # two each. The environment is installed meanwhile. The first of the boards' tests reports an error of this.
  # shellcheck disable=SC2016 # for that bash to expand
  setsid bash -c 'trap "exit 143" TERM # after the running command has taken its board down
    for arch in "$@"; do
      ./scripts/csd_emulator.sh up --bare --arch $arch --name "w$$" && ./scripts/csd_emulator.sh down --name "w$$"
    done' _ armhf ${all:+arm64} >/dev/null 2>&1 &
  systems=$!
fi
others=(dali docs frameworks ray quickstart) # `test` includes `quickstart`; named too, so that quickstart.sh installs nothing
if [ $# -gt 0 ]; then
  setup_venv test dev "${others[@]}"
  echo "test: pytest"
  exec "$PY" -m pytest "$@"
fi
setup_venv test dev
export OMP_WAIT_POLICY=passive # threads of torch's that wait leave the processor to the other parts
export OPENBLAS_NUM_THREADS=1 # numpy starts hundreds of times, and its threads take a fifth of that
unset PYTHONDONTWRITEBYTECODE # the tests start hundreds of processes, and each would compile ddlp
work=$(mktemp -d)
export DDLP_LACKING=${DDLP_LACKING:-$work/lacking}
unset CI # what tests lack is skipped here, and no failure; .ci/run brings it and runs them again
if [ -e "$VENV/.ddlp-made" ] && [ -n "${DDLP_CONSTRAINTS-tested}" ]; then
  # pip keeps one core busy at most, so the first parts, which do without these, run beside it. It changes nothing that is there:
  # constraints.txt names one version of each.
  # shellcheck disable=SC2016 # for that bash to expand
  setsid bash -c 'source scripts/setup_venv.sh && setup_venv "$@"' _ "${others[@]}" >"$work/setup" 2>&1 &
  setup=$!
else
  setup_venv "${others[@]}"
fi
"$PY" -c 'import torchvision' # and torch's two thousand modules, which the parts that begin together would all compile

checks() {
  "$PY" -m ruff check . && "$PY" -m mypy && # ruff knows the syntax of Python 3.8, vermin its library
    "$VENV/bin/vermin" --quiet --no-tips --target=3.8- csd_engine && "$VENV/bin/codespell"
}
export -f checks
export PY VENV
# The tests run in parts, three at a time, since none keeps a core busy. When one has ended the next begins, so the longest come
# first. The checks, and tests that race no other process, run beside them in the processor time that is left.
own=(tests/{ddlp/faults,ddlp/deploy,board,ddlp/dropin,csd_engine,scripts,benchmarks,templates,ddlp/observe,ddlp/ranks})
early=3 # so many of these need no package of $others
quiet=(tests/csd_engine/{batchfile,data,kernels,prepare,transforms} tests/ddlp/{sampledata,sampling,schedule,translate}
  tests/ddlp/transfer/test_epilogue.py)
pytest="\"\$PY\" -m pytest --durations=10 $chosen"
commands=()
for part in "${own[@]:0:early}" BESIDE "tests ${own[*]/#/--ignore=}" "${own[@]:early}"; do
  if [ "$part" = BESIDE ]; then commands+=(checks "$pytest ${quiet[*]}"); else commands+=("$pytest $part ${quiet[*]/#/--ignore=}"); fi
done

status=0 failures=""
finished() { # prints the output of the parts that have ended, and forgets them
  local number
  for number in "${!running[@]}"; do
    ! kill -0 "${running[number]}" 2>/dev/null || continue
    printf '\ntest: %s: ended, its output follows\n' "${commands[number]}"
    cat "$work/$number"
    if [ ! -e "$work/$number.passed" ]; then
      status=1
      failures+="${commands[number]}: failed"$'\n'$(grep -aE '^(FAILED|ERROR) ' "$work/$number" || true)$'\n'
    fi
    unset "running[$number]"
  done
}
is_beside() { [ "$1" = "$early" ] || [ "$1" = $((early + 1)) ]; }
at_work() { # prints how many parts run, not counting those beside
  local number count=0
  for number in "${!running[@]}"; do is_beside "$number" || count=$((count + 1)); done
  echo "$count"
}
for number in "${!commands[@]}"; do
  if [[ ${commands[number]} = *" tests/board "* && -n $systems ]]; then
    ended "$systems"
    systems=""
  fi
  if [ "$number" = "$early" ] && [ -n "$setup" ]; then
    installed=0
    ended "$setup"
    wait "$setup" || installed=$?
    setup=""
    cat "$work/setup"
    [ "$installed" = 0 ] || exit 1
  fi
  niceness=10
  if ! is_beside "$number"; then
    niceness=0
    # These race real processes the most, so they get processor time first.
    [[ ${commands[number]} != *" tests/ddlp/faults "* || $(id -u) != 0 ]] || niceness=-10
    while [ "$(at_work)" -ge 3 ]; do sleep 0.2; finished; done
  fi
  echo "test: ${commands[number]}: begins"
  # A shell's background processes ignore Ctrl-C. These must not: the boards' tests take their boards down at Ctrl-C.
  # The kernel divides processor time among sessions first, and each session has a nice value of its own.
  # shellcheck disable=SC2016 # for that bash to expand
  env --default-signal=INT nice -n "$niceness" setsid bash -c 'trap "exit 130" INT
    [ ! -w /proc/self/autogroup ] || echo "$3" 2>/dev/null >/proc/self/autogroup || true
    TIMEFORMAT="processor seconds: %U, and %S in the kernel"
    time eval "$1" && touch "$2.passed"' _ "${commands[number]}" "$work/$number" "$niceness" >"$work/$number" 2>&1 &
  running[number]=$!
done
while [ ${#running[@]} -gt 0 ]; do sleep 0.2; finished; done
if [ -s "$DDLP_LACKING" ]; then
  printf '\ntest: skipped for what this machine lacks; how many, and what to install (apt-get install ...):\n'
  cut -f1 "$DDLP_LACKING" | sed 's/^$/no package: see SKIPPED above/' | sort | uniq -c
fi
[ -z "$failures" ] || printf '\ntest: failures:\n%s' "$failures"
exit $status
