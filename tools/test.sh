# Run the tests that pytest's mark expression $1 selects (default: all): first those that can run beside each other, in
# WORKERS processes, then, one by one, those marked "alone".
#
# WORKERS       processes (default: one more than processors, since many tests wait; eight at most)
set -u
selected=${1:+and ($1)}
workers=${WORKERS:-$(python -c 'import os; print(min(len(os.sched_getaffinity(0)) + 1, 8))')}
python -m pytest -q -n "$workers" --dist worksteal --durations 15 -m "not alone $selected"
beside=$?
python -m pytest -q --durations 15 -m "alone $selected"
alone=$?
[ "$beside" = 0 ] && [ "$alone" = 0 ]
