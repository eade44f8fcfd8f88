#!/usr/bin/env bash
# templates/pools/slurm.sh on a Slurm cluster of several nodes, all on this machine: munged, slurmctld, and a slurmd for each node.
#
#   sudo ./tests/templates/slurm_cluster.sh [NODES]      # default 3: training on one, an engine on each of the others
#
# Wants slurmctld, slurmd, slurm-client and munge (Debian's packages), and .venv. A node is a network namespace with an address and a
# host name of its own. The cluster has its own process numbers, too: its end is the end of all of its processes. Nothing of this
# machine is changed, and no other Slurm on it is touched.
#
# Not as in a real cluster: one kernel and one file system, the job is root's, and Slurm limits no CPUs (task/none).
set -euo pipefail
nodes=${1:-3}
[[ $nodes =~ ^[2-9]$ ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2; }

# -- outside: namespaces and a directory -----------------------------------------------------------------------------------------
if [ "${2:-}" != inside ]; then
  cd "$(dirname "$(readlink -f "$0")")/../.."
  [ "$(id -u)" = 0 ] || { echo "slurm: needs root, for namespaces: sudo $0" >&2; exit 1; }
  for program in slurmctld slurmd sbatch munged; do
    command -v "$program" >/dev/null || { echo "slurm: no $program: apt-get install slurmctld slurmd slurm-client munge" >&2; exit 1; }
  done
  work=$(mktemp -d /tmp/ddlp-slurm-XXXXXX)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc --propagation private "$0" "$nodes" inside "$work"
  exit
fi

# -- inside ----------------------------------------------------------------------------------------------------------------------
work=$3
chmod 755 "$work"
failed() { tail -n 20 "$work"/*.log "$work"/job.* >&2 2>/dev/null || true; }
trap failed ERR
mkdir "$work"/{state,home,local}
hostname control
echo "127.0.0.1 localhost" >"$work/hosts"
echo "10.78.0.100 control" >>"$work/hosts"
for n in $(seq "$nodes"); do echo "10.78.0.$n node$n" >>"$work/hosts"; done
mount --bind "$work/hosts" /etc/hosts
ip link set lo up
ip link add nodes type bridge
ip addr add 10.78.0.100/24 dev nodes
ip link set nodes up

dd if=/dev/urandom of="$work/munge.key" bs=128 count=1 status=none
chmod 400 "$work/munge.key"
munged --foreground --force --num-threads=1 --key-file="$work/munge.key" --socket="$work/munge" --pid-file="$work/munge.pid" \
  --seed-file="$work/munge.seed" --log-file="$work/munge.log" 2>/dev/null &
export SLURM_CONF=$work/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=ddlp
SlurmctldHost=control
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$work/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/%n
SlurmctldPidFile=$work/control.pid
SlurmdPidFile=$work/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=node[1-$nodes] CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
END
until [ -S "$work/munge" ]; do sleep 0.1; done
slurmctld -D >"$work/control.log" 2>&1 &
for n in $(seq "$nodes"); do
  mkdir "$work/node$n"
  # shellcheck disable=SC2016 # for the node's shell to expand
  unshare --net --uts bash -c 'hostname "node$1"
    until ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done
    ip link set lo up && ip addr add "10.78.0.$1/24" dev eth0 && ip link set eth0 up && exec slurmd -D -N "node$1"' _ "$n" >"$work/node$n.log" 2>&1 &
  until [ "$(readlink "/proc/$!/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
  ip link add "node$n" type veth peer name eth0 netns $!
  ip link set "node$n" master nodes up
done
for _ in $(seq 300); do
  [ "$(sinfo --noheader --format=%D --states=idle 2>/dev/null | xargs)" != "$nodes" ] || break
  sleep 0.2
done
sinfo

# The job, as a user sends it; the engines' Python is this checkout's.
export PATH=$PWD/.venv/bin:$PATH PYTHONPATH=$PWD HOME=$work/home DDLP_HOME=$work/home/keys TMPDIR=$work/local
python -c 'import pathlib, sys, tests.small_images as small; small.make_images(pathlib.Path(sys.argv[1]), 400)' "$work/images"
job=(--nodes="$nodes" --output="$work/job.out" --error="$work/job.err" templates/pools/slurm.sh "$work/images"
  python -m tests.templates.pool_epochs "$work/images" --engines $((nodes - 1)))

# ended WHAT: nothing of the last job may be left.
ended() {
  local left
  left=$(find "$work/home" "$work/local" -maxdepth 1 -name '*ddlp-*'; pgrep -af '^python -m (csd_engine|tests)' || true)
  [ -z "$left" ] || { printf 'slurm: %s has left behind:\n%s\n' "$1" "$left" >&2; exit 1; }
  echo "slurm: $1: nothing is left"
}

timeout 300 sbatch --wait "${job[@]}" || { failed; exit 1; }
cat "$work/job.out" "$work/job.err"
ended "a job of $((nodes - 1)) engines"

: >"$work/job.out"
number=$(sbatch --parsable "${job[@]}")
for _ in $(seq 600); do
  ! grep -q "epoch 0 is under way" "$work/job.out" || break
  sleep 0.2
done
scancel "$number"
until [ -z "$(squeue --noheader)" ]; do sleep 0.2; done
cat "$work/job.out" "$work/job.err"
grep -q "epoch 0 is under way" "$work/job.out"
ended "a job that was cancelled in mid-epoch"
