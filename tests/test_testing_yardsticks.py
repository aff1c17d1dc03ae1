"""What the conformance suite measures with: its problems, its floors, and memory that holds NaN."""

import functools

import pytest
import torch

from hermetic.batch import Boundaries
from hermetic.batch.dialects import dense_mask
from hermetic.testing.laws import Trial
from hermetic.testing.low_precision import attention, orders
from hermetic.testing.memory import poisoned_memory
from hermetic.testing.problems import CASES, SLOTS, floors, leaves_of, problem, solved

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_naive_evaluation_in_float64_is_the_definition_in_every_order(case):
    drawn, real = problem(case, 3), case.num_tokens
    inputs = {name: x if name == "sinks" else x[:real] for name, x in drawn.inputs.items()}
    scale = case.scale or case.key_width**-0.5
    results = []
    for order in orders(case.key_width, real, CPU):
        evaluate = functools.partial(attention, mask=drawn.mask(real), scale=scale, softcap=case.softcap, order=order)
        results.append(solved(evaluate, leaves_of(inputs), drawn.upstream[:real]) if real else {})

    for found in results:
        for name, exact in drawn.exact.items() if real else ():
            assert torch.allclose(found[name], exact[:real], rtol=0.0, atol=1e-12), name
    if real:
        assert len({tuple(found["gradient of k"].flatten().tolist()) for found in results}) == len(results)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_problem_is_the_same_in_every_dtype_and_fills_its_slots(case):
    drawn = problem(case, 0)

    assert len(drawn.upstream) == SLOTS
    for x in (*drawn.inputs.values(), drawn.upstream):
        for dtype in DTYPES:
            assert torch.equal(x.to(dtype).double(), x)


def test_edges_lie_inside_at_and_across_blocks_and_windows_bind():
    edges = {case.name: Boundaries(document_lengths=case.lengths).cu_seqlens.tolist() for case in CASES}
    aligned = edges["aligned edges"]

    assert aligned == [0, 128, 192, 208, 256]
    assert not any(edge % 16 == 0 for edge in edges["plain"][1:])
    assert {0, 1} <= set(next(case for case in CASES if case.name == "tiny documents").lengths)
    for case in CASES:
        for limit in filter(None, (case.window, case.chunk)):
            assert sum(length > limit for length in case.lengths) >= 2
            full = dense_mask(Boundaries(document_lengths=case.lengths))
            assert not torch.equal(problem(case, 0).mask(case.num_tokens), full)


def test_the_floor_grows_with_the_roundings_of_the_dtype():
    drawn = problem(CASES[0], 0)
    double, single, half, brain = (
        floors(drawn, dtype, CPU) for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    )

    for name in drawn.exact:
        assert 0.0 < double[name] < single[name] / 1e6 < half[name] / 1e6 < brain[name] / 1e6


def test_poisoned_memory_reads_as_nan_and_both_settings_are_put_back():
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory

    def look_and_fail():
        x = torch.zeros(3, dtype=torch.bfloat16)
        made = torch.empty(100), torch.empty_like(x), x.new_empty(4), torch.empty_strided((2, 3), (3, 1))
        assert all(bool(each.isnan().all()) for each in made)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"), poisoned_memory():
        look_and_fail()

    after = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    assert before == after == (False, True)


def test_poisoned_memory_keeps_deterministic_algorithms_that_were_on():
    try:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        with poisoned_memory():
            assert torch.empty(5).isnan().all()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.parametrize(
    ("dtype", "of_output", "of_gradients"), [(torch.float32, 2, 3), (torch.float64, 3, 4)], ids=str
)
def test_what_is_allowed_is_a_multiple_of_the_floor_and_in_float64_one_more(dtype, of_output, of_gradients):
    trial = Trial(fn=attention, problem=problem(CASES[0], 0), dtype=dtype, device=CPU)

    assert trial.allowed("output") == of_output * trial.floor["output"]
    assert trial.allowed("gradient of v") == of_gradients * trial.floor["gradient of v"]
