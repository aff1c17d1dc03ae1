"""What every stack on transformers' Trainer has: noise, cache, adapters, scaled positions, averages over devices."""

from typing import Any, Final, TypedDict

from hermetic.audit.setup import Claim, Parallel, Setting
from hermetic.audit.stacks.reading import Reader, more_than_one

_ROPE: Final = (
    "rope_scaling",
    "rope_scaling.rope_type",
    "rope_scaling.type",
    "overrides_of_model_config.rope_scaling.rope_type",
    "overrides_of_model_config.rope_scaling.type",
    "overrides_of_model_config.rope_parameters.rope_type",
)


class TrainerFacts(TypedDict):
    """Fields of a setup."""

    rows_per_device: Setting
    neftune: Setting | None
    cache: Setting
    rope: Setting | None
    per_row: tuple[Claim, ...]
    router_loss: Setting | None


def trainer_facts(read: Reader, *, router: tuple[str, ...] = ("router_aux_loss_coef",)) -> TrainerFacts:
    """The settings that Trainer itself has, and those that are the same wherever it is used."""
    return TrainerFacts(
        rows_per_device=read.number("per_device_train_batch_size", 8),
        neftune=written_number(read, "neftune_noise_alpha", "noisy_embedding_alpha"),
        cache=read.flag("use_cache", default=False),
        rope=read.first(*_ROPE),
        per_row=averages_of_devices(read),
        router_loss=written_number(read, *router),
    )


def written_number(read: Reader, *names: str) -> Setting | None:
    """A number above 0 that was written under one of these names."""
    for name in names:
        if name in read.settings:
            number = read.number(name, None)
            if isinstance(number.value, (int, float)) and number.value > 0:
                return number
    return None


def averages_of_devices(read: Reader) -> tuple[Claim, ...]:
    """Trainer told to average the means of devices, however many tokens each had."""
    average = read.flag("average_tokens_across_devices", default=True)
    if not average.written or average.value is not False:
        return ()
    return (
        Claim(
            what="each device divides its loss by its own tokens, and the means of the devices are averaged",
            setting=average,
            way_out="Set average_tokens_across_devices to true: the loss of a step is then divided by all its tokens",
        ),
    )


_AXES: Final[tuple[tuple[str, Any], ...]] = (("cp", "torch"), ("sp", "ulysses"))


def accelerate_axes(read: Reader) -> tuple[Parallel, ...]:
    """Context and sequence parallelism of Accelerate, as Trainer and ``accelerate launch`` take it."""
    found = []
    for axis, kind in _AXES:
        names = (
            f"parallelism_config.{axis}_size",
            f"parallelism_config.parallelism_config_{axis}_size",
            f"parallelism_config_{axis}_size",
            f"{axis}_size",
        )
        name = next((name for name in names if name in read.settings), None)
        size = read.number(name, None) if name else None
        if size is not None and more_than_one(size):
            found.append(Parallel(kind=kind, size=size))
    return tuple(found)
