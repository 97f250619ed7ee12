#!/bin/sh
# An all-reduce among all GPUs of two nodes or more with nccl-tests: right sums, and the bus bandwidth of its largest
# message over the fabric. It needs nccl-tests that were built with MPI.
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
nodes=${SLURM_JOB_NUM_NODES:-1}
[ "$nodes" -ge 2 ] || untested "needs two nodes"
[ "$gpus" -ge 1 ] || untested "needs GPUs"
command -v all_reduce_perf >/dev/null 2>&1 || untested "no all_reduce_perf of nccl-tests here"

shown=$(timeout 300 srun --overlap --nodes="$nodes" --ntasks-per-node="$gpus" all_reduce_perf -b 512M -e 2G -f 2 -g 1 2>&1)
status=$?
# Columns: size count type redop root, then time algbw busbw #wrong, out of place and in place.
rows=$(printf '%s\n' "$shown" | awk '$1 ~ /^[0-9]+$/ && NF >= 13')
wrong=$(printf '%s\n' "$rows" | awk '$9 + 0 > 0 || $13 + 0 > 0' | wc -l)
[ "$wrong" -eq 0 ] || fail "wrong sums at $wrong of its sizes between $SLURM_JOB_NODELIST"
[ $status -ne 124 ] || fail "all_reduce_perf between $SLURM_JOB_NODELIST did not end within 300 s"
[ $status -eq 0 ] ||
    untested "all_reduce_perf exited with $status: $(printf '%s' "$shown" | grep -i -m 1 -e fail -e error -e warn)"
# Without MPI each task is a world of its own, and nothing went over the fabric.
printf '%s\n' "$shown" | grep -Eq "# *Rank +$((nodes * gpus - 1)) " || untested "all_reduce_perf was built without MPI"
busbw=$(printf '%s\n' "$rows" | tail -n 1 | awk '$8 ~ /^[0-9.]+$/ { print $8 }')
[ -n "$busbw" ] || untested "all_reduce_perf printed no figures"
# Of a group that is tested by halves it is another figure than of a pair: those of two nodes are higher.
[ "$HEALER_TEST_DEPTH" = together ] && of=group || of=pair
echo "healer-result nccl_${of}_busbw_gb_per_s $busbw"
echo "healer-says $busbw GB/s between $SLURM_JOB_NODELIST"
