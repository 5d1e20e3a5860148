#!/usr/bin/env bash
# Run one training as N processes on this machine:  scripts/run_multihost.sh N [-m MODULE] ARGS...
# ARGS go to `python -m xrex.train.trainer_recsys`, or to MODULE. Every line of output begins with "[process index] ".
# Exits with the code of the first process that failed, else 0. Python: $PYTHON, the repo's .venv, or `python`.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
venv_python=$scripts/../.venv/bin/python
if [ -z "${PYTHON:-}" ]; then
  if [ -x "$venv_python" ]; then PYTHON=$venv_python; else PYTHON=python; fi
fi
exec "$PYTHON" "$scripts/run_multihost.py" "$@"
