# Make a Debian 11 root with Python 3.9, glibc 2.31 and NumPy, and print where it is.
#
# The tests run hdp in it as in an image that doesn't have it. Needs root and debootstrap; afterwards no network. It is
# kept in ${XDG_CACHE_HOME:-~/.cache}/hdp/debian11.
#
# MIRROR        Debian's mirror (default: debootstrap's own)
set -eu
root=${XDG_CACHE_HOME:-$HOME/.cache}/hdp/debian11
if [ ! -e "$root/ready" ]; then # a half-made one is made anew
    command -v debootstrap >/dev/null || {
        echo "debian11.sh: debootstrap is missing; install the package debootstrap" >&2
        exit 1
    }
    rm -rf "$root"
    mkdir -p "$root"
    debootstrap --variant=minbase --include=python3,python3-numpy bullseye "$root" ${MIRROR:-} >&2
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    mkdir "$root/opt/ml" && touch "$root/etc/hosts" # what a container runtime mounts over
    touch "$root/ready"
fi
echo "$root"
