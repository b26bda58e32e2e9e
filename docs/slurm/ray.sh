#!/bin/bash
# Starts Ray on the nodes of a SLURM job, and a bench that uses all of them; submit it again to resume:
#   sbatch --nodes=4 ray.sh methods=all 'seeds=[0,1,2]' dataset=imagenet_c dataset.root=/data/ImageNet-C \
#       model=vit_b16_raw output=/shared/runs cache_dir=/shared/cache
#SBATCH --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32 --time=24:00:00
set -euo pipefail
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_ADDRESS
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
port=$((20000 + SLURM_JOB_ID % 10000))  # on a shared node, other jobs may run Ray, too
resources=(--num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}")

# This script runs on the first node. The other nodes join when they are ready; the bench does not wait for them.
ray start --head --port="$port" "${resources[@]}"
RAY_ADDRESS=$(python -c 'import ray; print(ray.util.get_node_ip_address())'):$port
if ((SLURM_NNODES > 1)); then
    srun --relative=1 --nodes=$((SLURM_NNODES - 1)) ray start --address="$RAY_ADDRESS" "${resources[@]}" --block &
fi
tta-bench bench "$@" launcher=ray
