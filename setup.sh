#!/bin/sh
# Make the virtual environment named by $1 with everything the Makefile's targets use.
# PYTHON names the interpreter to build it with (3.11 or newer); by default the first suitable one is used.
set -eu
venv=$1

fits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

# An environment whose creation was interrupted has no pip and cannot be repaired.
if [ -e "$venv" ] && ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
fi

python=${PYTHON:-}
if [ -z "$python" ]; then
    # The environment's own interpreter first: it need not be named again.
    for candidate in "$venv/bin/python" python3 python3.13 python3.12 python3.11; do
        if fits "$candidate"; then
            python=$candidate
            break
        fi
    done
fi
if [ -z "$python" ] || ! fits "$python"; then
    echo "Headrace needs Python 3.11 or newer; ${python:-python3} is not. Name one: make PYTHON=/path/to/python3.11 setup" >&2
    exit 1
fi

# An environment of another Python version has to be replaced.
want=$(version "$python")
if [ "$(version "$venv/bin/python")" != "$want" ]; then
    rm -rf "$venv"
    echo "Creating $venv with Python $want ..."
    if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
        rm -rf "$venv"
        # Debian packages venv separately.
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
rm -f "$venv/.ready"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[spark,delta,iceberg,dev]'

# Kernels are compiled on first use and cached beside their source. Do so now, so that neither the first message
# nor the first test runs without them.
echo "Compiling the kernels ..."
"$venv/bin/python" -c '
import importlib, pkgutil, headrace.wire, headrace.matching
for module in pkgutil.walk_packages(headrace.wire.__path__, "headrace.wire."):
    if module.name.endswith(".kernels"):
        importlib.import_module(module.name).warm()
headrace.matching.warm()
'

touch "$venv/.ready"
echo "Ready: $venv/bin/headrace"
