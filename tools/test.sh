# Run the tests that pytest's mark expression $1 selects (default: all): first those that can run beside each other, in
# WORKERS processes, then, one by one, those marked "alone".
#
# WORKERS       processes (default: one more than processors, since many tests wait; eight at most)
#
# The folder for temporary files has a short name, since sockets are below it. It's removed unless a test fails.
set -u
selected=${1:+and ($1)}
workers=${WORKERS:-$(python -c 'import os; print(min(len(os.sched_getaffinity(0)) + 1, 8))')}
base=$(mktemp -d "${TMPDIR:-/tmp}/hdp.XXXX") || exit
export HDP_TEST_FAILURES="$base/failures" # what failed, in short, is the end of what this prints
run() { python -m pytest -q --durations 15 "$@"; }
run --basetemp "$base/b" -n "$workers" --dist worksteal -m "not alone $selected"
beside=$?
run --basetemp "$base/a" -m "alone $selected" $(grep -rl --include "test_*.py" mark.alone tests | sort)
alone=$?
if [ "$beside" != 0 ] || [ "$alone" != 0 ]; then
    [ ! -e "$HDP_TEST_FAILURES" ] || cat "$HDP_TEST_FAILURES"
    echo "what the tests wrote is in $base"
    exit 1
fi
rm -rf "$base"
