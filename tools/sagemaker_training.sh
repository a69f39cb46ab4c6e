# Make build/peers/sagemaker-training: an environment with AWS's own training toolkit, which reads the files that we
# write for a host. It is kept in ${XDG_CACHE_HOME:-~/.cache}/hdp/peers and linked here.
set -eu
version=5.1.4
python=$PWD/.venv/bin/python
tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
home=${XDG_CACHE_HOME:-$HOME/.cache}/hdp/peers/sagemaker-training-$version-$tag
if [ ! -e "$home/ready" ]; then # a half-made one is made anew
    rm -rf "$home"
    "$python" -m venv "$home"
    "$home/bin/python" -m pip install -q --disable-pip-version-check "sagemaker-training==$version"
    touch "$home/ready"
fi
mkdir -p build/peers
ln -sfn "$home" build/peers/sagemaker-training
