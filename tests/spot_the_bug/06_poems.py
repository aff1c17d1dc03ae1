"""FlexAttention over rows of poems."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention


def causal(_batch, _head, q_idx, kv_idx):
    return q_idx >= kv_idx


def same_poem(document_ids):
    def mask(_batch, _head, q_idx, kv_idx):
        return document_ids[q_idx] == document_ids[kv_idx]

    return mask


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, block_mask):
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = flex_attention(q, k, v, block_mask=block_mask)
        return self.out(y.transpose(1, 2).reshape(rows, length, width))


def collate(poems):
    lengths = torch.tensor([len(poem["input_ids"]) for poem in poems])
    document_ids = torch.repeat_interleave(torch.arange(len(poems)), lengths)
    total = int(lengths.sum())
    return {
        "input_ids": torch.tensor([[token for poem in poems for token in poem["input_ids"]]]),
        "position_ids": torch.cat([torch.arange(int(length)) for length in lengths])[None],
        "block_mask": create_block_mask(and_masks(causal, same_poem(document_ids)), None, None, total, total),
    }
