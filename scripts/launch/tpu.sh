#!/usr/bin/env bash
# A training on a TPU pod: runs the trainer on one host, and is started on all of them. JAX finds the others by the metadata
# of the pod. Once NAME's hosts have the repository, with .venv and jax[tpu], at ~/phoenix:
#     gcloud compute tpus tpu-vm ssh NAME --zone=ZONE --worker=all --command='cd phoenix && sudo systemd-run --unit=xrex \
#         --uid=$USER --working-directory=$PWD --property=KillMode=mixed --property=TimeoutStopSec=300 \
#         --setenv=CONFIG=my.yaml --setenv=RUN_DIR=/shared/runs/ranker scripts/launch/tpu.sh'
# `journalctl -fu xrex` shows its lines, `sudo systemctl stop xrex` on any host saves and ends the run on all.
set -u

CONFIG=${CONFIG-configs/ranker_kafka.yaml} # empty: none, where the arguments hold --checkpoint
RUN_DIR=${RUN_DIR:-runs/ranker}            # on a file system that all hosts see
MAX_RESTARTS=${MAX_RESTARTS:-20}
PAUSE_S=${PAUSE_S:-10}
PYTHON=${PYTHON:-.venv/bin/python}
export PHOENIX_JOIN_TIMEOUT_S=${PHOENIX_JOIN_TIMEOUT_S:-300}

train=("$PYTHON" -m xrex.train.trainer_recsys ${CONFIG:+--config "$CONFIG"} --run-dir "$RUN_DIR" "$@")

# A wrong config ends here with exit code 2.
JAX_NUM_PROCESSES=1 "${train[@]}" --dry-run || exit

# What this script is told reaches the trainer, which then saves and leaves with all others.
told=''
child=''
trap 'told=1; kill -TERM $child 2>/dev/null' TERM INT HUP

# 0 done, 2 wrong config, 130 interrupted: no restart. 143 without being told: another host was, and may come back.
for ((restarts = 0; ; restarts++)); do
    "${train[@]}" &
    child=$!
    [ -z "$told" ] || kill -TERM $child
    wait $child
    code=$?
    while kill -0 $child 2>/dev/null; do # a signal has ended the wait, not the child
        wait $child
        code=$?
    done
    case $code in 0 | 2 | 130) exit $code ;; esac
    [ "$restarts" -lt "$MAX_RESTARTS" ] || exit $code
    [ -n "$told" ] || sleep "$PAUSE_S"
    [ -z "$told" ] || exit $code
    echo "exit code $code: started again"
done
