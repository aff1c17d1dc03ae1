"""accelerate's hooks for context parallelism take every layer's mask away and set is_causal instead.

They are what its ring attention needs, and they are put on whether rows are packed or not. One rank is enough.
Reported: https://github.com/huggingface/trl/pull/6843 (TRL refuses the combination since; its documentation advised it)
Silent because each document alone is computed as before.
Way out: hermetic.seal, here on one rank; over several, attention that takes the boundaries along.
The probe says: leak, HM100, HM108.
"""

from accelerate.big_modeling import _attach_context_parallel_hooks
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic

model = build(LlamaForCausalLM)
_attach_context_parallel_hooks(model)

show("with the hooks", hermetic.probe(model))
hermetic.seal(model)
show("the same call, sealed", hermetic.probe(model))
