#!/usr/bin/env bash
# What `make train-kafka` runs: the quickstart's ranker and stream, through a real Apache Kafka with 4 partitions on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
port=${KAFKA_PORT:-9092}
topic="engagements-$(date -u +%Y%m%d-%H%M%S)"
train=(.venv/bin/python -m xrex.train.trainer_recsys --config configs/ranker_kafka.yaml
    "dataset.topic_name=$topic" "dataset.log.bootstrap_servers=127.0.0.1:$port" "$@")

# A mistyped argument is told before a topic is filled.
"${train[@]}" --print-config >/dev/null
scripts/kafka.sh up >/dev/null
echo "Apache Kafka at 127.0.0.1:$port; it stays up, to end it: KAFKA_PORT=$port make kafka-down"
.venv/bin/xrex data produce --to "127.0.0.1:$port" --topic "$topic" --partitions 4 --from synthetic --seed 0
exec "${train[@]}"
