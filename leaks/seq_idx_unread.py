"""Mamba 2: the number of each token's document is passed as seq_idx, and nobody reads it.

The argument falls into **kwargs. The same happened in patched Falcon-H1, wherever its fused kernels are not in use.
Reported: https://github.com/axolotl-ai-cloud/axolotl/pull/3572
Silent because seq_idx is the right word: the kernels of this family take it under this name.
Way out: hermetic.seal. It reads seq_idx, and runs these layers document by document.
The probe says: leak, HM301, HM108.
"""

import torch
from tiny import show

import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("mamba2")


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Token ids and seq_idx."""
    return model(input_ids=batch.input_ids[None], seq_idx=batch.boundaries.document_ids[None], use_cache=False).logits


show("with seq_idx", hermetic.probe(forward))
hermetic.seal(model)
show("the same call, sealed", hermetic.probe(forward))
