# The digits on two containers:  docker_demo.sh [hdp|mpi]. No image is pulled, nothing but build tools downloaded.
#
# The images are made from this machine's own Python and .venv's torch (tools/base_image.py): on a machine that pulls
# images, `hdp build torch` makes one on a base of your choice. A daemon that is started here is stopped in the end.
# The mpi image is made without Horovod, which takes minutes and compilers; `hdp build mpi` has it.
set -eu
dist=${1:-hdp}
before=${DOCKER_HOST:-}
eval "$(sh tools/docker.sh start)"
mkdir -p build dist
kept=$(mktemp -d build/kept.XXXXXX) # wheels that were in dist/ before: images take what is there
end() {
    rm -f dist/hdp_train-*.whl
    find "$kept" -name '*.whl' -exec mv {} dist/ \;
    rmdir "$kept"
    [ "$DOCKER_HOST" = "$before" ] || sh tools/docker.sh stop
}
trap end EXIT
find dist -name 'hdp_train-*.whl' -exec mv {} "$kept/" \;
set -- --quiet
[ -z "${SSL_CERT_FILE:-}" ] || set -- --quiet --ca-bundle "$SSL_CERT_FILE" # a proxy may rewrite TLS
python tools/base_image.py --tag hdp-base
python -m pip wheel -q --no-deps -w dist .
hdp build torch "$@" --base hdp-base --build-arg HDP=wheel
[ "$dist" != mpi ] || hdp build mpi "$@" --build-arg HOROVOD=no
hdp images
python examples/digits_torch/run.py --engine docker --dist "$dist"
