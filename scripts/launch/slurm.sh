#!/usr/bin/env bash
# A training on a Slurm allocation, one process a GPU; JAX finds them by what srun sets. From the root of the repository:
#     CONFIG=my.yaml RUN_DIR=/shared/runs/ranker sbatch scripts/launch/slurm.sh [a.b.c=value ...]
#SBATCH --job-name=xrex
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -u

CONFIG=${CONFIG-configs/ranker_kafka.yaml} # empty: none, where the arguments hold --checkpoint
RUN_DIR=${RUN_DIR:-runs/ranker}            # on a file system that all nodes see
MAX_RESTARTS=${MAX_RESTARTS:-20}           # after failures; a time that is up does not count
PYTHON=${PYTHON:-.venv/bin/python}
export PHOENIX_JOIN_TIMEOUT_S=${PHOENIX_JOIN_TIMEOUT_S:-300}

train=("$PYTHON" -m xrex.train.trainer_recsys ${CONFIG:+--config "$CONFIG"} --run-dir "$RUN_DIR" "$@")

# A wrong config ends here with exit code 2, on the first node alone.
JAX_NUM_PROCESSES=1 "${train[@]}" --dry-run || exit

# scancel and preemption tell the whole job, this script too; --signal tells the processes alone. Either way they save.
told=
trap 'told=1' TERM
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --wait=120 --kill-on-bad-exit=0 "${train[@]}"
code=$?

# 0 done, 2 wrong config, 130 interrupted: no restart. A preempted job is put back by Slurm, a cancelled one by nobody.
case $code in 0 | 2 | 130) exit $code ;; esac
[ -z "$told" ] || exit $code
if [ $code = 143 ] || [ "${SLURM_RESTART_COUNT:-0}" -lt "$MAX_RESTARTS" ]; then
    echo "exit code $code: the job goes back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
