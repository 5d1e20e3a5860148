#!/usr/bin/env bash
# train.sh CONFIG CHECKPOINT RUN_DIR [ARGS...]: what `make train` runs. The quickstart's log is produced first, if it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."
config=$1 checkpoint=$2 run_dir=$3
shift 3

log=runs/log
arguments=()
[ -z "$run_dir" ] || arguments+=(--run-dir "$run_dir")
[ -z "$checkpoint" ] || arguments+=(--checkpoint "$checkpoint")
[ -n "$config$checkpoint" ] || config=configs/quickstart.yaml
[ -z "$config" ] || arguments+=(--config "$config")
if [ "$config" = configs/quickstart.yaml ] && [ ! -e "$log/engagements" ]; then
    # Produced aside and renamed when it is whole: an interrupted first try must not leave half a log to train on.
    rm -rf "$log.part"
    # What it prints of the place it wrote to, and of what comes next, is true only until it is renamed.
    .venv/bin/xrex data produce --to "$log.part" --topic engagements --partitions 4 --from synthetic --seed 0 |
        sed -e '/^next:/d' -e "s|$log\.part|$log|"
    mkdir -p "$log"
    mv "$log.part/engagements" "$log/engagements"
    rm -rf "$log.part"
fi
exec .venv/bin/python -m xrex.train.trainer_recsys "${arguments[@]}" "$@"
