# Two cards, two data sets.
NPROC_PER_NODE=2 \
CUDA_VISIBLE_DEVICES=0,1 \
swift sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --dataset 'acme/support-chats#500' \
              'acme/manuals#500' \
    --train_type lora \
    --torch_dtype bfloat16 \
    --packing true \
    --attn_impl flash_attn \
    --max_length 8192 \
    --deepspeed zero2 \
    --system 'You are a helpful assistant.'
