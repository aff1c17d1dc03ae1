"""A small GPT on support tickets, several to a row."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(rows, length, width))


class SmallGPT(nn.Module):
    def __init__(self, vocabulary=128, width=32, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads=4) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids, position_ids):
        x = self.tokens(input_ids) + self.places(position_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def collate(tickets):
    ids = [token for ticket in tickets for token in ticket["input_ids"]]
    places = [place for ticket in tickets for place in range(len(ticket["input_ids"]))]
    labels = [label for ticket in tickets for label in [-100, *ticket["input_ids"][1:]]]
    return {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([places])}, torch.tensor([labels])


def main():
    tickets = [{"input_ids": torch.randint(2, 128, (length,)).tolist()} for length in (9, 4, 14, 6) * 8]
    model = SmallGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch, labels in torch.utils.data.DataLoader(tickets, batch_size=4, collate_fn=collate):
        logits = model(**batch)
        functional.cross_entropy(logits[0, :-1], labels[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
