"""packed_attention refuses what does not fit, and says what would."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses

from hermetic.attention import packed_attention
from hermetic.batch import Boundaries
from hermetic.errors import AttentionError, BackendError


def call(q=(5, 4, 8), k=(5, 2, 8), v=(5, 2, 8), lengths=(3, 2), dtypes=(torch.float32,) * 3, **options):
    tensors = [torch.zeros(shape, dtype=dtype) for shape, dtype in zip((q, k, v), dtypes, strict=True)]
    return packed_attention(*tensors, Boundaries.from_lengths(lengths), **options)


def test_the_call_that_all_refusals_below_are_changes_of_is_accepted():
    assert call().shape == (5, 4, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": (1, 5, 4, 8)}, r"q has shape \(1, 5, 4, 8\); expected three dimensions \[T, heads, width\]"),
        ({"v": (5, 16)}, r"v has shape \(5, 16\); expected three dimensions .* Flatten rows into one stream"),
        ({"k": (6, 2, 8)}, "k has 6 tokens and q has 5; expected the same"),
        ({"dtypes": (torch.float32, torch.float64, torch.float32)}, r"k is torch.float64 and q is torch.float32"),
        ({"dtypes": (torch.int64,) * 3}, "q is torch.int64; expected a floating dtype"),
        ({"k": (5, 2, 7)}, "k is 7 wide and q is 8; expected the same head width"),
        ({"v": (5, 4, 8)}, "q, k and v have 4, 2 and 4 heads; expected as many value heads as key heads"),
        ({"k": (5, 3, 8), "v": (5, 3, 8)}, "q, k and v have 4, 3 and 3 heads; .* a multiple of them in q"),
        ({"k": (5, 0, 8), "v": (5, 0, 8)}, "q, k and v have 4, 0 and 0 heads"),
        ({"lengths": (3, 3)}, "boundaries describe 6 tokens and q has 5; expected boundaries of this very batch"),
        ({"window": 0}, "window is 0; expected a Python int of at least 1 token, or None for no limit"),
        ({"chunk": -1}, "chunk is -1; expected a Python int of at least 1 token, or None for no limit"),
        ({"window": 1.5}, r"window is 1\.5; expected a Python int"),
        ({"chunk": float("nan")}, "chunk is nan; expected a Python int"),
        ({"scale": float("nan")}, "scale is nan; expected a finite number"),
        ({"window": 2, "causal": False}, "window is 2 with causal=False; .* needs causal=True"),
        ({"window": True}, "window is True; expected a Python int"),
        ({"window": np.int64(4)}, r"window is np.int64\(4\); expected a Python int of at least 1 token"),
        ({"softcap": 0.0}, "softcap is 0.0; expected a positive, finite number, or None for no cap"),
        ({"softcap": float("nan")}, "softcap is nan; expected a positive, finite number"),
        ({"softcap": float("inf")}, "softcap is inf; expected a positive, finite number"),
        ({"q": (5, 4, 0), "k": (5, 2, 0)}, "k is 0 wide and q is 0; expected the same head width of at least 1"),
        ({"sinks": [0.0] * 4}, "sinks is a list; expected a tensor"),
        ({"sinks": torch.zeros(4, dtype=torch.complex64)}, "sinks is torch.complex64; expected a floating dtype"),
        ({"sinks": torch.zeros(4, device="meta")}, "sinks is on meta and q is on cpu; expected one device"),
        ({"sinks": torch.zeros(2)}, r"sinks have shape \(2,\); expected \[4\], one per head"),
        ({"dropout": 1.0}, r"dropout is 1.0; expected a probability in \[0, 1\)"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_name(changes, message):
    with pytest.raises(AttentionError, match=message):
        call(**changes)


def test_tensors_without_numbers_or_on_two_devices_are_refused_by_name():
    q = torch.zeros(5, 4, 8)
    boundaries = Boundaries.from_lengths([5])

    with pytest.raises(AttentionError, match="v is on meta and q is on cpu; expected one device, and not 'meta'"):
        packed_attention(q, q, q.to("meta"), boundaries)
    with pytest.raises(AttentionError, match="q is on meta and q is on meta; expected one device, and not 'meta'"):
        packed_attention(q.to("meta"), q.to("meta"), q.to("meta"), boundaries)
    with pytest.raises(AttentionError, match="k is a ndarray; expected a tensor"):
        packed_attention(q, q.numpy(), q, boundaries)


def test_a_scale_that_sdpa_refuses_is_one_with_which_its_kernel_masks_nothing():
    q = torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(0))

    for scale in (0.0, -0.3):
        assert F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=scale).isnan().any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "abacus"}, "backend is 'abacus'; expected one of 'reference', 'sdpa'"),
        ({"softcap": 30.0}, "backend 'sdpa' has no softcap: .* use backend='reference'"),
        ({"sinks": torch.zeros(4), "scale": 1e-9}, "'sdpa' has no sinks with scale 1e-09: .* use backend='reference'"),
        ({"scale": 0.0}, "'sdpa' has no scale 0.0: .* has to be positive; use backend='reference' or backend='flex'$"),
        (
            {"scale": -0.3},
            "'sdpa' has no scale -0.3: .* has to be positive; use backend='reference' or backend='flex'$",
        ),
        ({"scale": 1e-45}, "'sdpa' has no scale 1e-45: .* has to be positive"),
    ],
    ids=str,
)
def test_a_backend_that_cannot_is_never_replaced_by_one_that_can(changes, message):
    with pytest.raises(BackendError, match=message):
        call(**changes)
