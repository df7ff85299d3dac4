#!/bin/bash
# srun starts every rank of a training job, one per GPU. Only the "aboard run" line is Aboard's. It records
# rank 0; with "aboard run --ranks all", each rank is recorded in its own directory.
#SBATCH --job-name=vit
#SBATCH --account=project_465000001
#SBATCH --partition=standard-g
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --gpus-per-node=8
#SBATCH --mem=480G
#SBATCH --time=1:00:00

export MASTER_ADDR=$(hostname)
export MASTER_PORT=${MASTER_PORT:-29500}
export WORLD_SIZE=$SLURM_NTASKS

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  aboard run --experiment vit -- \
  bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python "${@:-train.py}"' train "$@"
