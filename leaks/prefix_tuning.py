"""PEFT's prefix tuning: a prefix is a cache, and a cache turns isolation off.

Reported: https://github.com/huggingface/peft/issues/1093 (virtual tokens and positions)
Silent because use_cache=False was passed: the cache is the adapter's own. Prompt tuning drops positions, and warns.
Way out: an adapter inside of the layers, such as LoRA. hermetic.seal refuses prefix tuning.
The probe says: leak, HM100, HM106.
"""

import warnings

from peft import LoraConfig, PrefixTuningConfig, TaskType, get_peft_model
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic

warnings.filterwarnings("ignore", category=FutureWarning)  # PEFT calls what it takes from transformers by old names
prefix = PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=2)
lora = LoraConfig(task_type=TaskType.CAUSAL_LM, target_modules=["q_proj"])

show("prefix tuning", hermetic.probe(get_peft_model(build(LlamaForCausalLM), prefix)))
show("LoRA, sealed", hermetic.probe(hermetic.seal(get_peft_model(build(LlamaForCausalLM), lora))))
