#!/bin/sh
# Build the core, check it and measure it on this machine's GPU, in under six minutes and without a network.
#
#   sh benchmarks/device.sh [--quick] [--only STEP[,STEP...]] [--out FOLDER] [--device cuda|cpu]
#
# The interpreter is python3, or $PYTHON; it needs torch, NumPy and rich, and of hdp only this tree. `device.py --help` has
# the rest. Exit code 2: there is no GPU, or no torch, and nothing was built.
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD/runtime:$PWD/estimator${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
python=${PYTHON:-python3}
missing=$("$python" -c 'import importlib.util as u; print(", ".join(m for m in ("numpy", "rich", "torch") if not u.find_spec(m)))')
if [ -n "$missing" ]; then
    echo "device.sh: $python has no $missing; give another interpreter as PYTHON=..." >&2
    exit 2
fi
exec "$python" benchmarks/device.py "$@"
