#!/bin/bash
# A training job with torchrun on several nodes. Only the "aboard run" line is Aboard's. srun starts one
# "aboard run" per node, of which the first records the run; of the workers, rank 0 logs.
#SBATCH --job-name=vit
#SBATCH --account=project_465000001
#SBATCH --partition=standard-g
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=56
#SBATCH --gpus-per-node=8
#SBATCH --mem=480G
#SBATCH --time=1:00:00

export MASTER_ADDR=$(hostname)
export MASTER_PORT=${MASTER_PORT:-29500}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-7}

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  aboard run --experiment vit -- \
  bash -c 'exec torchrun \
    --nnodes="$SLURM_JOB_NUM_NODES" \
    --node-rank="$SLURM_NODEID" \
    --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" \
    --master-addr="$MASTER_ADDR" \
    --master-port="$MASTER_PORT" \
    "$@"' torchrun "${@:-train.py}"
