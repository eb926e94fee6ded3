#!/usr/bin/env bash
# Makes one call of each kind with old and new releases of grpcio and protobuf on either side, each in an environment of
# its own under the folder that is given: run.sh FOLDER. Needs the network; the first run takes minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1
python=${PYTHON:-python3}
# What training images pin: the oldest that is supported, the line between, and the newest.
releases=("grpcio==1.71.2 protobuf==5.29.*" "grpcio==1.72.* protobuf==6.30.*" "grpcio protobuf==6.*" "grpcio protobuf==7.*")

for index in "${!releases[@]}"; do
    environment=$folder/$index
    # shellcheck disable=SC2206 # the words are requirements
    wanted=(${releases[$index]})
    if [ ! -e "$environment/.installed" ]; then
        "$python" -m venv "$environment"
        # All in one go: the helpers of grpcio have to be as old as it is.
        "$environment/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[server]' "${wanted[@]}"
        # No call has to wait for the compiler.
        "$environment/bin/python" -c 'import taot_planning; taot_planning.warm_up()'
        touch "$environment/.installed"
    fi
    echo "planner and client: $("$environment/bin/python" -m pip list --disable-pip-version-check 2>/dev/null |
        awk '$1 == "grpcio" || $1 == "protobuf" { printf "%s %s ", $1, $2 }')"
done
for server in "${!releases[@]}"; do
    for client in "${!releases[@]}"; do
        "$folder/$client/bin/python" tests/versions/one_call_each.py "$folder/$server/bin/python"
    done
done
