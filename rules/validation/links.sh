#!/bin/sh
# NVLink, PCIe and InfiniBand: what is plugged in is up, at the width that it has. How many links and which rate belong
# here, only the good node of its kind can tell: healer compares (docs/detection.md).
sys=${HEALER_TEST_SYS:-/sys}
looked=no
fail() {
    echo "healer-says $*"
    exit 1
}

if command -v nvidia-smi >/dev/null 2>&1; then
    looked=yes
    # An idle GPU takes its PCIe link to a lower generation, never to a lower width.
    shown=$(timeout 120 nvidia-smi --query-gpu=index,pcie.link.width.current,pcie.link.width.max \
        --format=csv,noheader,nounits) || { echo "healer-says nvidia-smi exited with $?"; exit 77; }
    wrong=$(printf '%s\n' "$shown" | awk -F ', *' '
        $2 ~ /^[0-9]+$/ && $3 ~ /^[0-9]+$/ && $2 + 0 < $3 + 0 {
            print "GPU " $1 ": PCIe x" $2 " instead of x" $3
            exit
        }')
    [ -z "$wrong" ] || fail "$wrong"
    # One line for each GPU: its links that are up.
    links=$(timeout 120 nvidia-smi nvlink --status 2>/dev/null | awk '
        /^GPU [0-9]+:/ { if (gpu != "") print gpu, up; gpu = $2; up = 0 }
        /Link [0-9]+: *[0-9]/ { up++ }
        END { if (gpu != "") print gpu, up }')
    total=$(printf '%s\n' "$links" | awk '{ sum += $2 } END { print sum + 0 }')
    [ "$total" -eq 0 ] || echo "healer-result nvlink_count $total"
    wrong=$(printf '%s\n' "$links" | awk '
        { up[$1] = $2; if ($2 > most) most = $2 }
        END { for (gpu in up) if (up[gpu] < most) { print "GPU " gpu " " up[gpu] " NVLinks up, others " most; exit } }')
    [ -z "$wrong" ] || fail "$wrong"
fi

ports=0
slowest=
for port in "$sys"/class/infiniband/*/ports/*; do
    [ -r "$port/state" ] || continue
    looked=yes
    name=${port#"$sys"/class/infiniband/}
    state=$(cat "$port/state")
    case "$state $(cat "$port/phys_state" 2>/dev/null)" in
    *ACTIVE*)
        ports=$((ports + 1))
        rate=$(sed -n 's/^\([0-9.]*\) Gb.*/\1/p' "$port/rate" 2>/dev/null)
        slowest=$(printf '%s\n%s\n' "$slowest" "$rate" | grep . | sort -n | head -n 1)
        ;;
    *LinkUp*) fail "port $name is plugged in and $state" ;;
    esac
done
if [ $ports -gt 0 ]; then
    echo "healer-result ib_port_count $ports"
    [ -z "$slowest" ] || echo "healer-result ib_rate_gbit_per_s $slowest"
fi
[ $looked = yes ] || { echo "healer-says no nvidia-smi and no InfiniBand here"; exit 77; }
echo "healer-says ${total:-0} NVLinks and $ports InfiniBand ports up"
