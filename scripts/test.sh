#!/bin/sh
# All tests, from nothing: set up .venv, then run pytest; arguments are passed on to it.
set -eu
cd "$(dirname "$0")/.."
sh scripts/setup.sh test
# Most tests wait for processes of their own: a few workers more than two cores could keep busy.
exec .venv/bin/python -m pytest -n "${TEST_WORKERS:-3}" --dist loadfile "$@"
