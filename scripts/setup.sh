#!/usr/bin/env bash
# Make .venv with everything that training and tests need: the newest Python from 3.11 to 3.14 that runs here and for which
# the locked packages install. Does nothing when .venv already matches requirements.lock and pyproject.toml; when only the
# latter has changed, just Phoenix itself is installed again.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=$(sha256sum requirements.lock pyproject.toml)
done_before=$(cat .venv/phoenix-setup 2>/dev/null || true)

# Faster tables on CPUs; the environment may have come from another kind of one, so this looks every time (a tenth of a second).
native_kernel() { .venv/bin/python -m xrex.embeddings.native.build | sed '/up to date/d; s/^/setup: /'; }

if [ -x .venv/bin/xrex ] && [ "$done_before" = "$stamp" ]; then
    native_kernel
    exit 0
fi

pip() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }

if [ -x .venv/bin/xrex ] && [ "${done_before%%$'\n'*}" = "${stamp%%$'\n'*}" ]; then
    pip --no-deps --editable .
    echo "$stamp" >.venv/phoenix-setup
    native_kernel
    exit 0
fi

candidates() {
    for minor in 14 13 12 11; do
        command -v "python3.$minor" || true
        ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor."*/bin/python3 2>/dev/null | sort -V -r || true
        [ "$(python3 -c 'import sys; print(sys.version_info[1])' 2>/dev/null)" != "$minor" ] || command -v python3
    done
}

install() {
    rm -rf .venv
    "$1" -m venv .venv
    pip --require-hashes -r requirements.lock
    pip --no-deps --editable .
    .venv/bin/python -c 'import jax, flax, optax, orbax.checkpoint, kafka, pyarrow, pydantic'
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
tried=" "
while read -r python; do
    # A pyenv shim may stand on the PATH and still run nothing: ask it.
    real=$("$python" -c 'import ensurepip, sys, venv; print(sys.executable)' 2>/dev/null) || continue
    case "$tried" in *" $real "*) continue ;; esac
    tried="$tried$real "
    echo "setup: $("$real" --version) -> .venv (about a minute)"
    if (install "$real") >"$log" 2>&1; then
        echo "$stamp" >.venv/phoenix-setup
        native_kernel
        echo "setup: done, $(.venv/bin/python -c 'import jax; print("jax", jax.__version__)')"
        exit 0
    fi
    echo "setup: $("$real" --version) did not take the locked packages: $(grep -v '^\s*$' "$log" | tail -n 1)"
done < <(candidates)
rm -rf .venv
echo "setup: no Python from 3.11 to 3.14 with venv and pip could install the packages; install one (Debian: apt-get install python3 python3-venv)" >&2
exit 1
