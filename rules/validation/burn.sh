#!/bin/sh
# Computations whose answers are known: each CPU core by SHA-256 (FIPS 180-4's own example) and products of integers,
# each GPU by products of large matrices, every element of which is compared. A GPU that computes wrong says nothing of
# it by itself. GPUs need PyTorch in the python3 of the node; without it the test counts as not made, and
# says so.
case $HEALER_TEST_DEPTH in
acceptance) seconds=1800 ;;
full) seconds=120 ;;
*) seconds=20 ;;
esac
seconds=${HEALER_TEST_BURN_S:-$seconds}
if ! command -v python3 >/dev/null 2>&1; then
    echo "healer-says no python3 here"
    exit 77
fi
file=$(mktemp) || exit 77
trap 'rm -f "$file"' EXIT
cat >"$file" <<'PYTHON'
import hashlib, multiprocessing, os, sys, time
from concurrent.futures import ThreadPoolExecutor

LONG = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"  # of a million times "a"
SIDE, LARGE = 60, 8192

def left(i, k):
    return (3 * (i % 5) + 7 * k) % 11 - 5

def right(k, j):
    return (5 * k + 2 * (j % 7)) % 13 - 6

def known(side):
    """Rows repeat after 5 and columns after 7, so a product of any size has 35 different elements."""
    return [[sum(left(i, k) * right(k, j) for k in range(side)) for j in range(7)] for i in range(5)]

def core(number, until):
    """None, or what was wrong. Integers of Python and its floats, which hold these products exactly."""
    try:
        os.sched_setaffinity(0, {number})
    except (AttributeError, OSError):
        pass
    answer = known(SIDE)
    while True:
        if hashlib.sha256(b"a" * 1000000).hexdigest() != LONG:
            return "core %d: a wrong SHA-256" % number
        for i in range(SIDE):
            for j in range(SIDE):
                found = sum(float(left(i, k)) * float(right(k, j)) for k in range(SIDE))
                if found != answer[i % 5][j % 7]:
                    return "core %d: a wrong product" % number
        if time.time() >= until:
            return None

def gpu(torch, number, until):
    """(wrong elements, products, seconds). Elements are whole numbers below 2^24: exact in every precision."""
    device = "cuda:%d" % number
    steps = torch.arange(LARGE, device=device)
    a = ((3 * (steps[:, None] % 5) + 7 * steps[None, :]) % 11 - 5).to(torch.bfloat16)
    b = ((5 * steps[:, None] + 2 * (steps[None, :] % 7)) % 13 - 6).to(torch.bfloat16)
    a, b = a.float(), b.float()
    answer = torch.tensor(known(LARGE), dtype=torch.float32, device=device)
    answer = answer[steps % 5][:, steps % 7]
    wrong = products = 0
    torch.cuda.synchronize(number)
    began = time.time()
    while not products or time.time() < until:
        for _ in range(10):
            wrong += int((torch.matmul(a, b) != answer).sum())
        products += 10
    return wrong, products, time.time() - began

def on_gpus(seconds):
    """(GPUs that came to an answer, what was wrong, what kept others from one, products a second of the slowest).
    All at once, so that power and cooling are tested with them. What the driver has against a GPU it tells the
    kernel's log: an error here is no answer."""
    try:
        import torch
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception as error:
        return 0, [], "no PyTorch: %s" % type(error).__name__, None
    torch.backends.cuda.matmul.allow_tf32 = True
    done, bad, kept, slowest = 0, [], "", None
    with ThreadPoolExecutor(max(1, count)) as threads:
        asked = [threads.submit(gpu, torch, number, time.time() + seconds) for number in range(count)]
    for number, one in enumerate(asked):
        if one.exception() is not None:
            kept = "GPU %d: %s" % (number, str(one.exception()).split("\n")[0])
            continue
        wrong, products, took = one.result()
        done += 1
        if wrong:
            bad.append("GPU %d: %d wrong elements in %d products" % (number, wrong, products))
        rate = products / took
        slowest = rate if slowest is None else min(slowest, rate)
    return done, bad, kept, slowest

seconds, expected = float(sys.argv[1]), int(sys.argv[2])
cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
with multiprocessing.get_context("fork").Pool(len(cores)) as pool:
    until = time.time() + min(seconds, 60)
    bad = [one for one in pool.starmap(core, [(number, until) for number in cores]) if one]
count, wrong, kept, slowest = on_gpus(seconds)
bad += wrong
if slowest is not None:
    print("healer-result gpu_matmul_per_s %.3f" % slowest)
print("healer-result burnt_gpus %d" % count)
print("healer-result burnt_cores %d" % len(cores))
if bad:
    print("healer-says " + ", ".join(bad))
    sys.exit(3)
left_out = ", not %d GPUs (%s)" % (expected - count, kept or "not seen") if count < expected else ""
print("healer-says %d cores and %d GPUs gave the known answers%s" % (len(cores), count, left_out))
sys.exit(77 if left_out else 0)
PYTHON
timeout $((seconds + 360)) python3 "$file" "$seconds" "${SLURM_GPUS_ON_NODE:-0}"
status=$?
case $status in
0 | 77) exit $status ;;
3) exit 1 ;;
124)
    echo "healer-says the test did not finish"
    exit 1
    ;;
*)
    echo "healer-says the test exited with $status"
    exit 77
    ;;
esac
