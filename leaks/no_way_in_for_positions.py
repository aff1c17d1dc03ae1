"""OPT, BLOOM, MPT, XGLM, BioGPT: models older than packing by positions.

Their forward takes no position_ids, or takes them to the position embedding and no further: no mask is made from them.
Reported: https://github.com/huggingface/transformers/issues/32937
Silent because a collator passes positions to all models alike, and **kwargs swallows what nobody takes.
Way out: hermetic.seal, which takes the boundaries at the door and unpacks what has no attention interface.
The probe says: leak, HM100, HM108.
"""

from tiny import show

import hermetic
from hermetic.atlas import build_tiny

for family in ("opt", "bloom", "mpt", "xglm", "biogpt"):
    model = build_tiny(family)
    show(family, hermetic.probe(model))
    hermetic.seal(model)
    show(f"{family}, sealed", hermetic.probe(model))
