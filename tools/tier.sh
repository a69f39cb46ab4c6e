# Run a tier of checks and print its time: tier.sh NAME BUDGET_SECONDS COMMAND...
name=$1 budget=$2
shift 2
began=$(date +%s)
"$@"
status=$?
echo "tier $name: $(($(date +%s) - began)) s of $budget s, exit code $status"
exit $status
