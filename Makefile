# `make help` lists the targets. Everything sets itself up; nothing needs a GPU, a broker or Docker unless its name says so.
SHELL := bash
BIN := .venv/bin
PYTEST := $(BIN)/pytest -q
# One compilation cache for tests and runs: the same program is compiled once.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES ?= -1
# Tables on huge pages: reading scattered rows of a large one then costs less (docs/performance.md).
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

CONFIG ?=
RUN_DIR ?=
CHECKPOINT ?=
ARGS ?=
KAFKA_PORT ?= 9092

.DEFAULT_GOAL := help
.PHONY: help setup train resume test test-slow chaos faults unit integration multihost lint types house kafka-up kafka-down train-kafka quality bench bench-peers docs lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/:.*  ## /\t/' | expand -t 14

setup:  ## .venv with all packages
	@scripts/setup.sh

train: setup  ## the quickstart, or CONFIG= CHECKPOINT= RUN_DIR= ARGS=
	@scripts/train.sh "$(CONFIG)" "$(CHECKPOINT)" "$(RUN_DIR)" $(ARGS)

resume: setup  ## go on with RUN_DIR=
	@test -n "$(RUN_DIR)" || { echo "make resume RUN_DIR=runs/...: name the run folder" >&2; exit 2; }
	@$(BIN)/python -m xrex.train.trainer_recsys --run-dir "$(RUN_DIR)" $(ARGS)

train-kafka: setup  ## the quickstart through a real Kafka
	@scripts/train_kafka.sh $(ARGS)

kafka-up: setup  ## a real Apache Kafka on this machine
	@KAFKA_PORT=$(KAFKA_PORT) scripts/kafka.sh up

kafka-down:  ## end it
	@KAFKA_PORT=$(KAFKA_PORT) scripts/kafka.sh down

test: setup lint types house  ## every check and test that fits in ten minutes
	$(PYTEST) -m "not slow" tests/integration tests/multihost
	$(PYTEST) -m "not slow" -n 2 --dist loadfile tests/unit
	@echo "left out: the slow tests (make test-slow), and what the lines above that begin with SKIPPED say"

test-slow: setup  ## short chaos, fault and quality runs
	$(PYTEST) -m slow -n 2 --dist worksteal tests/unit
	$(PYTEST) -m slow tests/integration tests/multihost

chaos: setup  ## half an hour of kills and broker restarts; CHAOS_SEED= repeats a run
	$(PYTEST) -s -m chaos

faults: setup  ## 20 random faults of four processes (FAULTS_SEED= repeats them), restores over topologies
	$(PYTEST) -s -m faults

unit: setup  ## tests/unit
	$(PYTEST) -m "not slow" tests/unit

integration: setup  ## tests/integration: whole runs, real Kafka
	$(PYTEST) -m "not slow" tests/integration

multihost: setup  ## tests/multihost: 2 and 4 processes
	$(PYTEST) -m "not slow" tests/multihost

lint: setup  ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup  ## pyright
	@$(BIN)/pyright

house: setup  ## who may import whom
	@$(BIN)/lint-imports

quality: setup  ## our figures beside the peers': a table and runs/quality/latest.json
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps recbole==1.2.1 || true
	@$(BIN)/python scripts/quality.py $(ARGS)

bench: setup  ## speed as ratios: a table and runs/bench/latest.json
	@$(BIN)/python scripts/bench.py $(ARGS)

bench-peers: setup  ## the same beside fbgemm and torch, in .venv-peers (gigabytes) or by PHOENIX_PEERS_PYTHON=
	@[ -n "$$PHOENIX_PEERS_PYTHON" ] || [ -x .venv-peers/bin/python ] || { $(BIN)/python -m venv .venv-peers \
	&& .venv-peers/bin/python -m pip install --quiet --disable-pip-version-check numpy torch==2.13.0 setuptools \
	&& .venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps fbgemm-gpu-cpu==1.8.0; } || true
	@$(BIN)/python scripts/bench_peers.py $(ARGS)

docs: setup  ## docs/config.md, docs/errors.md, docs/run_errors.md and configs/schema.json from the code
	@$(BIN)/xrex config fields --markdown > docs/config.md.new && mv docs/config.md.new docs/config.md
	@$(BIN)/xrex config schema > configs/schema.json.new && mv configs/schema.json.new configs/schema.json
	@$(BIN)/python scripts/error_page.py

lock: setup  ## requirements.lock from pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --extra dev pyproject.toml -o requirements.lock

clean:  ## .venv, .venv-peers, caches; never runs/
	@rm -rf .venv .venv-peers .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
