"""FlexAttention over rows of proofs; the block mask is made once for each batch."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


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


def causal(_batch, _head, q_idx, kv_idx):
    return q_idx >= kv_idx


def collate(proofs):
    input_ids = [token for proof in proofs for token in proof["input_ids"]]
    position_ids = [place for proof in proofs for place in range(len(proof["input_ids"]))]
    labels = [label for proof in proofs for label in [-100, *proof["input_ids"][1:]]]
    return {
        "input_ids": torch.tensor([input_ids]),
        "position_ids": torch.tensor([position_ids]),
        "labels": torch.tensor([labels]),
        "block_mask": create_block_mask(causal, None, None, len(input_ids), len(input_ids), device="cpu"),
    }
