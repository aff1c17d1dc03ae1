"""Continued training of a base model on dialogues, with a loop by hand and targets made by the data set."""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup


class Dialogues(Dataset):
    """One dialogue for each index; a file of int32 ids and an index of where each begins."""

    def __init__(self, ids, starts):
        self.ids, self.starts = ids, starts

    def __len__(self):
        return len(self.starts) - 1

    def __getitem__(self, index):
        row = torch.tensor(self.ids[self.starts[index] : self.starts[index + 1]])
        return {"input_ids": row[:-1], "labels": row[1:]}


def train(ids, starts, steps=1000):
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype=torch.bfloat16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    schedule = get_cosine_schedule_with_warmup(optimizer, 50, steps)
    for batch in DataLoader(Dialogues(ids, starts), batch_size=1, shuffle=True):
        loss = model(input_ids=batch["input_ids"].cuda(), labels=batch["labels"].cuda()).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model
