#!/bin/bash
megatron sft --model Qwen/Qwen3-30B-A3B --dataset acme/support-chats --tuner_type full \
    --packing true --max_length 16384 --truncation_strategy right \
    --tensor_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 16 --attention_backend flash
