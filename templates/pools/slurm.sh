#!/usr/bin/env bash
# Slurm: training on the job's first node, and an engine on each of its others.
#
#   sbatch --nodes=5 --cpus-per-task=16 slurm.sh /data/imagenet python train.py
#
# where train.py has DDLPLoader(..., pool=os.environ["DDLP_CARDS"]). /data/imagenet has the images, on all nodes; the home directory
# is shared by all nodes too (else set DDLP_CARDS to a directory that is; it must not exist yet).
#SBATCH --job-name=ddlp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
set -euo pipefail
[ $# -ge 2 ] && [ "$SLURM_NNODES" -ge 2 ] || { echo "usage: sbatch --nodes=N (2 or more) $0 IMAGES COMMAND..." >&2; exit 2; }
images=$1
shift
export DDLP_CARDS=${DDLP_CARDS:-$HOME/.ddlp-cards-$SLURM_JOB_ID}
engines=
end() {
  trap '' TERM
  # To all of the job's steps: the engines' is the last one. Each engine ends in order, and removes its card and its spool.
  # A signal to srun itself would kill them.
  [ -z "$engines" ] || { scancel --quiet --signal=TERM "$SLURM_JOB_ID"; wait "$engines"; } || true
  rm -rf "$DDLP_CARDS"
}
mkdir -m 700 "$DDLP_CARDS"
trap end EXIT
trap 'exit 143' TERM

# One step for the engines. The spool is on the node's own disk; --exact: no more CPUs than --cpus-per-task.
# shellcheck disable=SC2016 # for the node's shell to expand
srun --exact --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --relative=1 --kill-on-bad-exit=0 \
  sh -c 'spool=${TMPDIR:-/tmp}/ddlp-spool-$SLURM_JOB_ID-$SLURM_PROCID
    exec python -m csd_engine --card "$DDLP_CARDS" --listen "tcp://*:0" --root "$1" --spool "$spool" --private "$spool"' _ "$images" &
engines=$!

# One step for training. It does not wait for the engines: each joins the epoch under way.
srun --exact --nodes=1 --ntasks=1 --relative=0 "$@"
