#!/bin/sh
# Make .venv ready for PRIMS: `sh scripts/setup.sh run` for use, `sh scripts/setup.sh test` for the tests as well.
# Can be run again at any time; when nothing has changed it takes no time. PYTHON=... chooses an interpreter.
set -eu
cd "$(dirname "$0")/.."
kind=${1:-run}
lock=requirements/$kind.txt
[ -f "$lock" ] || { echo "setup: there is no $lock; say run or test" >&2; exit 2; }

# What a run of this script needs from Python: 3.11 or later, with the modules that make a venv.
usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for name in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if usable "$name"; then
            echo "$name"
            return
        fi
    done
    echo "setup: Python 3.11 or later with its venv module is needed" >&2
    echo "setup: on Debian and Ubuntu: apt-get install python3 python3-venv" >&2
    return 1
}

as_root() {
    [ "$(id -u)" = 0 ]
}

# The sandbox itself. Without it PRIMS still starts, but refuses to run code; nothing here makes it weaker.
install_bubblewrap() {
    if command -v bwrap >/dev/null 2>&1; then
        return
    fi
    if command -v apt-get >/dev/null 2>&1; then
        line="apt-get update && apt-get install -y --no-install-recommends bubblewrap"
    elif command -v dnf >/dev/null 2>&1; then
        line="dnf install -y bubblewrap"
    elif command -v pacman >/dev/null 2>&1; then
        line="pacman -Sy --noconfirm bubblewrap"
    else
        echo "setup: install bubblewrap (the program bwrap) with this system's package manager" >&2
        return
    fi
    if as_root; then
        echo "setup: installing bubblewrap" >&2
        DEBIAN_FRONTEND=noninteractive sh -c "$line" >&2 </dev/null ||
            echo "setup: bubblewrap could not be installed; going on without it" >&2
    else
        echo "setup: bubblewrap is missing, and code cannot be run without it. Install it with:" >&2
        echo "    sudo sh -c '$line'" >&2
    fi
}

install_bubblewrap

# The lock for the tests holds all that the one for use holds, so either serves what needs less.
wanted=$(cat "$lock" pyproject.toml | cksum)
if [ "$kind" = run ]; then
    also=$(cat requirements/test.txt pyproject.toml | cksum)
else
    also=$wanted
fi
stamp=.venv/prims-setup
if [ -f "$stamp" ] && [ -x .venv/bin/prims ] && .venv/bin/python -c 'import prims' >/dev/null 2>&1; then
    done=$(cat "$stamp")
    if [ "$done" = "$wanted" ] || [ "$done" = "$also" ]; then
        exit 0
    fi
fi

python=$(find_python)
if ! [ -x .venv/bin/python ] || ! usable .venv/bin/python; then
    echo "setup: making .venv with $("$python" -c 'import sys; print(sys.executable)')" >&2
    "$python" -m venv --clear .venv
fi
echo "setup: installing packages as pinned in $lock" >&2
rm -f "$stamp"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement "$lock" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --no-deps --no-build-isolation --editable . >&2
echo "$wanted" >"$stamp"
