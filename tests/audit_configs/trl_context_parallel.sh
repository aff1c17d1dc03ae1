#!/bin/bash
# 64k tokens on four devices.
set -e
MODEL=Qwen/Qwen3-8B
accelerate launch --num_processes 4 --use_parallelism_config \
    --parallelism_config_cp_size 4 \
    -m trl.scripts.sft \
    --model_name_or_path "$MODEL" \
    --dataset_name acme/books \
    --packing --packing_strategy bfd_split --max_length 65536 \
    --output_dir runs/books
