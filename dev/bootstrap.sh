#!/bin/sh
# Make .venv from requirements.lock: Python >= 3.11 and the package registries are all it needs.
# Usage: dev/bootstrap.sh [VENV]. Idempotent; `make setup` calls it when the lock or a pyproject.toml changed.
set -eu
cd "$(dirname "$0")/.."
venv=${1:-.venv}

python=${PYTHON:-}
if [ -z "$python" ]; then
    for candidate in python3.11 python3 python3.12 python3.13 python3.14; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
fi
if [ -z "$python" ]; then
    echo "streamhold: no Python 3.11 or newer on the PATH (set PYTHON=/path/to/python to name one)" >&2
    exit 1
fi

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "==> creating $venv with $("$python" --version)"
    rm -rf "$venv"
    if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
        # Debian ships venv apart from Python itself.
        rm -rf "$venv"
        if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
            echo "==> installing python3-venv (the venv module is missing)"
            apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
            "$python" -m venv "$venv"
        else
            echo "streamhold: $python has no working venv module; install it (Debian: apt-get install python3-venv)" >&2
            exit 1
        fi
    fi
fi

echo "==> installing the locked dependencies"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$(grep -o '^uv==[0-9.]*' requirements.lock)"
"$venv/bin/uv" pip sync --quiet --python "$venv/bin/python" --require-hashes requirements.lock
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation \
    --editable library --editable operator --editable dev
touch "$venv/.ready"
