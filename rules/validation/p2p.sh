#!/bin/sh
# Copies between each two GPUs of the node with nvbandwidth: the slowest pair. healer compares it with the good node.
untested() {
    echo "healer-says $*"
    exit 77
}
gpus=${SLURM_GPUS_ON_NODE:-0}
[ "$gpus" -ge 2 ] || untested "needs two GPUs, $gpus here"
command -v nvbandwidth >/dev/null 2>&1 || untested "no nvbandwidth here"

shown=$(timeout 300 nvbandwidth -t device_to_device_memcpy_read_ce 2>&1)
status=$?
if [ $status -eq 124 ]; then
    echo "healer-says nvbandwidth did not end within 300 s"
    exit 1
fi
[ $status -eq 0 ] || untested "nvbandwidth ended with $status: $(printf '%s' "$shown" | grep -i -m 1 -e error -e fail)"
# A row for each GPU: its number, then the copies with each other one; N/A with itself.
slowest=$(printf '%s\n' "$shown" | awk '
    /memcpy.*bandwidth/ { matrix = 1; next }
    matrix && $1 ~ /^[0-9]+$/ && /N\/A/ { for (i = 2; i <= NF; i++) if ($i ~ /^[0-9]+\./) print $i }' |
    sort -n | head -n 1)
[ -n "$slowest" ] || untested "nvbandwidth printed no figures"
echo "healer-result p2p_gb_per_s $slowest"
echo "healer-says slowest pair $slowest GB/s"
