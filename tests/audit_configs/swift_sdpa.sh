swift sft --model Qwen/Qwen3-8B --tuner_type full --dataset acme/support-chats \
    --torch_dtype bfloat16 --max_length 8192 --packing true --attn_impl sdpa
