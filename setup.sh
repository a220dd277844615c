#!/bin/sh
# Make the virtual environment named by $1 with everything the Makefile's targets use.
# PYTHON names the interpreter to build it with (3.11 or newer).
set -eu
venv=$1
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Headrace needs Python 3.11 or newer; '$python' is not. Name one: make PYTHON=/path/to/python3.11 setup" >&2
    exit 1
fi

# An environment of another Python version cannot be mended, only replaced.
want=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
have=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
if [ "$have" != "$want" ]; then
    rm -rf "$venv"
    echo "Creating $venv with Python $want ..."
    if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
        rm -rf "$venv"
        # Debian ships venv apart from Python.
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt-get update -qq && apt-get install -y -qq "python$want-venv" >/dev/null
            "$python" -m venv "$venv"
        else
            echo "Python's venv module is missing. On Debian or Ubuntu: sudo apt install python$want-venv" >&2
            exit 1
        fi
    fi
fi

echo "Installing Headrace with Spark and the development tools (a few minutes the first time) ..."
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[spark,dev]'
touch "$venv/.ready"
echo "Ready: $venv/bin/headrace"
