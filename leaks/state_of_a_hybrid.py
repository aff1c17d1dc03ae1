"""Bamba and Falcon-H1: attention keeps documents apart, the Mamba layers carry their state on.

Reported: https://github.com/huggingface/transformers/pull/35861 and 39677 (seq_idx did not get to these layers)
Silent because positions alone start nothing: only with seq_idx or cu_seq_lens does the model ask for kernels that
start their state anew, and it says so where they are missing.
Way out: hermetic.seal, which runs these layers document by document.
The probe says: leak, HM301.
"""

from tiny import by_positions, show

import hermetic
from hermetic.atlas import build_tiny

for family in ("bamba", "falcon_h1"):
    model = build_tiny(family)
    show(family, hermetic.probe(by_positions(model)))
    hermetic.seal(model)
    show(f"{family}, sealed", hermetic.probe(by_positions(model)))
