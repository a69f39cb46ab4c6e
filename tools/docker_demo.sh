# The digits on two containers:  docker_demo.sh [hdp|mpi]. No image is pulled, nothing but build tools downloaded.
#
# The images are made from this machine's own Python and .venv's torch (tools/base_image.py): on a machine that pulls
# images, `hdp build torch` makes one on a base of your choice. A daemon that is started here is stopped in the end.
# The mpi image is made without Horovod, which takes minutes and compilers; `hdp build mpi` has it.
set -eu
dist=${1:-hdp}
before=${DOCKER_HOST:-}
eval "$(sh tools/docker.sh start)"
[ "$DOCKER_HOST" = "$before" ] || trap 'sh tools/docker.sh stop' EXIT
set -- --quiet
[ -z "${SSL_CERT_FILE:-}" ] || set -- --quiet --ca-bundle "$SSL_CERT_FILE" # a proxy may rewrite TLS
python tools/base_image.py --tag hdp-base
rm -f dist/hdp_train-*.whl
python -m pip wheel -q --no-deps -w dist .
hdp build torch "$@" --base hdp-base --build-arg HDP=wheel
[ "$dist" != mpi ] || hdp build mpi "$@" --build-arg HOROVOD=no
hdp images
python examples/digits_torch/run.py --engine docker --dist "$dist"
