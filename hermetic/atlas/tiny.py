"""Tiny random models of every type of causal language model that transformers knows, from their configurations alone.

Algorithm: a type's default configuration says which kinds of layers there are; one layer of each kind is kept, and
every other field becomes small by a rule that reads its name (``sizes``). Weight matrices get a standard deviation
of 0.2, with which a leak moves logits by an amount that shows.
Guarantee: a model that ``build_tiny`` returns has run on one document and gave finite logits for it.
Price: milliseconds per model, after a few hundred for the first import of a type's modules.
"""

import dataclasses
import difflib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hermetic.atlas.sizes import (
    ALWAYS,
    HEAD_DIM,
    LAYER_NUMBERS,
    LAYERS,
    SETTINGS,
    SIZES,
    SPECIAL_TOKENS,
    UNSTATED,
    VOCABULARY,
)
from hermetic.errors import AtlasError, MissingDependencyError

_TRIAL_TOKENS = 17
_STD = 0.2


def model_types() -> tuple[str, ...]:
    """Every type that ``AutoModelForCausalLM`` of the installed transformers can build, sorted."""
    return tuple(sorted(_transformers().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


def build_tiny(model_type: str, *, attn_implementation: str | None = None, seed: int = 0) -> nn.Module:
    """A model of 2 to 4 layers and random weights, float32, on the CPU, in evaluation mode.

    Args:
        model_type: one of ``model_types()``.
        attn_implementation: as transformers names it; by default what the model class prefers.
        seed: of the weights.

    Returns:
        The model, after one run of 17 tokens that gave finite logits.

    Raises:
        AtlasError: the type is unknown, or its model cannot be configured, built or run here; says which and why.

    Example:
        >>> model = build_tiny("llama")
        >>> model(input_ids=torch.arange(3, 20)[None], use_cache=False).logits.shape
        torch.Size([1, 17, 128])
    """
    require_known(model_type)
    model_class, config = _attempt("configured", model_type, lambda: _tiny_config(model_type))
    model: nn.Module = _attempt("built", model_type, lambda: _built(model_class, config, attn_implementation, seed))
    _attempt("run", model_type, lambda: _require_finite(model))
    return model


def supports(model_type: str) -> tuple[str, ...]:
    """The attention implementations of PyTorch's own that a type's class takes: ``eager``, and ``sdpa`` if it says so.

    Raises:
        AtlasError: the type is unknown, or its classes cannot be imported here.
    """
    auto = _transformers()
    require_known(model_type)
    find = lambda: auto.MODEL_FOR_CAUSAL_LM_MAPPING[auto.CONFIG_MAPPING[model_type]]  # noqa: E731 - one expression
    return ("eager", "sdpa") if _attempt("imported", model_type, find)._supports_sdpa else ("eager",)  # noqa: SLF001 - the one flag that says so


def require_known(model_type: str) -> None:
    """Refuse what is no type of the installed transformers, with the type that is spelled most like it."""
    known = model_types()
    if model_type not in known:
        near = difflib.get_close_matches(model_type, known, n=1)
        closest = f"; the closest is {near[0]!r}" if near else ""
        raise AtlasError(f"model type is {model_type!r}; expected one of hermetic.atlas.model_types(){closest}")


def _attempt(what: str, model_type: str, work: Any) -> Any:
    try:
        return work()
    except Exception as error:  # the code of any of hundreds of models runs here, and may raise anything
        reason = " ".join(str(error).split())
        raise AtlasError(f"{model_type} cannot be {what} here ({type(error).__name__}: {reason})") from error


def _built(model_class: Any, config: Any, attn_implementation: str | None, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = model_class._from_config(config, attn_implementation=attn_implementation)  # noqa: SLF001 - what AutoModel calls
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=_STD)
    model.float().eval()
    return model


def _require_finite(model: nn.Module) -> None:
    ids = torch.randint(3, VOCABULARY, (1, _TRIAL_TOKENS), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    if logits.shape[:2] != ids.shape or not bool(logits.isfinite().all()):
        raise AtlasError(
            f"logits of shape {tuple(logits.shape)} for {_TRIAL_TOKENS} tokens; expected finite ones for each"
        )


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "the atlas needs transformers, which is not installed; pip install 'hermetic[hf]'"
        ) from error
    return transformers


def _tiny_config(model_type: str) -> tuple[Any, Any]:
    """The class of the model, and a tiny instance of the configuration that it takes."""
    auto = _transformers()
    config_class = auto.CONFIG_MAPPING[model_type]
    model_class = auto.MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    inner = [type(sub) for sub in _sub_configs(config_class()).values() if type(sub) is model_class.config_class]
    if inner:  # the language model of a multi-modal one
        config_class = inner[0]
    return model_class, config_class(**tiny_settings(config_class()))


def _sub_configs(config: Any) -> dict[str, Any]:
    named = {name: getattr(config, name, None) for name in config.sub_configs}
    return {name: sub for name, sub in named.items() if sub is not None}


def tiny_settings(default: Any) -> dict[str, Any]:
    """Keyword arguments for the class of a default configuration, which make it tiny."""
    layers = _chosen_layers(default)
    settings: dict[str, Any] = {}
    for field in _own_fields(default):
        if field.name in _sub_configs(default):
            sub = _sub_configs(default)[field.name]
            settings[field.name] = {"model_type": sub.model_type, **tiny_settings(sub)}
        else:
            small = _small(_names(default, field.name), _stated(default, field), layers, _layer_count(default))
            if small != field.default:
                settings[field.name] = small
    _agree_on_heads(default, settings)
    return settings | SETTINGS.get(default.model_type, {})


def _own_fields(config: Any) -> Iterator[Any]:
    """Fields that a type adds to what all configurations have."""
    common = {field.name for field in dataclasses.fields(_transformers().PreTrainedConfig)} - set(ALWAYS)
    return (field for field in dataclasses.fields(config) if field.name not in common)


def _names(config: Any, name: str) -> tuple[str, ...]:
    """A field's own name and what else it may be called, such as ``n_embd`` and ``hidden_size``."""
    return (name, *(other for other, own in config.attribute_map.items() if own == name))


def _stated(config: Any, field: Any) -> Any:
    """A field's default, as its class states it; of what the configuration derives, only lists and mappings.

    Numbers that it derives, it derives anew from small ones.
    """
    derived = vars(config).get(config.attribute_map.get(field.name, field.name))
    is_many = isinstance(derived, (list, tuple, dict)) and not _is_number(field.default)
    if is_many or field.default is dataclasses.MISSING:
        return derived
    if derived is None:
        return next((UNSTATED[name] for name in _names(config, field.name) if name in UNSTATED), None)
    return field.default


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _small(names: tuple[str, ...], value: Any, layers: list[int], count: int) -> Any:
    """One field's tiny value; ``layers`` of ``count`` are kept."""
    if names[0] in ALWAYS:
        return ALWAYS[names[0]]
    if names[0] in SPECIAL_TOKENS:
        return None if value is None else SPECIAL_TOKENS[names[0]]
    if names[0] == "rope_parameters" and value:
        return _small_rope(value)
    if isinstance(value, (list, tuple)):
        return _small_list(names, value, layers, count)
    if _is_number(value) and any(LAYERS.search(name) for name in names):
        return max(2, len(layers))
    return _small_number(names, value)


def _small_list(names: tuple[str, ...], value: Any, layers: list[int], count: int) -> Any:
    if _are_layer_numbers(names[0], value):
        return [index for index, layer in enumerate(layers) if layer in value]
    if value and len(value) == count:
        return [_small_number(names, value[layer]) for layer in layers]
    return value


def _small_number(names: tuple[str, ...], value: Any) -> Any:
    if not _is_number(value):
        return value
    return next((min(size, value) for pattern, size in SIZES if any(map(pattern.search, names))), value)


def _small_rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parts of a rotary head for several axes have to add up to half of what is rotated."""
    small: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, dict):
            small[name] = _small_rope(value)
        elif name == "mrope_section":
            half = int(HEAD_DIM * parameters.get("partial_rotary_factor", 1.0)) // 2
            part = half // len(value)
            small[name] = [half - part * (len(value) - 1), *[part] * (len(value) - 1)]
        else:
            small[name] = value
    return small


def _layer_count(config: Any) -> int:
    own = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    return int(vars(config).get(own) or 0)


def _are_layer_numbers(name: str, value: Any) -> bool:
    """Whether a field lists layers by number, not one value for each layer."""
    return (
        isinstance(value, list)
        and bool(LAYER_NUMBERS.search(name))
        and all(map(_is_number, value))
        and len(set(value)) == len(value)
    )


def _chosen_layers(config: Any) -> list[int]:
    """The first layer of each kind, by every list that a configuration keeps about its layers; at least two."""
    count = _layer_count(config)
    traits: list[list[Any]] = []
    for field in _own_fields(config):
        value = _stated(config, field)
        if _are_layer_numbers(field.name, value):
            traits.append([layer in value for layer in range(count)])
        elif isinstance(value, (list, tuple)) and len(value) == count:
            traits.append([str(kind) for kind in value])
    firsts = {trait.index(kind) for trait in traits for kind in set(trait)}
    return sorted([*firsts, *sorted(set(range(count)) - firsts)[: max(0, 2 - len(firsts))]])


def _agree_on_heads(default: Any, settings: dict[str, Any]) -> None:
    """Where the default has as many key and value heads as heads, so has the tiny one."""
    heads, shared = (default.attribute_map.get(name, name) for name in ("num_attention_heads", "num_key_value_heads"))
    stated = vars(default)
    if shared in settings and stated.get(heads) == stated.get(shared):
        settings[shared] = settings.get(heads, stated[heads])
