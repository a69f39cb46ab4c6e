# Style, types, and which package may import which.
set -eu
ruff check .
ruff format --check .
mypy
lint-imports
