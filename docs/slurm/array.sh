#!/bin/bash
# Runs an equal part of a bench in each task of a SLURM array; submit it again to resume:
#   sbatch --array=1-16 array.sh methods=all 'seeds=[0,1,2]' dataset=imagenet_c dataset.root=/data/ImageNet-C \
#       model=vit_b16_raw output=/shared/runs cache_dir=/shared/cache
#SBATCH --gres=gpu:1 --cpus-per-task=8 --time=24:00:00
# Two minutes before the time limit, let the run write its state:
#SBATCH --signal=TERM@120
srun tta-bench bench "$@" shard="$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
