#!/bin/sh
# ms-swift's command line, in a folder that make_inputs.py wrote:
#
#   python examples/doctor/commands/make_inputs.py llama --out runs/llama && cd runs/llama
#   hermetic doctor -- sh ../../examples/doctor/commands/swift.sh --packing true
#
# Packing asks for FlashAttention, so on a CPU the doctor shows ms-swift's refusal, with exit code 2.
exec swift sft \
    --model model --model_type llama --template dummy --dataset chats.jsonl \
    --tuner_type full --torch_dtype float32 --max_length 64 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 1 --max_steps 6 --save_steps 1 \
    --output_dir out --report_to none --use_hf true --split_dataset_ratio 0 "$@"
