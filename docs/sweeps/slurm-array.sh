#!/bin/bash
# A sweep on Slurm without submitit: one job array over shards that were cut before.
#   attnlab sweep plan.toml --shards 8 --cut --out sweep
#   sbatch --array=0-7 docs/sweeps/slurm-array.sh sweep
#SBATCH --job-name=attnlab
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --open-mode=append
set -eu
exec srun --cpu-bind=none attnlab sweep --out "$1" --shard "$SLURM_ARRAY_TASK_ID"
