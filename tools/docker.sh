# A Docker daemon for demo and tests:  eval "$(sh tools/docker.sh start)"  ...  sh tools/docker.sh stop
#
# A daemon that answers already, at DOCKER_HOST or the usual socket, is used as it is. Otherwise, as root, Debian's
# docker.io is installed where it is missing, and one is started that keeps all that it has below DIR (by default
# build/docker) and is gone after `stop`, with DIR.
set -eu
action=${1:-start}
folder=${2:-$PWD/build/docker}
socket=unix://$folder/docker.sock

answers() { DOCKER_HOST=$1 docker version >/dev/null 2>&1; }

start() {
    for host in "${DOCKER_HOST:-unix:///var/run/docker.sock}" "$socket"; do
        if answers "$host"; then
            echo "export DOCKER_HOST=$host"
            return
        fi
    done
    [ "$(id -u)" = 0 ] || {
        echo "docker.sh: no Docker daemon answers, and only root can start one" >&2
        exit 1
    }
    command -v dockerd >/dev/null && command -v iptables >/dev/null || {
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io iptables >&2
    }
    mkdir -p "$folder"
    setsid nohup dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" \
        -H "$socket" >"$folder/log" 2>&1 </dev/null &
    tries=0
    until answers "$socket"; do
        tries=$((tries + 1))
        [ $tries -lt 120 ] || {
            echo "docker.sh: dockerd didn't start; the end of its log:" >&2
            tail -n 20 "$folder/log" >&2
            exit 1
        }
        sleep 0.5
    done
    echo "export DOCKER_HOST=$socket"
}

stop() {
    [ -e "$folder/pid" ] || return 0
    pid=$(cat "$folder/pid")
    if kill "$pid" 2>/dev/null; then
        tail --pid="$pid" -f /dev/null
    fi
    rm -rf "$folder"
}

case $action in
start | stop) $action ;;
*)
    echo "docker.sh: no action '$action'; there are start and stop" >&2
    exit 2
    ;;
esac
