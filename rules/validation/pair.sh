#!/bin/sh
# Whether two nodes work together at all: a task on each answers with the node's name. It decides whether the pair was
# tested; what it cannot tell is which of the two it was.
untested() {
    echo "healer-says $*"
    exit 77
}
[ "${SLURM_JOB_NUM_NODES:-1}" -eq 2 ] || untested "needs two nodes"
shown=$(timeout 60 srun --overlap --nodes=2 --ntasks-per-node=1 sh -c 'echo "$SLURMD_NODENAME"' 2>&1) ||
    untested "srun on $SLURM_JOB_NODELIST: $(printf '%s' "$shown" | head -n 1)"
answered=$(printf '%s\n' "$shown" | sort -u | grep -c .)
[ "$answered" -eq 2 ] || untested "$answered of two nodes answered"
echo "healer-says $SLURM_JOB_NODELIST"
