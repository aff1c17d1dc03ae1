"""transformers' Trainer on reviews, flattened by its own collator."""

import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def reviews():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 20, (24,), generator=generator).tolist()
    ids = [torch.randint(3, 64, (length,), generator=generator).tolist() for length in lengths]
    return [{"input_ids": one, "labels": [-100] * 2 + one[2:]} for one in ids]


def main():
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir="runs/reviews",
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=3,
            remove_unused_columns=False,
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=reviews(),
        data_collator=DataCollatorWithFlattening(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
