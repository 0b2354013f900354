#!/bin/sh
# The main job, from nothing: set up .venv, then run examples/sales_report.py in the sandbox on a CSV file.
set -eu
cd "$(dirname "$0")/.."
sh scripts/setup.sh run
echo "demo: .venv/bin/prims run examples/sales_report.py --mount examples/sales.csv" >&2
exec .venv/bin/prims run examples/sales_report.py --mount examples/sales.csv "$@"
