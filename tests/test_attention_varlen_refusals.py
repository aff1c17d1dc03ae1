"""What the variable-length kernels cannot do, and what is not installed, is said by name and before anything runs."""

import inspect
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
import torch.nn.attention.varlen
from attention_helpers import attention_options, problem
from varlen_standin import KERNELS, installed

from hermetic.attention import flash, packed_attention, varlen
from hermetic.attention.api import objection_of
from hermetic.attention.backend import AttentionCall
from hermetic.batch import Boundaries
from hermetic.errors import BackendError


def call(kernel=None, *, backend=None, dtype=torch.float16, device="cpu", heads=4, width=64, value_width=64, **options):
    """A call as ``packed_attention`` describes it to a backend, and what the backend objects to."""
    asked = AttentionCall(
        device_type=device,
        dtype=dtype,
        heads=heads,
        key_heads=2,
        key_width=width,
        value_width=value_width,
        num_slots=options.pop("num_slots", 1024),
        with_gradient=False,
        options=attention_options(options),
    )
    return objection_of(backend or KERNELS[kernel], asked)


SINKS = torch.zeros(4)
WIDE = "takes heads of at most 256 features, and these have"


@pytest.mark.parametrize(
    ("kernel", "changes", "expected"),
    [
        ("flash-attn 2", {}, None),
        ("flash-attn 2", {"width": 192, "value_width": 128}, None),
        ("flash-attn 2", {"width": 256, "softcap": 30.0, "window": 5}, None),
        ("flash-attn 2", {"dropout": 0.1, "sinks": SINKS}, None),
        ("flash-attn 2", {"device": "cuda"}, "runs on cpu only, and these tensors are on cuda"),
        ("flash-attn 2", {"dtype": torch.float32}, "takes float16 and bfloat16 only, and these tensors are float32"),
        ("flash-attn 2", {"width": 257}, f"flash-attn 2 {WIDE} 264"),
        ("flash-attn 2", {"value_width": 320}, f"flash-attn 2 {WIDE} 320"),
        ("flash-attn 2", {"width": 256, "sinks": SINKS}, f"flash-attn 2 {WIDE} 264 with the columns of the sinks"),
        ("flash-attn 2", {"sinks": SINKS, "window": 4}, "flash-attn 2 has no sinks together with a window"),
        ("flash-attn 2", {"sinks": SINKS, "softcap": 4.0}, "flash-attn 2 has no sinks together with a softcap"),
        ("flash-attn 2", {"sinks": SINKS, "scale": 1e-9}, "flash-attn 2 has no sinks with scale 1e-09"),
        ("flash-attn 2", {"scale": 0.0}, "has no scale 0.0: its kernels mask scores before they scale them"),
        ("varlen_attn", {"scale": -0.3}, "has no scale -0.3: its kernels mask scores before they scale them"),
        ("flash-attn 2", {"dropout": 0.1, "softcap": 4.0}, "flash-attn 2 has no dropout together with a softcap"),
        ("flash-attn 3", {"dropout": 0.1}, "flash-attn 3 has no dropout"),
        ("flash-attn 3", {"sinks": SINKS, "window": 4}, "flash-attn 3 has no sinks together with a window"),
        ("flash-attn 4", {"sinks": SINKS, "window": 4, "softcap": 3.0, "width": 128}, None),
        ("flash-attn 4", {"dropout": 0.1}, "flash-attn 4 has no dropout"),
        ("flash-attn 4", {"width": 136}, "flash-attn 4 takes heads of at most 128 features on this device, and these"),
        ("varlen_attn", {"sinks": SINKS}, None),
        ("varlen_attn", {"softcap": 4.0}, "has no softcap: varlen_attn does not know it"),
        ("varlen_attn", {"dropout": 0.1}, "has no dropout: varlen_attn does not know it"),
        ("varlen_attn", {"dtype": torch.float64}, "takes float16 and bfloat16 only, and these tensors are float64"),
        ("varlen_attn", {"width": 300}, f"{WIDE} 304"),
        ("varlen_attn", {"sinks": SINKS, "window": 4}, "has no sinks together with a window"),
    ],
    ids=str,
)
def test_what_a_kernel_cannot_do_is_an_objection_by_name(kernel, changes, expected):
    with installed(kernel):
        found = call(kernel, **changes)

    assert found is None if expected is None else found is not None and expected in found, found


