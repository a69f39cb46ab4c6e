# Make build/peers/horovod or build/peers/horovod-tensorflow: Horovod 0.28.1 for the torch or the TensorFlow of .venv,
# with gloo, and with MPI where Open MPI is at hand.
#
#     sh tools/horovod.sh torch|tensorflow
#
# Horovod's last release is older than both. Its source distribution is built with these edits: torch's headers want
# C++20, TensorFlow's C++17; operations for XLA, which nothing here needs, a second gloo and debugging information are
# left out. The wheel is kept in ${XDG_CACHE_HOME:-~/.cache}/hdp/wheels, by the versions of Horovod, the framework, Open
# MPI and Python. It goes into an environment of its own that sees .venv's packages through a .pth file.
#
# JOBS          compilers at once (default: number of processors)
# PYTHON, MPI   the interpreter and the folder of Open MPI, rather than .venv's and build/peers/openmpi
# WHEELS        where to leave the wheel; then no environment is made
set -eu
horovod=0.28.1
framework=${1:-torch}
python=${PYTHON:-$PWD/.venv/bin/python}
mpi=${MPI:-$PWD/build/peers/openmpi}
case $framework in
torch)
    home=$PWD/build/peers/horovod
    packages=torch
    standard=20
    lists="CMakeLists.txt horovod/torch/CMakeLists.txt"
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1
    ;;
tensorflow)
    home=$PWD/build/peers/horovod-tensorflow
    packages="tensorflow-cpu tensorflow"
    standard=17
    lists=CMakeLists.txt
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1
    ;;
*)
    echo "horovod.sh: no framework '$framework'; there are torch and tensorflow" >&2
    exit 2
    ;;
esac
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
version=$("$python" -c '
import importlib.metadata as m, sys
found = {d.name.lower().replace("_", "-"): d.version for d in m.distributions()}
print(next(found[name] for name in sys.argv[1:] if name in found))' $packages)
tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
controller=gloo
if [ -x "$mpi/bin/mpicxx" ]; then
    mpi=$(realpath "$mpi")
    controller=openmpi-$("$mpi/bin/python" -c 'import importlib.metadata as m; print(m.version("openmpi"))')
else
    echo "Horovod gets no MPI: $mpi/bin/mpicxx is missing; make peers, then make horovod again" >&2
fi
wheels=${WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/hdp/wheels/horovod-$horovod-$framework-$version-$controller-$tag}
[ -z "${WHEELS:-}" ] || home=$(mktemp -d)
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
    source=$work/horovod-$horovod
    for list in $lists; do
        sed -i "s/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD $standard)/" "$source/$list"
        grep -q "set(CMAKE_CXX_STANDARD $standard)" "$source/$list" # or the source is not the one we know
    done
    grep -q '^ *list(APPEND TF_SOURCES.*/xla_mpi_ops.cc' "$source/horovod/tensorflow/CMakeLists.txt"
    sed -i '/list(APPEND TF_SOURCES.*xla_mpi_ops.cc/d' "$source/horovod/tensorflow/CMakeLists.txt"
    # Less to compile: gloo once, for the standard that is linked (for TensorFlow's it is added a second time), and no
    # debugging information. The optimization is the same: Horovod's RelWithDebInfo has -O3, as Release.
    sed -i 's,^\( *add_subdirectory(third_party/gloo\)),\1 EXCLUDE_FROM_ALL),' "$source/CMakeLists.txt"
    grep -q 'third_party/gloo EXCLUDE_FROM_ALL)' "$source/CMakeLists.txt"
    sed -i "s/else 'RelWithDebInfo'/else 'Release'/" "$source/setup.py"
    grep -q "else 'Release'" "$source/setup.py"
    if [ $controller != gloo ]; then # Horovod runs mpicxx, and CMake finds MPI through it
        export PATH="$mpi/bin:$PATH" MPI_HOME="$mpi" HOROVOD_WITH_MPI=1
    else
        export HOROVOD_WITHOUT_MPI=1
    fi
    export HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MXNET=1
    export CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS="-j${JOBS:-$(nproc)}" PATH="$home/bin:$PWD/.venv/bin:$PATH"
    pip wheel -v --no-deps --no-build-isolation -w "$work/dist" "$source" \
        >"$work/log" 2>&1 || { tail -n 60 "$work/log" >&2; exit 1; }
    mkdir -p "$wheels"
    mv "$work"/dist/*.whl "$wheels/"
fi
[ -z "${WHEELS:-}" ] || exit 0
pip install -q --no-deps "$wheels"/*.whl
if [ $controller != gloo ]; then # so that jobs that run this Python find the mpirun that Horovod was built for
    ln -sfn "$mpi/bin/mpirun" "$home/bin/mpirun"
fi
LD_LIBRARY_PATH="$mpi/lib" TORCH_DEVICE_BACKEND_AUTOLOAD=0 TF_CPP_MIN_LOG_LEVEL=2 "$home/bin/python" -c '
import importlib, sys
hvd = importlib.import_module("horovod." + sys.argv[1])
print("horovod:", hvd.__file__, "gloo", hvd.gloo_built(), "MPI", hvd.mpi_built())' "$framework"
touch "$ready"
