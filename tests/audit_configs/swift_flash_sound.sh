#!/bin/bash
NPROC_PER_NODE=8 \
swift sft \
    --model Qwen/Qwen3-8B \
    --tuner_type lora \
    --dataset 'acme/support-chats' \
    --torch_dtype bfloat16 \
    --max_length 8192 \
    --truncation_strategy right \
    --packing true \
    --attn_impl flash_attn \
    --per_device_train_batch_size 1 \
    --output_dir output
