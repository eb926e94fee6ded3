#!/usr/bin/env bash
# Builds the planner's image and runs it as a locked-down container: waits for its health check, asks it for one plan
# over gRPC and stops it. Ends with the size of the image and the times. Removes all that it made but the base image.
#
#   deploy/test_container.sh                                # as root, with Debian's podman, runc and debootstrap
#   BASE=python:3.11-slim ENGINE=docker deploy/test_container.sh   # where an image registry can be reached
#
# EXTRAS chooses the variant, as in the Dockerfile; PYTHON a Python with the server extra, which asks for the plan.
set -euo pipefail
cd "$(dirname "$0")/.."
ENGINE=${ENGINE:-podman}
EXTRAS=${EXTRAS:-server,tracing}
PYTHON=${PYTHON:-.venv/bin/python}
# A base made here carries the release of the machine, whose package mirror it comes from.
LOCAL_BASE=localhost/taot-test-base
IMAGE=localhost/taot-planner-test:$$
CONTAINER=taot-planner-test-$$
WORK=$(mktemp -d)

limits=()
build_flags=()
run_flags=()
engine() { "$ENGINE" "$@"; }
if [ "$ENGINE" = podman ]; then
    # crun refuses machines that mix both versions of cgroups, and podman raises limits, which not every root may.
    engine() { podman --log-level fatal --runtime runc "$@"; }
    limits=(--ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" --ulimit nproc=4096:4096)
    # The image format of others has no health check. Nothing is cached, so nothing is left.
    build_flags=(--format docker --layers=false)
    # Without the timer of systemd: the check is run by hand below.
    run_flags=(--health-interval disable)
fi

clean_up() {
    engine rm --force "$CONTAINER" >/dev/null 2>&1 || true
    engine rmi --force "$IMAGE" >/dev/null 2>&1 || true
    rm -rf --one-file-system "$WORK"
}
trap clean_up EXIT

make_base() {
    local codename mirror
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
        awk -v codename="$codename" '$1 == codename { print $2; exit }')
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$codename" "$WORK/root" "$mirror" >"$WORK/log" ||
        { tail "$WORK/log"; return 1; }
    rm -rf "$WORK/root/var/cache/apt" "$WORK/root/var/lib/apt/lists" "$WORK/root/etc/apt/sources.list"
    tar -C "$WORK/root" --one-file-system -c . | engine import - "$LOCAL_BASE" >/dev/null
}

# What pip here knows of proxies' certificates and mirrors holds for the build as well, as secrets that leave no trace.
write_pip_config() {
    "$PYTHON" - >"$WORK/pip.conf" <<'END'
import subprocess, sys

print("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\ntimeout = 180")
for name in ("index-url", "trusted-host"):
    found = subprocess.run([sys.executable, "-m", "pip", "config", "get", f"global.{name}"], capture_output=True, text=True)
    if found.returncode == 0:
        print(f"{name} = {found.stdout.strip()}")
END
}

if [ -z "${BASE:-}" ]; then
    BASE=$LOCAL_BASE
    engine image inspect "$BASE" >/dev/null 2>&1 || make_base
fi
write_pip_config
build_flags+=(--network host "${limits[@]}" --build-arg "BASE=$BASE" --build-arg "EXTRAS=$EXTRAS" --tag "$IMAGE"
    --secret "id=pip-config,src=$WORK/pip.conf" --secret "id=ca-certificates,src=/etc/ssl/certs/ca-certificates.crt")
SECONDS=0
engine build "${build_flags[@]}" . >"$WORK/log" 2>&1 || { tail -n 40 "$WORK/log"; exit 1; }
build_seconds=$SECONDS

# Free ports; the container shares the network of the machine, and listens on the loopback alone.
read -r grpc_port http_port < <("$PYTHON" -c '
import socket
listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(listener.getsockname()[1] for listener in listeners))')
SECONDS=0
engine run "${run_flags[@]}" --detach --name "$CONTAINER" --network host "${limits[@]}" --read-only --cap-drop ALL --security-opt no-new-privileges \
    --tmpfs /tmp --env TAOT_HOST=127.0.0.1 --env "TAOT_GRPC_PORT=$grpc_port" --env "TAOT_HTTP_PORT=$http_port" "$IMAGE" >/dev/null

healthy() {
    if [ "$ENGINE" = podman ]; then
        engine healthcheck run "$CONTAINER" >/dev/null 2>&1
    else
        [ "$(engine inspect --format '{{.State.Health.Status}}' "$CONTAINER")" = healthy ]
    fi
}
until healthy; do
    [ "$SECONDS" -lt 180 ] || { engine logs "$CONTAINER"; echo "not healthy after $SECONDS s"; exit 1; }
    sleep 1
done
ready_seconds=$SECONDS

engine exec "$CONTAINER" python3 -c '
import os, pathlib
assert os.getuid() == os.getgid() == 10001, (os.getuid(), os.getgid())
for path in ("/opt/taot/x", "/x", "/etc/x"):
    try:
        pathlib.Path(path).touch()
    except OSError as error:
        assert error.errno in (13, 30), error
    else:
        raise SystemExit(f"{path} can be written")
assert any(pathlib.Path("/var/cache/taot").rglob("*.nbc")), "no kernel was kept"
left = [path for path in ("/etc/pip.conf", "/src") if pathlib.Path(path).exists()]
assert not left, left
'
engine exec "$CONTAINER" cat /opt/taot/packages.txt >"$WORK/packages.txt"
PYTHONPATH=proto:service:client:tests "$PYTHON" tests/deploy/container_check.py "127.0.0.1:$grpc_port" "$WORK/packages.txt"

engine stop --time 20 "$CONTAINER" >/dev/null
exit_code=$(engine inspect --format '{{.State.ExitCode}}' "$CONTAINER")
[ "$exit_code" = 0 ] || { engine logs "$CONTAINER"; echo "ended with $exit_code"; exit 1; }
size=$(engine image inspect --format '{{.Size}}' "$IMAGE")
base_size=$(engine image inspect --format '{{.Size}}' "$BASE")
echo "image $((size / 1000000)) MB ($((base_size / 1000000)) MB of it the base), built in $build_seconds s, healthy $ready_seconds s after its start, drained with exit code 0"
