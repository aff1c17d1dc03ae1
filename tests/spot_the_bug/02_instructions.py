"""Supervised fine-tuning on instructions with TRL, packed."""

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

DATA = "HuggingFaceH4/no_robots"
LENGTH = 4096

training = SFTConfig(
    output_dir="runs/instructions",
    packing=True,
    packing_strategy="bfd_split",
    max_length=LENGTH,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    learning_rate=2e-4,
    bf16=True,
    model_init_kwargs={"attn_implementation": "flash_attention_2", "dtype": "bfloat16"},
)

trainer = SFTTrainer(
    model="meta-llama/Llama-3.2-1B",
    args=training,
    train_dataset=load_dataset(DATA, split="train"),
    eval_dataset=load_dataset(DATA, split="test"),
    peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
)

if __name__ == "__main__":
    trainer.train()
    trainer.save_model()
