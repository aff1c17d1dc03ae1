"""Attention of a pretraining code base, over rows of documents, with FlashAttention's kernel for them."""

import torch
from flash_attn import flash_attn_varlen_func
from torch import nn


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin, cu_seqlens, max_seqlen):
        q, k, v = self.qkv(x).view(x.shape[0], 3, self.heads, -1).unbind(1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_k=cu_seqlens,
            max_seqlen_q=max_seqlen,
            max_seqlen_k=max_seqlen,
            causal=True,
        )
        return self.out(y.flatten(1))


def collate(documents):
    lengths = torch.tensor([len(document["input_ids"]) for document in documents])
    return {
        "input_ids": torch.cat([torch.tensor(document["input_ids"]) for document in documents]),
        "position_ids": torch.cat([torch.arange(int(length)) for length in lengths]),
        "cu_seqlens": torch.cumsum(lengths, 0).to(torch.int32),
        "max_seqlen": int(lengths.max()),
    }
