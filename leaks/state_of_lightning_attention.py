"""MiniMax: lightning attention sums keys and values over the whole row.

It is called attention and takes an attention_mask; of that mask it reads which slots are padding, and no more.
Reported: not for packing; axolotl refuses to pack this family, TRL trains it.
Silent because every argument is accepted, seq_idx and cu_seq_lens included.
Way out: hermetic.seal, which runs these layers document by document.
The probe says: leak, HM100, HM108.
"""

from tiny import show

import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("minimax")

show("as it is", hermetic.probe(model))
hermetic.seal(model)
show("the same call, sealed", hermetic.probe(model))
