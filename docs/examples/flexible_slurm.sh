#!/usr/bin/env bash
# The script of torchrun as a job of Slurm: sbatch docs/examples/flexible_slurm.sh
#SBATCH --job-name=flexible-ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:10:00
set -euo pipefail
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
# PyTorch reads RANK and WORLD_SIZE, Slurm tells each task SLURM_PROCID and SLURM_NTASKS
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID \
    exec "${PYTHON:-python}" docs/examples/flexible_ddp.py'