@pytest.mark.parametrize("kernel", ["flash-attn 2", "varlen_attn"])
def test_more_features_than_32_bits_count_are_refused(kernel):
    most = 2**31 // (32 * 128)
    with installed(kernel):
        objections = {
            (slots, sinks is not None): call(kernel, heads=32, width=128, num_slots=slots, sinks=sinks)
            for slots, sinks in [(most - 1, None), (most, None), (most // 2, torch.zeros(32))]
        }

    assert objections[most - 1, False] is None
    assert f"counts features in 32 bits, and {most} tokens with 32 heads of 128 features" in objections[most, False]
    assert objections[most // 2, True] is not None  # in the worst case every token is a document and gets a sink


@pytest.mark.parametrize(
    ("kernel", "capability", "expected"),
    [
        ("flash-attn 2", (7, 5), "flash-attn 2 needs compute capability 8 or newer, and this device has 7.5"),
        ("flash-attn 3", (8, 9), "flash-attn 3 needs compute capability 9, and this device has 8.9"),
        ("flash-attn 3", (10, 0), "flash-attn 3 needs compute capability 9, and this device has 10.0"),
        ("flash-attn 4", (8, 0), "flash-attn 4 needs compute capability 9 to 11, and this device has 8.0"),
        ("flash-attn 4", (12, 0), "flash-attn 4 needs compute capability 9 to 11, and this device has 12.0"),
        ("varlen_attn", (7, 5), "needs compute capability 8 or newer, and this device has 7.5"),
    ],
)
def test_a_device_that_a_kernel_was_not_made_for_is_refused_by_its_capability(kernel, capability, expected):
    with installed(kernel, capability=capability):
        assert expected in call(kernel)


def test_without_a_cuda_device_none_is_claimed():
    with installed("flash-attn 2", "varlen_attn"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen, "compute_capability", lambda: None)

        assert call(backend="torch_varlen") == "needs a CUDA device, and PyTorch sees none"
        assert call(backend="flash").endswith("flash-attn 2 needs a CUDA device, and PyTorch sees none")


def test_here_without_a_gpu_the_capability_is_none():
    assert varlen.compute_capability() == (torch.cuda.get_device_capability() if torch.cuda.is_available() else None)


@pytest.mark.parametrize(
    ("capability", "options", "expected"),
    [
        ((8, 0), {}, "flash-attn 2"),
        ((9, 0), {}, "flash-attn 4"),
        ((9, 0), {"dropout": 0.1}, "flash-attn 2"),
        ((10, 0), {}, "flash-attn 4"),
        ((10, 0), {"width": 192}, "flash-attn 2"),
        ((8, 0), {"sinks": SINKS, "window": 4}, None),
    ],
    ids=str,
)
def test_the_newest_generation_that_serves_the_call_serves_it(capability, options, expected):
    width = options.get("width", 8)
    p = problem((3, 2), groups=2, key_width=width, **{k: x for k, x in options.items() if k != "width"})
    with installed("flash-attn 2", "flash-attn 3", "flash-attn 4", capability=capability) as calls:
        if expected is None:
            with pytest.raises(BackendError, match=r"flash-attn 4 needs .* flash-attn 3 needs .* flash-attn 2 has no"):
                p.solve("flash", torch.float16)
            return
        p.solve("flash", torch.float16)

    (arguments,) = calls.arguments
    assert ("dropout_p" in arguments) == (expected == "flash-attn 2")
    assert ("learnable_sink" in arguments) == (expected == "flash-attn 4")


def test_flash_attn_3_comes_before_flash_attn_2_on_a_hopper():
    with installed("flash-attn 2", "flash-attn 3", capability=(9, 0)) as calls:
        problem((3, 2)).solve("flash", torch.float16)

    assert "attention_chunk" in calls.arguments[0]


def test_without_any_package_each_is_named_with_the_way_to_install_it():
    with installed():
        found = call(backend="flash")

    assert found == (
        "has no kernel for this call: flash-attn 4 is not installed (pip install --pre flash-attn-4); flash-attn 3 is "
        "not installed (build it from the folder hopper of flash-attention); flash-attn 2 is not installed "
        "(pip install flash-attn --no-build-isolation)"
    )


def test_on_the_cpu_the_error_names_the_backends_that_can():
    q = torch.zeros(5, 2, 8, dtype=torch.bfloat16)
    for backend in ("flash", "torch_varlen"):
        expected = rf"backend '{backend}' runs on cuda only, and these tensors are on cpu; use backend='reference'"
        with pytest.raises(BackendError, match=expected):
            packed_attention(q, q, q, Boundaries.from_lengths([3, 2]), backend=backend)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ImportError("libcudart.so.12: cannot open"), "is installed and cannot be imported (libcudart.so.12: cannot"),
        (
            ModuleNotFoundError("No module named 'cutlass'", name="cutlass"),
            "is installed and cannot be imported (No module",
        ),
        (ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn"), "is not installed (pip install"),
    ],
    ids=str,
)
def test_a_package_that_cannot_be_imported_is_quoted_and_not_fatal(failure, expected):
    def failing(_):
        raise failure

    with installed("flash-attn 2"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(flash, "import_module", failing)
        found = call(backend="flash")

    assert f"flash-attn 2 {expected}" in found


@pytest.mark.parametrize(
    ("kernel", "version", "usable"),
    [
        ("flash-attn 2", "2.5.9.post1", False),
        ("flash-attn 2", "2.6.0", True),
        ("flash-attn 2", "2.10.0", True),
        ("flash-attn 4", "4.0.0b25", False),
        ("flash-attn 4", "4.0.0b26", True),
        ("flash-attn 4", "4.0.0", True),
    ],
)
def test_a_release_that_lacks_what_is_asked_of_it_is_too_old(kernel, version, usable):
    with installed(kernel), pytest.MonkeyPatch.context() as patch:
        patch.setattr(flash.metadata, "version", lambda _: version)
        found = call(kernel)

    assert found is None if usable else f"{kernel} {version} is too old (pip install" in found


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (None, "needs a newer PyTorch than"),
        (["query", "scale", "window_size"], "whose varlen_attn has no enable_gqa"),
        (["query", "is_causal"], "whose varlen_attn has no scale and no window_size and no enable_gqa"),
    ],
)
def test_a_pytorch_with_an_older_varlen_attn_is_refused_by_version(parameters, expected):
    with installed("varlen_attn"), pytest.MonkeyPatch.context() as patch:
        if parameters is None:
            patch.setitem(sys.modules, "torch.nn.attention.varlen", None)
        else:
            older = Mock()
            older.__signature__ = inspect.Signature(
                [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in parameters]
            )
            patch.setattr(torch.nn.attention.varlen, "varlen_attn", older)
        found = call(backend="torch_varlen")

    assert f"needs a newer PyTorch than {torch.__version__}" in found
    assert expected in found


def test_a_pytorch_without_flash_attention_is_refused():
    with installed("varlen_attn"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)

        assert call(backend="torch_varlen") == "needs a PyTorch that was built with flash attention"


def test_a_backend_called_past_its_objection_raises_it_all_the_same():
    q = torch.zeros(5, 2, 8, dtype=torch.float32)
    with installed("flash-attn 2"), pytest.raises(BackendError, match="'flash' takes float16 and bfloat16 only"):
        flash.attend(q, q, q, (5,), attention_options({}))


IMPORTS_NOTHING = """
import sys
import hermetic.attention, torch
loaded = sorted(name for name in sys.modules if name.startswith("flash_attn") or name.endswith("attention.varlen"))
assert [name for name in loaded if not name.startswith("hermetic")] == [], loaded
assert not torch.cuda.is_initialized()
try:
    hermetic.available_backends("cuda")
except SystemExit as error:
    print(error)
"""


def test_no_package_is_imported_before_its_first_use(tmp_path):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise SystemExit('flash_attn was imported')\n")
    environment = {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_NOTHING], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "flash_attn was imported\n"  # at the first use: the check above could have failed
