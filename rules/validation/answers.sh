#!/bin/sh
# Computations whose answers are known to the last bit, and one that has to be the same wherever it is made: who
# computes wrong says nothing of it by itself. Products and sums of whole numbers are exact in every precision and in
# any order, so the bytes of a right answer have one digest, which is listed here. A product of fractions is rounded: it
# has to be the same at each repeat, and on each GPU of one model. GPUs need PyTorch in the python3 of the node; without
# it the test counts as not made, and says so. Seconds in all; `burn` loads the node for longer.
seconds=${HEALER_TEST_BURN_S:-10}
if ! command -v python3 >/dev/null 2>&1; then
    echo "healer-says no python3 here"
    exit 77
fi
file=$(mktemp) || exit 77
trap 'rm -f "$file"' EXIT
cat >"$file" <<'PYTHON'
import array, hashlib, multiprocessing, os, sys, time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

ROWS, INNER, UNITS, SUMS, CORE = 2048, 512, 256, 1 << 22, 48
# SHA-256 of the answers: products and running sums as whole numbers of 4 and 8 bytes, the low byte first.
KNOWN = {
    "whole": "93716685eacd976f1366fe9721dc412b7d271e5535448479468ac1016014b4ae",
    "units": "ac3a0f291e70a833d68769114a1e3d2e61ed9b3be1c062bd6dbd3c5b2915b769",
    "sums": "886e37cdacc08359521b038399e86aaea0ca440e18198a63fef2eebb27b39480",
    "core": "b5da95649a85da6b4b6f3f643bb4b26e73d0e1e6337ce3b612720b1e525f52e6",
}
# By name: precision, whether the cores for TensorFloat-32 take it, and the answer that it has to give. Sums of units
# stay below 256, which is exact in 8 bits; those of whole numbers below 2^24.
PRODUCTS = (
    ("fp64", "float64", False, "whole"),
    ("fp32", "float32", False, "whole"),
    ("tf32", "float32", True, "whole"),
    ("bf16", "bfloat16", False, "units"),
    ("fp16", "float16", False, "units"),
    ("fractions", "float32", False, None),
)

def core(number):
    """None, or what was wrong on this core."""
    try:
        os.sched_setaffinity(0, {number})
    except (AttributeError, OSError):
        pass
    for _ in range(3):
        a = [[float((3 * (i % 5) + 7 * k) % 11 - 5) for k in range(CORE)] for i in range(CORE)]
        b = [[float((5 * k + 2 * (j % 7)) % 13 - 6) for k in range(CORE)] for j in range(CORE)]
        found = array.array("i", (int(sum(x * y for x, y in zip(row, col))) for row in a for col in b))
        if sys.byteorder == "big":
            found.byteswap()
        if hashlib.sha256(found.tobytes()).hexdigest() != KNOWN["core"]:
            return "core %d: a wrong product" % number
    return None

def factors(torch, device, name, dtype):
    i, inner = torch.arange(ROWS, device=device), UNITS if dtype in ("bfloat16", "float16") else INNER
    k = torch.arange(inner, device=device)
    if inner == UNITS:
        a, b = (i[:, None] + 2 * k[None, :]) % 3 - 1, (2 * k[:, None] + i[None, :]) % 3 - 1
    else:
        a = (3 * (i[:, None] % 5) + 7 * k[None, :]) % 11 - 5
        b = (5 * k[:, None] + 2 * (i[None, :] % 7)) % 13 - 6
    kind = getattr(torch, dtype)
    if name == "fractions":
        return a.to(kind) / 1000, b.to(kind) / 997
    return a.to(kind), b.to(kind)

def digest(made):
    return hashlib.sha256(made.cpu().numpy().tobytes()).hexdigest()

def repeated(make, until):
    """(digest of the first, repeats that differ from it, repeats)."""
    first, other, count = make(), 0, 1
    while time.time() < until or count < 2:
        other += int((make() != first).sum()) != 0
        count += 1
    return digest(first), other, count

def product(torch, number, name, dtype, until):
    a, b = factors(torch, "cuda:%d" % number, name, dtype)
    whole = (lambda made: made) if name == "fractions" else (lambda made: made.to(torch.int32))
    return repeated(lambda: whole(torch.matmul(a, b)), until)

def sums(torch, number, until):
    steps = torch.arange(SUMS, device="cuda:%d" % number) * 7919 % 8191
    return repeated(lambda: torch.cumsum(steps, 0), until)

def on_gpus(seconds):
    """(GPUs that came to every answer, what was wrong, what kept others from one, digest of the fractions). One kind
    of computation at a time, on all GPUs at once: what chooses the precision is one setting for all of them."""
    try:
        import torch
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception as error:
        return 0, [], "no PyTorch: %s" % type(error).__name__, ""
    kept, bad, same, each_s = {}, [], "", seconds / (len(PRODUCTS) + 1)
    with ThreadPoolExecutor(max(1, count)) as threads:
        for name, dtype, tensor, answer in (*PRODUCTS, ("sums", "", False, "sums")):
            torch.backends.cuda.matmul.allow_tf32 = tensor
            until = time.time() + each_s
            asked = {
                one: threads.submit(sums, torch, one, until) if not dtype
                else threads.submit(product, torch, one, name, dtype, until)
                for one in range(count) if one not in kept
            }
            answers = {}
            for one, job in asked.items():
                if job.exception() is not None:
                    kept[one] = "GPU %d: %s" % (one, str(job.exception()).split("\n")[0])
                    continue
                answers[one], other, repeats = job.result()
                if other:
                    bad.append("GPU %d: %s differs in %d of %d repeats" % (one, name, other, repeats))
                elif answer is not None and answers[one] != KNOWN[answer]:
                    bad.append("GPU %d: a wrong answer in %s" % (one, name))
            if answer is None:
                bad += unlike(torch, answers, name)
                same = next(iter(answers.values()), "")
    return count - len(kept), bad, next(iter(kept.values()), ""), same

def unlike(torch, answers, name):
    """GPUs whose answer is not that of most others of their model."""
    found = []
    for model in {torch.cuda.get_device_name(one) for one in answers}:
        alike = {one: made for one, made in answers.items() if torch.cuda.get_device_name(one) == model}
        (most, times), *others = Counter(alike.values()).most_common()
        if others and times == others[0][1]:
            found.append("GPUs %s do not agree in %s" % (" ".join(map(str, sorted(alike))), name))
        else:
            found += ["GPU %d: %s is not as on the others" % (one, name) for one in alike if alike[one] != most]
    return found

seconds, expected = float(sys.argv[1]), int(sys.argv[2])
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else its products need not repeat themselves
cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
with multiprocessing.get_context("fork").Pool(len(cores)) as pool:
    bad = [one for one in pool.map(core, cores) if one]
count, wrong, kept, same = on_gpus(seconds)
bad += wrong
print("healer-result answered_gpus %d" % count)
print("healer-result answered_cores %d" % len(cores))
if same:
    print("healer-result fractions_sha256 %s" % same)
if bad:
    print("healer-says " + ", ".join(bad))
    sys.exit(3)
left_out = ", not %d GPUs (%s)" % (expected - count, kept or "not seen") if count < expected else ""
print("healer-says %d cores and %d GPUs gave the known answers%s" % (len(cores), count, left_out))
sys.exit(77 if left_out else 0)
PYTHON
timeout 240 python3 "$file" "$seconds" "${SLURM_GPUS_ON_NODE:-0}"
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
