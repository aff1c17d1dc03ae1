"""TRL on news articles: continued pretraining of a small model."""

import argparse

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="HuggingFaceTB/SmolLM3-3B-Base")
parser.add_argument("--data", default="cnn_dailymail")
options = parser.parse_args()

rows = {"packing": True, "packing_strategy": "wrapped", "max_length": 2048}
training = SFTConfig(
    output_dir="runs/news",
    dataset_text_field="article",
    num_train_epochs=1,
    per_device_train_batch_size=4,
    learning_rate=1e-5,
    bf16=True,
    **rows,
)

model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation="flash_attention_2")
trainer = SFTTrainer(
    model=model,
    args=training,
    processing_class=AutoTokenizer.from_pretrained(options.model),
    train_dataset=load_dataset(options.data, "3.0.0", split="train"),
)
trainer.train()
