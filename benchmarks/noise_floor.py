"""How far packed and alone differ, in units of the noise floor that the probe measures: sealed Llamas by depth.

The probe calls a document distorted beyond ten floors, so the ratio says how much room there is: a floor that
were too low would accuse sound models. Prints a table and, last, one line of JSON.
"""

import json

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, logging

import hermetic

SIZES = ((32, 2, 0.2), (64, 8, 0.2), (128, 24, 0.2), (256, 6, 0.05), (512, 12, 0.02))
"""Width, layers, and the standard deviation of the weight matrices."""
LENGTHS = ((11, 13, 6, 1), (100, 37, 5, 64))


def llama(width: int, layers: int, std: float) -> nn.Module:
    """An untrained model with weights from a fixed seed."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)
    return model


def measure(width: int, layers: int, std: float, dtype: torch.dtype, lengths: tuple[int, ...]) -> dict[str, object]:
    """One line of the table."""
    report = hermetic.probe(hermetic.seal(llama(width, layers, std).to(dtype)), lengths=lengths)
    difference = float(report.equivalence.max())
    return {
        "width": width,
        "layers": layers,
        "std": std,
        "dtype": str(dtype).removeprefix("torch."),
        "tokens": f"{min(lengths)}-{max(lengths)}",
        "difference": difference,
        "floor": report.noise_floor,
        "ratio": difference / report.noise_floor,
        "verdict": report.verdict,
    }


def main() -> None:
    """Measure all sizes, lengths and dtypes."""
    logging.set_verbosity_error()
    rows = [
        measure(*size, dtype, lengths)
        for size in SIZES
        for dtype in (torch.float32, torch.bfloat16)
        for lengths in LENGTHS
    ]
    table = Table(title="packed against alone, in noise floors")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{value:.2g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
    print(json.dumps({"noise_floor": rows}))


if __name__ == "__main__":
    main()
