"""Losses that do not depend on how documents were packed, with logits and without.

``dense`` takes logits, ``linear`` takes hidden states and never holds the logits of more than a chunk of
tokens, ``huggingface`` gets those hidden states out of a model. ``weighing`` says what a token and a document
weigh and what a whole step is divided by. ``preference`` and ``distillation`` are about documents: pairs of
them, and a teacher's.
"""

from hermetic.loss.dense import document_log_probs as document_log_probs
from hermetic.loss.dense import packed_loss as packed_loss
from hermetic.loss.dense import token_loss as token_loss
from hermetic.loss.distillation import document_kl as document_kl
from hermetic.loss.huggingface import linear_head as linear_head
from hermetic.loss.huggingface import log_probs_without_logits as log_probs_without_logits
from hermetic.loss.huggingface import loss_without_logits as loss_without_logits
from hermetic.loss.linear import LinearHead as LinearHead
from hermetic.loss.linear import document_log_probs_from_hidden as document_log_probs_from_hidden
from hermetic.loss.linear import packed_linear_loss as packed_linear_loss
from hermetic.loss.pairs import join_pairs as join_pairs
from hermetic.loss.pairs import pairs_from_roles as pairs_from_roles
from hermetic.loss.preference import dpo_loss as dpo_loss
from hermetic.loss.preference import kto_loss as kto_loss
from hermetic.loss.preference import kto_reference_point as kto_reference_point
from hermetic.loss.preference import odds_ratio_loss as odds_ratio_loss
from hermetic.loss.weighing import REDUCTIONS as REDUCTIONS
from hermetic.loss.weighing import Reduction as Reduction
from hermetic.loss.weighing import ZeroSupervisedTokensWarning as ZeroSupervisedTokensWarning
from hermetic.loss.weighing import loss_denominator as loss_denominator
from hermetic.loss.weighing import supervised_tokens as supervised_tokens
from hermetic.loss.weighing import weigh_documents as weigh_documents
