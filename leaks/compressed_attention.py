"""DeepSeek-V4: its window is told where documents start, its compressed keys are not.

A compressed key stands for several tokens; it is made from, and chosen among, all tokens of the row.
Reported: https://github.com/pytorch/torchtitan/pull/4801 (there the window crossed the border too)
Silent because the part of the mask that one can look at is right.
Way out: hermetic.seal, which runs its layers document by document.
The probe says: leak, HM100.
"""

from tiny import by_positions, show

import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("deepseek_v4")

show("as it is", hermetic.probe(by_positions(model)))
hermetic.seal(model)
show("the same call, sealed", hermetic.probe(by_positions(model)))
