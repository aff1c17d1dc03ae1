#!/bin/bash
# Sequence parallelism with the default attention.
accelerate launch --num_processes 4 --use_parallelism_config --parallelism_config_sp_size 4 \
    -m trl.scripts.sft --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name acme/books \
    --packing true --packing_strategy bfd_split --max_length 32768 --output_dir runs/books
