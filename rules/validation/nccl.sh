#!/bin/sh
# An all-reduce among the GPUs of the node with nccl-tests: right sums, and the bus bandwidth of its largest message.
PATH=$PATH:/opt/nccl-tests/build:/usr/local/nccl-tests/build
untested() {
    echo "healer-says $*"
    exit 77
}
fail() {
    echo "healer-says $*"
    exit 1
}
gpus=${SLURM_GPUS_ON_NODE:-0}
[ "$gpus" -ge 2 ] || untested "needs two GPUs, $gpus here"
command -v all_reduce_perf >/dev/null 2>&1 || untested "no all_reduce_perf of nccl-tests here"

shown=$(timeout 300 all_reduce_perf -b 512M -e 2G -f 2 -g "$gpus" 2>&1)
status=$?
# Columns: size count type redop root, then time algbw busbw #wrong, out of place and in place.
rows=$(printf '%s\n' "$shown" | awk '$1 ~ /^[0-9]+$/ && NF >= 13')
wrong=$(printf '%s\n' "$rows" | awk '$9 + 0 > 0 || $13 + 0 > 0' | wc -l)
[ "$wrong" -eq 0 ] || fail "wrong sums at $wrong of its sizes"
[ $status -ne 124 ] || fail "all_reduce_perf did not end within 300 s"
[ $status -eq 0 ] ||
    untested "all_reduce_perf exited with $status: $(printf '%s' "$shown" | grep -i -m 1 -e fail -e error -e warn)"
busbw=$(printf '%s\n' "$rows" | tail -n 1 | awk '$8 ~ /^[0-9.]+$/ { print $8 }')
[ -n "$busbw" ] || untested "all_reduce_perf printed no figures"
echo "healer-result nccl_busbw_gb_per_s $busbw"
echo "healer-says $busbw GB/s among $gpus GPUs"
