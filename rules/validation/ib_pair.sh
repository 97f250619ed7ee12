#!/bin/sh
# RDMA writes from node to node with perftest, each InfiniBand port to the port of the same name on the other node:
# the slowest of them. healer compares it with the good node.
sys=${HEALER_TEST_SYS:-/sys}
untested() {
    echo "healer-says $*"
    exit 77
}
on() { # NODE COMMAND…
    node=$1
    shift
    timeout 60 srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" "$@"
}
[ "${SLURM_JOB_NUM_NODES:-1}" -eq 2 ] || untested "needs two nodes"
command -v ib_write_bw >/dev/null 2>&1 || untested "no ib_write_bw here"
# This script runs on the first of them.
here=$SLURMD_NODENAME
there=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -v -x "$here" | head -n 1)
[ -n "$there" ] || untested "no second node in $SLURM_JOB_NODELIST"

slowest=
for port in "$sys"/class/infiniband/*/ports/*; do
    grep -q ACTIVE "$port/state" 2>/dev/null || continue
    grep -q InfiniBand "$port/link_layer" 2>/dev/null || continue
    device=${port#"$sys"/class/infiniband/}
    device=${device%%/*} number=${port##*/}
    ib_write_bw -d "$device" -i "$number" -p 18516 -D 5 --report_gbits >/dev/null 2>&1 &
    server=$!
    sleep 1
    shown=$(on "$there" ib_write_bw -d "$device" -i "$number" -p 18516 -D 5 --report_gbits "$here" 2>&1)
    status=$?
    kill "$server" 2>/dev/null
    wait "$server"
    [ $status -eq 0 ] || untested "ib_write_bw $device:$number from $there to $here ended with $status"
    # Columns: bytes, iterations, peak, average, message rate.
    rate=$(printf '%s\n' "$shown" | awk '$1 ~ /^[0-9]+$/ && NF == 5 { print $4 }' | tail -n 1)
    [ -n "$rate" ] || untested "ib_write_bw $device:$number printed no figures"
    slowest=$(printf '%s\n%s\n' "$slowest" "$rate" | grep . | sort -n | head -n 1)
done
[ -n "$slowest" ] || untested "no active InfiniBand port here"
echo "healer-result ib_pair_bw_gbit_per_s $slowest"
echo "healer-says slowest port between $there and $here $slowest Gbit/s"
