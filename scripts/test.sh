#!/bin/sh
# All tests, from nothing: set up .venv, then run pytest; arguments are passed on to it.
set -eu
cd "$(dirname "$0")/.."
sh scripts/setup.sh test
exec .venv/bin/python -m pytest "$@"
