"""What available_backends says is what packed_attention does."""

import pytest
import torch

import hermetic
from hermetic.attention import BACKENDS
from hermetic.errors import AttentionError, BackendError

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def runs(name, dtype, *, backward):
    """Whether a plain causal call in this dtype goes through on the CPU, and its backward pass too if asked."""
    q, k, v = (torch.ones(5, heads, 64, dtype=dtype, requires_grad=backward) for heads in (8, 2, 2))
    try:
        out = hermetic.packed_attention(q, k, v, hermetic.Boundaries.from_lengths([3, 2]), backend=name)
    except BackendError:
        return False
    if backward:
        out.sum().backward()
    return bool(torch.isfinite(out).all())


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_runs_on_the_cpu_in_just_the_dtypes_that_its_status_lists(name):
    status = hermetic.available_backends("cpu")[name]

    assert {dtype for dtype in DTYPES if runs(name, dtype, backward=False)} == set(status.forward)
    assert {dtype for dtype in DTYPES if runs(name, dtype, backward=True)} == set(status.backward)


def test_the_definition_and_sdpa_run_everything_on_the_cpu_and_have_no_excuse():
    found = hermetic.available_backends("cpu")

    assert tuple(found) == BACKENDS
    for name in ("reference", "sdpa"):
        assert set(found[name].forward) == set(found[name].backward) == set(DTYPES)
        assert found[name].why_not is None


def test_a_backend_that_lacks_something_here_says_why():
    for status in hermetic.available_backends("cpu").values():
        complete = set(status.forward) == set(status.backward) == set(DTYPES)
        assert (status.why_not is None) == complete, status


def test_a_status_reads_as_a_line():
    line = str(hermetic.available_backends("cpu")["sdpa"])

    assert line.startswith("sdpa on cpu: forward in float32, bfloat16, float16, float64; backward in float32")


def test_an_unknown_device_is_refused_by_name():
    with pytest.raises(AttentionError, match="device is 'abacus'; expected one that PyTorch knows"):
        hermetic.available_backends("abacus")
