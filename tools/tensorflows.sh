# Make build/tensorflow/2.12 and build/tensorflow/2.15: environments with an older TensorFlow and this checkout's hdp.
#
# The packages are kept in ${XDG_CACHE_HOME:-~/.cache}/hdp/tensorflow, by the versions of TensorFlow and Python. Here
# are small environments that see them, and hdp and its built libraries as .venv has them, through a .pth file.
set -eu
python=$PWD/.venv/bin/python
tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
if [ "$tag" != cpython-311 ]; then
    echo "TensorFlow 2.12 and 2.15 are tried with Python 3.11, and .venv has $tag: they are left out" >&2
    exit 0
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hdp/tensorflow
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$cache" build/tensorflow
for version in 2.12.1 2.15.1; do
    kept=$cache/$version-$tag home=$PWD/build/tensorflow/${version%.*}
    if [ ! -e "$kept/ready" ]; then # a half-made one is made anew
        rm -rf "$kept"
        "$python" -m venv "$kept"
        "$kept/bin/python" -m pip install -q --disable-pip-version-check boto3 "tensorflow-cpu==$version"
        touch "$kept/ready"
    fi
    [ -x "$home/bin/python" ] || "$python" -m venv --without-pip --clear "$home"
    cat >"$home/lib/python3.11/site-packages/hdp.pth" <<PTH
$kept/lib/python3.11/site-packages
$PWD/runtime
$PWD/estimator
import os; os.environ.setdefault("HDP_CORE_LIBRARY", "$site/hdp/collectives/libhdp_core.so")
import os; os.environ.setdefault("HDP_TENSORFLOW_LIBRARY", "$site/hdp/tensorflow/libhdp_tensorflow.so")
PTH
    "$home/bin/python" -c 'import importlib.metadata as m; print("TensorFlow", m.version("tensorflow-cpu"))'
done
