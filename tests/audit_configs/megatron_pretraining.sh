torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 2 --global-batch-size 128 --seq-length 4096 \
    --data-path /data/web_text_document --reset-position-ids --reset-attention-mask \
    --transformer-impl transformer_engine --tensor-model-parallel-size 2
