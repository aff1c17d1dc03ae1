"""Attention over files of source code: FlashAttention's kernel on the card, file by file on the CPU."""

import torch
from torch import nn
from torch.nn import functional

try:
    from flash_attn import flash_attn_varlen_func
except ImportError:
    flash_attn_varlen_func = None


def attend(q, k, v, cu_seqlens, max_seqlen):
    """Causal attention inside of each file; all of shape [tokens, heads, features]."""
    if q.is_cuda and flash_attn_varlen_func is not None:
        return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal=True)
    files = []
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        one = [x[start:end].transpose(0, 1) for x in (q, k, v)]
        files.append(functional.scaled_dot_product_attention(*one, is_causal=True).transpose(0, 1))
    return torch.cat(files)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cu_seqlens, max_seqlen):
        q, k, v = self.qkv(x).view(x.shape[0], 3, self.heads, -1).unbind(1)
        return x + self.out(attend(q, k, v, cu_seqlens, max_seqlen).flatten(1))


def collate(files):
    lengths = torch.tensor([len(file["input_ids"]) for file in files], dtype=torch.int32)
    cu_seqlens = torch.zeros(len(files) + 1, dtype=torch.int32)
    torch.cumsum(lengths, 0, dtype=torch.int32, out=cu_seqlens[1:])
    return {
        "input_ids": torch.cat([torch.tensor(file["input_ids"]) for file in files]),
        "position_ids": torch.cat([torch.arange(int(length)) for length in lengths]),
        "labels": torch.cat([torch.tensor([-100, *file["input_ids"][1:]]) for file in files]),
        "cu_seqlens": cu_seqlens,
        "max_seqlen": int(lengths.max()),
    }
