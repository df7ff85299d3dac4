#!/bin/bash
# A training of which srun starts every rank, one per GPU. One line is Aboard's: "aboard run". It records
# rank 0; to record each rank in a directory of its own, write "aboard run --ranks all".
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
