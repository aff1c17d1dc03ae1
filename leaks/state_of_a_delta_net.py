"""Qwen3.5 and Qwen3-Next: a gated delta net carries its state, and its convolution, across documents.

Reported: https://github.com/huggingface/transformers/issues/44717 and https://github.com/modelscope/ms-swift/issues/7981
Silent because the layers between them are attention, which does read positions that restart.
Way out: hermetic.seal, which runs these layers document by document.
The probe says: leak, HM301.
"""

from tiny import by_positions, show

import hermetic
from hermetic.atlas import build_tiny

for family in ("qwen3_5_text", "qwen3_next"):
    model = build_tiny(family)
    show(family, hermetic.probe(by_positions(model)))
    hermetic.seal(model)
    show(f"{family}, sealed", hermetic.probe(by_positions(model)))
