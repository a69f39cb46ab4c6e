# The steps of the Dockerfiles in containers/, run inside a build: image.sh STEP.
#
#   python               Python 3.10 or newer and the certificates, by apt where the base image lacks them
#   packages [SPEC...]   /opt/hdp: an environment with the packages of requirements.lock; SPECs that the base image has
#                        already, whichever version, are left as they are
#   hdp source|wheel     hdp itself: compiled here, for this image's C library, or dist/'s wheel
#   mpi torch|tensorflow yes|no
#                        Open MPI and mpi4py, and Horovod for this framework if yes
#   seal NAME            the `train` program and the list of packages
#
# Behind a proxy that rewrites TLS, put the certificates into containers/ca.pem: they serve the build alone.
set -eu
here=${0%/*}
home=/opt/hdp
if [ -e "$here/ca.pem" ]; then
    export SSL_CERT_FILE="$here/ca.pem" PIP_CERT="$here/ca.pem" REQUESTS_CA_BUNDLE="$here/ca.pem"
    export CURL_CA_BUNDLE="$here/ca.pem" GIT_SSL_CAINFO="$here/ca.pem"
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1 DEBIAN_FRONTEND=noninteractive
# A torch that knows of backend "hdp" looks for it whenever it is imported.
export TORCH_DEVICE_BACKEND_AUTOLOAD=0

pip() { "$home/bin/python" -m pip "$@"; }

get() { # packages of Debian's
    command -v apt-get >/dev/null || {
        echo "image.sh: this base image has neither $* nor apt-get to get them; use another BASE" >&2
        exit 1
    }
    [ ! -e "$here/ca.pem" ] || echo "Acquire::https::CAInfo \"$here/ca.pem\";" >/etc/apt/apt.conf.d/99hdp-build
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$@"
    rm -rf /var/lib/apt/lists/* /etc/apt/apt.conf.d/99hdp-build
}

fits() { python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

case $1 in
python)
    fits || get python3 python3-venv
    [ -e /etc/ssl/certs/ca-certificates.crt ] || get ca-certificates
    fits || {
        echo "image.sh: the base image has $(python3 -V 2>&1), and hdp needs Python 3.10 or newer with venv" >&2
        exit 1
    }
    ;;
packages)
    shift
    python3 -m venv --system-site-packages "$home"
    # On this platform the pinned files alone; a package is installed unless the base image has that very version.
    pip install -q --no-deps --require-hashes -r "$here/requirements.lock"
    for spec; do
        name=${spec%%[=[]*}
        if "$home/bin/python" -c "import importlib.util as u, sys; sys.exit(not u.find_spec('${name%-cpu}'))"; then
            echo "the base image's own ${name%-cpu} is used"
        else
            pip install -q ${INDEX:+--index-url "$INDEX"} "$spec"
        fi
    done
    ;;
hdp)
    if [ "$2" = wheel ]; then
        pip install -q --no-deps "$here"/hdp_train-*.whl
    else
        command -v c++ >/dev/null || get g++ make
        pip install -q --no-deps "$here"
    fi
    "$home/bin/python" -c 'from hdp.collectives import library; print("the core:", library.load())'
    ;;
mpi)
    pip install -q --no-deps --require-hashes -r "$here/requirements.lock"
    if [ "$3" = yes ]; then
        command -v c++ >/dev/null && command -v make >/dev/null || get g++ make
        pip install -q cmake ninja
        PYTHON=$home/bin/python MPI=$home WHEELS=$here/wheels sh "$here/horovod.sh" "$2"
        pip install -q --no-deps "$here"/wheels/horovod-*.whl
        pip uninstall -q -y cmake ninja
    fi
    ;;
seal)
    printf '#!/bin/sh\nexec %s/bin/python -m hdp.runtime.launch.entrypoint train\n' "$home" >"$home/bin/train"
    chmod 755 "$home/bin/train"
    version=$("$home/bin/python" -c 'import importlib.metadata as m; print(m.version("hdp-train"))')
    "$home/bin/python" -m hdp.runtime.sbom "$2" "$version" >"$home/sbom.cdx.json"
    ;;
*)
    echo "image.sh: no step '$1'" >&2
    exit 2
    ;;
esac
