"""A GPT for patents: FlashAttention over rows of documents, learned positions."""

import torch
from flash_attn import flash_attn_varlen_func
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cu_seqlens, max_seqlen):
        q, k, v = self.qkv(x).view(x.shape[0], 3, self.heads, -1).unbind(1)
        y = flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal=True)
        return x + self.out(y.flatten(1))


class PatentGPT(nn.Module):
    def __init__(self, vocabulary=50304, width=768, layers=12, longest=8192):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Attention(width, heads=12) for _ in range(layers))

    def forward(self, input_ids, position_ids, cu_seqlens, max_seqlen):
        x = self.tokens(input_ids) + self.places(position_ids)
        for layer in self.layers:
            x = layer(x, cu_seqlens, max_seqlen)
        return x @ self.tokens.weight.T


def collate(patents):
    lengths = torch.tensor([len(patent["input_ids"]) for patent in patents])
    input_ids = torch.cat([torch.tensor(patent["input_ids"]) for patent in patents])
    labels = torch.cat([torch.tensor([-100, *patent["input_ids"][1:]]) for patent in patents])
    cu_seqlens = functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    position_ids = torch.arange(len(input_ids))
    batch = {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "cu_seqlens": cu_seqlens,
        "max_seqlen": int(lengths.max()),
    }
    return batch, labels


def step(model, batch, labels):
    logits = model(**batch)
    return functional.cross_entropy(logits[:-1], labels[1:], ignore_index=-100)
