#!/bin/bash
# A sweep as an array, one run per task, all in one experiment. "aboard view job:ID" shows the runs of
# this array. Only the "aboard run" line is Aboard's. A task that Slurm requeues continues its run.
#SBATCH --job-name=sweep
#SBATCH --account=project_465000001
#SBATCH --partition=small-g
#SBATCH --array=1-4%2
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=7
#SBATCH --mem=60G
#SBATCH --time=1:00:00

rates=(0.1 0.03 0.01 0.003)
lr=${rates[SLURM_ARRAY_TASK_ID - 1]}

srun \
  aboard run --experiment cifar10 --hparam lr="$lr" -- \
  python "${@:-train.py}" --lr "$lr"
