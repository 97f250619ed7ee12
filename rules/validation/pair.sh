#!/bin/sh
# Whether nodes, two or more, work together at all: a task on each answers with the node's name. It decides whether they
# were tested; what it cannot tell is which of them it was.
untested() {
    echo "healer-says $*"
    exit 77
}
nodes=${SLURM_JOB_NUM_NODES:-1}
[ "$nodes" -ge 2 ] || untested "needs two nodes"
shown=$(timeout 60 srun --overlap --nodes="$nodes" --ntasks-per-node=1 sh -c 'echo "$SLURMD_NODENAME"' 2>&1) ||
    untested "srun on $SLURM_JOB_NODELIST: $(printf '%s' "$shown" | head -n 1)"
answered=$(printf '%s\n' "$shown" | sort -u | grep -c .)
[ "$answered" -eq "$nodes" ] || untested "$answered of $nodes nodes answered"
echo "healer-says $SLURM_JOB_NODELIST"
