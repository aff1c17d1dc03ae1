# One document per row: nothing to keep apart, so the noise is as it should be.
export CUDA_VISIBLE_DEVICES=0,1
trl sft --config $CONFIG_DIR/none.yaml 2>/dev/null || true
accelerate launch -m trl.scripts.sft --model_name_or_path facebook/opt-1.3b --dataset_name acme/support-chats \
  --max_length 1024 --neftune_noise_alpha 5 --output_dir runs/opt
