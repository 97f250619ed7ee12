#!/bin/sh
# RDMA writes between the InfiniBand ports of the node, two and two, with perftest: the slowest pair. The traffic goes
# out to the switch and back. healer compares it with the good node.
sys=${HEALER_TEST_SYS:-/sys}
untested() {
    echo "healer-says $*"
    exit 77
}
command -v ib_write_bw >/dev/null 2>&1 || untested "no ib_write_bw here"
active=
for port in "$sys"/class/infiniband/*/ports/*; do
    grep -q ACTIVE "$port/state" 2>/dev/null || continue
    grep -q InfiniBand "$port/link_layer" 2>/dev/null || continue
    device=${port#"$sys"/class/infiniband/}
    active="$active ${device%%/*}:${port##*/}"
done
# shellcheck disable=SC2086
set -- $active
[ $# -ge 2 ] || untested "needs two active InfiniBand ports, $# here"

slowest=
while [ $# -ge 2 ]; do
    # Both ends are on this node, so each pair may use the same TCP port, one after the other.
    timeout 60 ib_write_bw -d "${1%:*}" -i "${1#*:}" -p 18515 -D 5 --report_gbits >/dev/null 2>&1 &
    server=$!
    sleep 1
    shown=$(timeout 60 ib_write_bw -d "${2%:*}" -i "${2#*:}" -p 18515 -D 5 --report_gbits 127.0.0.1 2>&1)
    status=$?
    kill "$server" 2>/dev/null
    wait "$server"
    [ $status -eq 0 ] || untested "ib_write_bw between $1 and $2 ended with $status"
    # Columns: bytes, iterations, peak, average, message rate.
    rate=$(printf '%s\n' "$shown" | awk '$1 ~ /^[0-9]+$/ && NF == 5 { print $4 }' | tail -n 1)
    [ -n "$rate" ] || untested "ib_write_bw between $1 and $2 printed no figures"
    slowest=$(printf '%s\n%s\n' "$slowest" "$rate" | grep . | sort -n | head -n 1)
    shift 2
done
echo "healer-result ib_write_bw_gbit_per_s $slowest"
echo "healer-says slowest pair of ports $slowest Gbit/s"
