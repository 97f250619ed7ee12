#!/bin/sh
# What the node runs: healer compares it with the good node of its kind (docs/detection.md). Only what has to fit on the
# node itself is judged here: the fabric manager's version has to be the driver's.
sys=${HEALER_TEST_SYS:-/sys}
all_of() { # all different values of stdin as one word, in order
    grep -v -e '^$' -e 'N/A' | sort -u | sed 's/[^A-Za-z0-9_.,:+/-]\{1,\}/_/g' | paste -s -d , -
}
tell() { # NAME VALUE; nothing where it is empty
    [ -z "$2" ] || echo "healer-result $1 $2"
}

tell kernel "$(uname -r | all_of)"
tell nic_firmware "$(cat "$sys"/class/infiniband/*/fw_ver 2>/dev/null | all_of)"
if ! command -v nvidia-smi >/dev/null 2>&1; then
    echo "healer-says no nvidia-smi here: the driver's version is not known"
    exit 77
fi
shown=$(timeout 120 nvidia-smi -q)
status=$?
if [ $status -ne 0 ]; then
    echo "healer-says nvidia-smi exited with $status"
    exit 77
fi
of() { # LABEL: its values in what nvidia-smi -q printed
    printf '%s\n' "$shown" | sed -n "s/^ *$1 *: *//p" | all_of
}
driver=$(of 'Driver Version')
tell driver "$driver"
tell cuda "$(of 'CUDA Version')"
tell vbios "$(of 'VBIOS Version')"
tell gsp_firmware "$(of 'GSP Firmware Version')"
tell inforom "$(of 'Image Version')"

if command -v nv-fabricmanager >/dev/null 2>&1; then
    manager=$(timeout 30 nv-fabricmanager --version 2>&1 | sed -n 's/.*version is *: *\([0-9.]*\).*/\1/p' | head -n 1)
    tell fabric_manager "$manager"
    if [ -n "$manager" ] && [ "$manager" != "$driver" ]; then
        echo "healer-says the fabric manager is $manager, the driver $driver"
        exit 1
    fi
fi
echo "healer-says driver $driver"
