"""LFM2: a convolution over three tokens runs across the border of two documents.

No attention mask can stop it. Only the first tokens of a document change.
Reported: https://github.com/huggingface/transformers/pull/46588
Silent because an average over all tokens hides the few that change.
Way out: hermetic.seal, which runs the convolution document by document.
The probe says: leak, HM302, HM108.
"""

from tiny import build, show
from transformers import Lfm2ForCausalLM

import hermetic

model = build(Lfm2ForCausalLM, layer_types=["conv", "full_attention"])

show("as it is", hermetic.probe(model))
hermetic.seal(model)
show("the same call, sealed", hermetic.probe(model))
