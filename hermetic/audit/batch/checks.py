"""Every check of a batch by the code of its rule, in the order in which findings are told: what is broken first."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from hermetic.audit.batch import agree, edges, masks, sizes, targets
from hermetic.audit.batch.facts import BatchFacts
from hermetic.audit.finding import AuditFinding

Check = Callable[[BatchFacts], Iterator[AuditFinding]]

CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "HM660": sizes.unequal,
        "HM661": sizes.negative_ids,
        "HM760": sizes.beyond_int32,
        "HM761": sizes.square_beyond_int32,
        "HM160": edges.leading_zero,
        "HM161": edges.falling,
        "HM162": edges.last_edge,
        "HM163": edges.kernel_dtype,
        "HM164": edges.all_four,
        "HM165": edges.numbers_come_back,
        "HM169": edges.rows_joined,
        "HM260": edges.longest,
        "HM603": agree.contradictions,
        "HM201": agree.not_reset,
        "HM261": agree.jumps,
        "HM262": agree.first_positions,
        "HM166": agree.merged_tail,
        "HM167": agree.split_tail,
        "HM168": agree.helpers_differ,
        "HM171": agree.planes_without_text,
        "HM101": masks.all_ones,
        "HM102": masks.cache,
        "HM103": masks.numbers,
        "HM109": masks.booleans,
        "HM170": masks.with_zeros,
        "HM172": masks.not_finite,
        "HM173": masks.lets_through,
        "HM174": masks.blind_rows,
        "HM401": targets.across_seams,
        "HM403": targets.shifted_twice,
        "HM460": targets.shifted_back,
        "HM461": targets.on_padding,
        "HM462": targets.none_at_all,
        "HM463": targets.ends_masked_by_value,
        "HM464": targets.two_disagree,
        "HM602": targets.no_boundaries,
    }
)
"""A check yields findings of its own code and no other."""
