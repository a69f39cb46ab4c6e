#!/bin/sh
# Build the core, check it and measure it on this machine's GPU, in under six minutes and without a network.
#
#   sh benchmarks/device.sh [--quick] [--only STEP[,STEP...]] [--out FOLDER] [--device cuda|cpu]
#
# The interpreter is python3, or $PYTHON; it needs torch and NumPy, and of hdp only this tree. `device.py --help` has the
# rest. Exit code 2: there is no GPU, or no torch, and nothing was built.
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD/runtime:$PWD/estimator${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
exec "${PYTHON:-python3}" benchmarks/device.py "$@"
