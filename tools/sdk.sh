# Make build/sagemaker-v2: an environment with SageMaker's Python SDK v2, which tests compare requests with.
#
# It is kept in ${XDG_CACHE_HOME:-~/.cache}/hdp/sagemaker-v2, by the versions of the SDK and of Python, and linked here;
# once made it needs no network. It is large (about 300 MB). Prints where it is.
set -eu
version=${HDP_SAGEMAKER_SDK:-2.257.7}
python=${PYTHON:-$PWD/.venv/bin/python}
tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
home=${XDG_CACHE_HOME:-$HOME/.cache}/hdp/sagemaker-v2/$version-$tag
if [ ! -e "$home/ready" ]; then # a half-made one is made anew
    rm -rf "$home"
    mkdir -p "${home%/*}"
    "$python" -m venv "$home"
    "$home/bin/python" -m pip install -qq --disable-pip-version-check "sagemaker==$version"
    touch "$home/ready"
fi
mkdir -p build
ln -sfn "$home" build/sagemaker-v2
"$home/bin/python" -c 'import importlib.metadata as m; print("SageMaker SDK", m.version("sagemaker"))'
echo "$home"
