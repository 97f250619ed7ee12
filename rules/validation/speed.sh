#!/bin/sh
# How fast the GPUs are: products of large matrices in BF16, and copies within their memory, all GPUs at once for some
# seconds each, so that power and cooling are in it; it reports the slowest GPU. On several nodes it runs on all at
# once and reports the slowest node. It never fails: other nodes of the kind show what is too slow. Needs PyTorch in the
# python3 of the nodes.
untested() {
    echo "healer-says $*"
    exit 77
}
seconds=${HEALER_TEST_BURN_S:-5}
nodes=${SLURM_JOB_NUM_NODES:-1}
command -v python3 >/dev/null 2>&1 || untested "no python3 here"
program='
import os, sys, time
from concurrent.futures import ThreadPoolExecutor

SIDE, COPIED = 8192, 1 << 30
node, seconds = os.environ.get("SLURMD_NODENAME", "this node"), float(sys.argv[1])

def rate(torch, number, act):
    """How often it was done in a second, after a first round that warms up."""
    for _ in range(3):
        act()
    torch.cuda.synchronize(number)
    began, count = time.time(), 0
    while not count or time.time() - began < seconds:
        for _ in range(10):
            act()
        torch.cuda.synchronize(number)
        count += 10
    return count / (time.time() - began)

def gpu(torch, number):
    with torch.cuda.device(number):
        a, b = (torch.rand(SIDE, SIDE, device="cuda").to(torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        products = rate(torch, number, lambda: torch.matmul(a, b, out=out))
        source = torch.ones(COPIED, dtype=torch.uint8, device="cuda")
        goal = torch.empty_like(source)
        copies = rate(torch, number, lambda: goal.copy_(source))
    return 2 * SIDE**3 * products / 1e12, 2 * COPIED * copies / 1e9

try:
    import torch
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise RuntimeError("no GPU for PyTorch")
    with ThreadPoolExecutor(count) as threads:
        speeds = list(threads.map(lambda number: gpu(torch, number), range(count)))
    print("healer-speed %.2f %.1f %s" % (min(one[0] for one in speeds), min(one[1] for one in speeds), node))
except Exception as error:
    print("healer-none %s on %s" % (str(error).split("\n")[0][:80] or type(error).__name__, node))
'
limit=$((seconds * 2 + 120))
if [ "$nodes" -ge 2 ]; then
    shown=$(timeout $limit srun --overlap --nodes="$nodes" --ntasks-per-node=1 python3 -c "$program" "$seconds" 2>&1)
else
    shown=$(timeout $limit python3 -c "$program" "$seconds" 2>&1)
fi
measured=$(printf '%s\n' "$shown" | grep -c '^healer-speed ')
[ "$measured" -eq "$nodes" ] ||
    untested "$measured of $nodes nodes were measured: $(printf '%s\n' "$shown" | grep -v '^healer-speed ' | head -n 1)"
slowest() { printf '%s\n' "$shown" | awk -v column="$1" '/^healer-speed /{ print $column, $4 }' | sort -g | head -n 1; }
gemm=$(slowest 2) copy=$(slowest 3)
echo "healer-result gemm_tflop_per_s ${gemm% *}"
echo "healer-result memory_gb_per_s ${copy% *}"
echo "healer-says ${gemm% *} TFLOP/s (${gemm#* }), ${copy% *} GB/s of memory (${copy#* })"
