"""The stand-ins are as strict and as careless as the kernels, so that passing on them means something."""

import inspect
import re
import sys

import pytest
import torch
import torch.nn.attention.varlen
from varlen_standin import installed


def test_the_stand_in_shows_a_backward_pass_behind_the_decoding_path():
    with installed("flash-attn 2"):
        function = sys.modules["flash_attn.flash_attn_interface"].flash_attn_varlen_func
        q = torch.zeros(2, 4, 8, dtype=torch.float16, requires_grad=True)
        cu_seqlens = torch.tensor([0, 1, 2], dtype=torch.int32)
        out = function(q, q[:, :2], q[:, :2], cu_seqlens, cu_seqlens, 1, 1, softmax_scale=1.0)
        with pytest.raises(AssertionError, match="the backward pass misreads"):
            out.sum().backward()


def test_the_stand_in_has_the_parameters_of_the_installed_varlen_attn():
    real = inspect.signature(torch.nn.attention.varlen.varlen_attn).parameters
    with installed("varlen_attn"):
        stand_in = inspect.signature(torch.nn.attention.varlen.varlen_attn).parameters

    assert [(p.name, p.kind, p.default) for p in stand_in.values()] == [
        (p.name, p.kind, p.default) for p in real.values()
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float32}, "half precision only"),
        ({"widths": (8, 8, 16)}, "one head width"),
        ({"widths": (4, 4, 4)}, "widths are multiples of 8"),
        ({"cu": [0.0, 3.0, 5.0]}, "cu_seqlens are int32"),
        ({"cu": [1, 3, 5]}, "cu_seqlens start at 0"),
        ({"cu": [0, 3, 3, 5]}, "no segment is empty"),
        ({"cu": [0, 3, 6]}, "cu_seqlens end within the tensor"),
        ({"longest": 2}, "max_seqlen is the longest segment at least"),
    ],
    ids=str,
)
def test_the_stand_in_is_as_strict_as_a_kernel(change, message):
    dtype = change.get("dtype", torch.float16)
    q, k, v = (torch.zeros(5, 2, width, dtype=dtype) for width in change.get("widths", (8, 8, 8)))
    cu_seqlens = torch.tensor(change.get("cu", [0, 3, 5]))
    cu_seqlens = cu_seqlens.int() if not cu_seqlens.is_floating_point() else cu_seqlens
    longest = change.get("longest", 3)
    with installed("varlen_attn"), pytest.raises(AssertionError, match=re.escape(message)):
        torch.nn.attention.varlen.varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest, scale=1.0)


def test_the_stand_in_leaves_slots_beyond_the_last_edge_unwritten_in_both_passes():
    q = torch.ones(5, 2, 8, dtype=torch.float16, requires_grad=True)
    cu_seqlens = torch.tensor([0, 3], dtype=torch.int32)
    with installed("varlen_attn"):
        out = torch.nn.attention.varlen.varlen_attn(q, q, q, cu_seqlens, cu_seqlens, 3, 3, scale=1.0)
        out[:3].sum().backward()

    assert bool(out[:3].isfinite().all())
    assert bool(out[3:].isnan().all())
    assert bool(q.grad[3:].isnan().all())
