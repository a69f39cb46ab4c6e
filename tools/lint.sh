# Style, types, and which package may import which.
set -eu
ruff check .
ruff format --check .
clang-format --dry-run -Werror runtime/csrc/src/*.cc runtime/csrc/src/*.h runtime/csrc/tests/*.cc runtime/csrc/tests/*.h runtime/csrc/tensorflow/*.cc runtime/csrc/tensorflow/*.h
mypy
lint-imports
