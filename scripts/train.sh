#!/usr/bin/env bash
# train.sh CONFIG CHECKPOINT RUN_DIR [ARGS...]: what `make train` runs. The quickstart's log is produced first, if it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."
config=$1 checkpoint=$2 run_dir=$3
shift 3

arguments=()
[ -z "$run_dir" ] || arguments+=(--run-dir "$run_dir")
if [ -n "$checkpoint" ]; then
    arguments+=(--checkpoint "$checkpoint")
else
    arguments+=(--config "$config")
    if [ "$config" = configs/quickstart.yaml ] && [ ! -e runs/log/engagements/topic.json ]; then
        .venv/bin/xrex data produce --to runs/log --topic engagements --partitions 4 --from synthetic --seed 0
    fi
fi
exec .venv/bin/python -m xrex.train.trainer_recsys "${arguments[@]}" "$@"
