# Make .venv: the project in editable form, the collective core built, and what tests and examples need.
#
# PYTHON        the interpreter (default python3)
# TORCH_INDEX   index of a torch build of your choice, e.g. the CPU build's index from PyTorch's install page
#
# A torch that PYTHON can import already is used as it is. Otherwise constraints.txt says which release is installed.
set -eu
python=${PYTHON:-python3}
"$python" - <<'PY'
import sys
if sys.version_info < (3, 10) or sys.platform != "linux":
    sys.exit(f"hdp's runtime needs Linux and Python 3.10 or newer; this is Python {sys.version.split()[0]} on {sys.platform}")
PY
command -v "${CXX:-c++}" >/dev/null || {
    echo "no C++ compiler found: the collective core needs one with C++20 (GCC 11, Clang 14 or newer); set CXX" >&2
    exit 1
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
mkdir -p build
cp constraints.txt build/constraints.txt
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if version=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null) &&
    [ "$("$python" -c 'import sys; print(sys.prefix)')" != "$PWD/.venv" ]; then
    echo "using torch $version of $python"
    "$python" -c 'import site, sysconfig; print("\n".join({sysconfig.get_path(k) for k in ("purelib", "platlib")}))' \
        >"$site/outer-torch.pth"
    sed -i '/^torch==/d' build/constraints.txt
elif [ -n "${TORCH_INDEX:-}" ]; then
    .venv/bin/python -m pip install -q -c build/constraints.txt --index-url "$TORCH_INDEX" torch
fi
.venv/bin/python -m pip install -q --disable-pip-version-check -c build/constraints.txt -e ".[torch,dev]"
touch .venv/ready
