"""A loop by hand over flattened batches of letters, and a look at the loss of some that were held back."""

import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM


def letters(seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 20, (24,), generator=generator).tolist()
    return [{"input_ids": torch.randint(3, 64, (length,), generator=generator).tolist()} for length in lengths]


@torch.no_grad()
def held_back(model):
    """Padded: one letter to a row."""
    ids = [torch.tensor(letter["input_ids"]) for letter in letters(seed=1)]
    input_ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    attention_mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    return model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss


def main():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config)
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(letters(seed=0), batch_size=4, collate_fn=DataCollatorWithFlattening())
    for batch in loader:
        loss = model.train()(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    held_back(model.eval())


if __name__ == "__main__":
    main()
