#!/bin/sh
# The demo's GPUs are simulated: as many respond as Slurm has allocated.
echo "healer-result gpu_count ${SLURM_GPUS_ON_NODE:-0}"
echo "healer-says simulated GPUs respond"
