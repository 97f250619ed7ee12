#!/bin/sh
# DCGM's own diagnosis: level 1 looks (seconds), 2 measures (minutes), 3 loads the GPUs (half an hour).
case $HEALER_TEST_DEPTH in
acceptance) level=3 limit_s=5400 ;;
full) level=2 limit_s=1200 ;;
*) level=1 limit_s=120 ;;
esac
untested() {
    echo "healer-says $*"
    exit 77
}
command -v dcgmi >/dev/null 2>&1 || untested "no dcgmi here"
command -v python3 >/dev/null 2>&1 || untested "no python3 here, which reads what dcgmi prints"

report=$(timeout $limit_s dcgmi diag -r $level -j)
status=$?
if [ $status -eq 124 ]; then
    echo "healer-says level $level did not end within $limit_s s"
    exit 1
fi
# DCGM 3 and 4 differ in their names, and agree that each result has a `status` and a test a `name`.
# No result at all is no verdict: its host engine is not up, or it lacks a right.
REPORT=$report python3 - "$level" "$status" <<'PYTHON'
import json, os, sys

def results(part, name=""):
    if isinstance(part, list):
        for one in part:
            yield from results(one, name)
    elif isinstance(part, dict):
        name = str(part.get("name", name))
        if isinstance(part.get("status"), str):
            where = part.get("gpu_id", part.get("gpu_ids", part.get("entity_id", "")))
            yield name, str(where), part["status"].lower()
        for key, one in part.items():
            if key != "test_summary":
                yield from results(one, name)

level, status = sys.argv[1:]
text = os.environ["REPORT"]
try:
    found = list(results(json.loads(text[text.index("{"):])))
except ValueError:
    found = []
failed = ["%s%s" % (name, " of GPU " + where if where else "") for name, where, word in found if word == "fail"]
passed = sum(word == "pass" for _, _, word in found)
if failed:
    print("healer-says level %s: %s failed" % (level, ", ".join(failed)))
    sys.exit(3)
if not passed or status != "0":
    print("healer-says dcgmi exited with %s and reported %d passed tests" % (status, passed))
    sys.exit(77)
print("healer-says level %s: %d results passed" % (level, passed))
PYTHON
case $? in
0) exit 0 ;;
3) exit 1 ;;
*) exit 77 ;;
esac
