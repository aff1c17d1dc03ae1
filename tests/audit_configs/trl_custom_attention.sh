trl sft --model_name_or_path Qwen/Qwen3-4B --dataset_name acme/support-chats --output_dir runs/own \
  --attn_implementation our_fast_attention --packing --packing_strategy bfd_split --max_length 4096 \
  --average_tokens_across_devices false
