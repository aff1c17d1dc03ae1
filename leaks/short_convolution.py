"""LFM2: a convolution over three tokens runs across the border of two documents.

No attention mask can stop it. Only the first tokens of a document change, which an average over all tokens would
hide.
"""

from tiny import build, show
from transformers import Lfm2ForCausalLM

import hermetic

model = build(Lfm2ForCausalLM, layer_types=["conv", "full_attention"])

show(hermetic.probe(model))
