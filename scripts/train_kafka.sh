#!/usr/bin/env bash
# What `make train-kafka` runs: the quickstart's ranker and stream, through a real Apache Kafka with 4 partitions on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
port=${KAFKA_PORT:-9092}
scripts/kafka.sh up
topic="engagements-$(date -u +%Y%m%d-%H%M%S)"
.venv/bin/xrex data produce --to "127.0.0.1:$port" --topic "$topic" --partitions 4 --from synthetic --seed 0
exec .venv/bin/python -m xrex.train.trainer_recsys --config configs/ranker_kafka.yaml \
    "dataset.topic_name=$topic" "dataset.log.bootstrap_servers=127.0.0.1:$port" "$@"
