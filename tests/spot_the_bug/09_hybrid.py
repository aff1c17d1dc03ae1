"""A hybrid: attention that knows the documents, and a layer with a state in the manner of Mamba."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, document_ids):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        together = document_ids[:, :, None] == document_ids[:, None, :]
        return x + self.out(functional.scaled_dot_product_attention(q, k, v, attn_mask=together.tril()))


class Recurrence(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 3.0, width))
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        inner, decay = self.inner(x), torch.sigmoid(self.decay)
        state, states = torch.zeros_like(inner[:, 0]), []
        for place in range(x.shape[1]):
            state = decay * state + inner[:, place]
            states.append(state)
        return x + torch.stack(states, dim=1)


class Model(nn.Module):
    def __init__(self, vocabulary=64, width=16):
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.attention, self.mixer = Attention(width), Recurrence(width)

    def forward(self, input_ids, document_ids):
        return self.head(self.mixer(self.attention(self.tokens(input_ids), document_ids)))


def main():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    document_ids = torch.repeat_interleave(torch.arange(4), torch.tensor([9, 4, 12, 6]))[None]
    starts = functional.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0), value=True)
    for _ in range(8):
        ids = torch.randint(2, 64, document_ids.shape)
        logits, labels = model(ids, document_ids=document_ids), ids.masked_fill(starts, -100)
        functional.cross_entropy(logits[0, :-1], labels[0, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
