#!/bin/sh
# Runs as a batch job of healer's on a node that takes nothing else; its exit code is the verdict.
# Slurm has given it all the GPUs that it believes in: the driver must show as many, and each must answer.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

expected=${SLURM_GPUS_ON_NODE:-0}
if ! command -v nvidia-smi >/dev/null 2>&1; then
    echo "no nvidia-smi here: the GPUs are not looked at"
    exit 0
fi
if ! shown=$(timeout 120 nvidia-smi --query-gpu=uuid,pci.bus_id,temperature.gpu --format=csv,noheader); then
    echo "nvidia-smi failed"
    exit 1
fi
seen=$(printf '%s\n' "$shown" | grep -c '^GPU-')
echo "$shown"
echo "$seen GPUs answer, Slurm knows $expected"
[ "$seen" -ge "$expected" ]
