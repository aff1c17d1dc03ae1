tune run lora_finetune_single_device --config llama3_2/1B_lora_single_device \
    dataset.packed=True dataset._component_=torchtune.datasets.chat_dataset tokenizer.max_seq_len=null
