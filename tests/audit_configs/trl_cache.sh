python -m trl.scripts.sft --model_name_or_path Qwen/Qwen3-8B --dataset_name x --packing --max_length 4096 --use_cache=True
