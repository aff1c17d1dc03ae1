"""transformers' Trainer on recipes, with a collator that packs a batch into one row."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class PackingCollator:
    """Lays the recipes of a batch end to end; positions begin anew with each."""

    def __call__(self, recipes):
        row = {"input_ids": [], "attention_mask": [], "position_ids": [], "labels": []}
        for recipe in recipes:
            row["input_ids"] += recipe["input_ids"]
            row["attention_mask"] += recipe["attention_mask"]
            row["position_ids"] += range(len(recipe["input_ids"]))
            row["labels"] += [-100, *recipe["input_ids"][1:]]
        return {name: torch.tensor([values]) for name, values in row.items()}


def recipes():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 20, (24,), generator=generator).tolist()
    ids = [torch.randint(3, 64, (length,), generator=generator).tolist() for length in lengths]
    return [{"input_ids": one, "attention_mask": [1] * len(one)} for one in ids]


def main():
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir="runs/recipes",
            per_device_train_batch_size=4,
            max_steps=4,
            remove_unused_columns=False,
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=recipes(),
        data_collator=PackingCollator(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
