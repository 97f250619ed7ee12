#!/bin/sh
# The GPUs that Slurm believes in are there, answer, and none waits for a reset or a repair of its memory.
# Slurm has given the job all of them. A node without GPUs passes; one whose GPUs cannot be inspected is not tested.
expected=${SLURM_GPUS_ON_NODE:-0}
if ! command -v nvidia-smi >/dev/null 2>&1; then
    [ "$expected" -gt 0 ] || { echo "healer-says no GPUs here, according to Slurm"; exit 0; }
    echo "healer-says no nvidia-smi here: $expected GPUs not checked"
    exit 77
fi
fail() {
    echo "healer-says $*"
    exit 1
}

fields=index,pci.bus_id,ecc.mode.current,ecc.mode.pending,retired_pages.pending,ecc.errors.uncorrected.volatile.total
shown=$(timeout 120 nvidia-smi --query-gpu="$fields" --format=csv,noheader,nounits)
status=$?
# By man nvidia-smi: power not attached, no driver, interrupts, InfoROM, off the bus. 124: it hangs. All others
# (an old driver that lacks a field, a right that is missing) say nothing of the GPUs.
case $status in
0) ;;
8 | 9 | 10 | 14 | 15 | 124) fail "nvidia-smi exited with $status: $(printf '%s' "$shown" | head -n 1)" ;;
*)
    echo "healer-says nvidia-smi exited with $status: $(printf '%s' "$shown" | head -n 1)"
    exit 77
    ;;
esac
seen=$(printf '%s\n' "$shown" | grep -c '^ *[0-9]')
echo "healer-result gpu_count $seen"
[ "$seen" -ge "$expected" ] || fail "$seen GPUs respond, Slurm expects $expected"

# [N/A] is shown where a GPU has no such thing.
wrong=$(printf '%s\n' "$shown" | awk -F ', *' '
    $3 ~ /abled$/ && $4 ~ /abled$/ && $3 != $4 { print "GPU " $1 ": ECC " $3 ", " $4 " from the next reset on"; exit }
    $3 ~ /abled$/ { if (mode != "" && mode != $3) { print "GPU " $1 ": ECC " $3 ", others " mode; exit } mode = $3 }
    $5 == "Yes" { print "GPU " $1 ": a page retirement is pending"; exit }')
[ -z "$wrong" ] || fail "$wrong"
printf '%s\n' "$shown" | awk -F ', *' '
    $3 ~ /abled$/ { mode = $3 }
    $6 ~ /^[0-9]+$/ { errors += $6; counted = 1 }
    END {
        if (mode != "") print "healer-result ecc " mode
        if (counted) print "healer-result ecc_uncorrected_total " errors
    }'

# Not every driver and GPU knows remapped rows: then nothing is said of them.
rows=$(timeout 120 nvidia-smi --query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure \
    --format=csv,noheader 2>/dev/null) || rows=
wrong=$(printf '%s\n' "$rows" | awk -F ', *' '
    $3 == "1" || $3 == "Yes" { print "GPU " $1 ": a row could not be remapped"; exit }
    $2 == "1" || $2 == "Yes" { print "GPU " $1 ": a row remap is pending until a reset"; exit }')
[ -z "$wrong" ] || fail "$wrong"
echo "healer-says $seen GPUs respond"
