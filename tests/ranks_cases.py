"""For the tests of training on several ranks: eight documents, who gets which, and what one process makes of them."""

import copy
import warnings

import torch
import torch.distributed
import transformers
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

import hermetic
from hermetic.atlas import build_tiny
from hermetic.integrations.distributed import rank_step
from hermetic.integrations.fsdp import check_sharded, shard_sealed
from hermetic.loss import ZeroSupervisedTokensWarning

transformers.logging.set_verbosity_error()

MODELS = ("llama", "qwen3_5")
REDUCTIONS = ("token", "document")
LENGTHS = (7, 3, 11, 1, 5, 4, 9, 2)
SUPERVISED_FROM = (1, 2, 6, 1, 5, 1, 3, 1)
"""The first supervised token of each document. Document 3 is a single token and document 4 has only its prompt: neither
counts."""

PARTINGS = {
    "1x8": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "2x4": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "8x1": [[0], [1], [2], [3], [4], [5], [6], [7]],
    "uneven": [[4], [0, 1, 2, 5, 6], [3, 7]],
}
"""The micro-batches of one process."""

DEALS = {
    2: {
        "even": [[[0, 1, 2, 3]], [[4, 5, 6, 7]]],
        "uneven": [[[0], [1, 2, 7], [5]], [[4, 3], [6]]],
        "nothing supervised on one rank": [[[0, 1, 2, 5, 6, 7]], [[3, 4]]],
        "nothing at all on one rank": [[[0, 1, 2], [3, 4, 5, 6, 7]], []],
    },
    4: {
        "even": [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]],
        "uneven": [[[0], [1, 2, 7], [5]], [[3, 4]], [], [[6]]],
    },
}
"""The micro-batches of each rank."""


def documents():
    generator = torch.Generator().manual_seed(5)
    made = []
    for length, first in zip(LENGTHS, SUPERVISED_FROM, strict=True):
        ids = torch.randint(3, 60, (length,), generator=generator)
        made.append({"input_ids": ids, "loss_mask": torch.arange(length) >= first})
    return made


def batches_of(parts):
    every = documents()
    return [hermetic.collate([every[number] for number in part]) for part in parts]


def plain(model_type):
    """A tiny model in float64 that is not sealed."""
    return build_tiny(model_type).double()


def inputs(batch):
    return {name: value for name, value in batch.model_inputs().items() if name != "labels"}


def weighed(losses, reduction):
    """The loss of a step from the token losses of each document, by the definition."""
    losses = [document for document in losses if len(document)]
    if reduction == "token":
        return torch.cat(losses).mean()
    return torch.stack([document.mean() for document in losses]).mean()


def supervised_losses(logits, document):
    """[supervised tokens] of one document, from logits [length, V]."""
    wanted = document["loss_mask"].clone()
    wanted[:1] = False
    losses = torch.nn.functional.cross_entropy(logits[:-1], document["input_ids"][1:], reduction="none")
    return losses[wanted[1:]]


def solo(model):
    """Token losses of each document, run alone."""
    return [supervised_losses(model(input_ids=one["input_ids"][None]).logits[0], one) for one in documents()]


def padded(model):
    """Token losses of each document, all of them in one right-padded batch."""
    ids = torch.nn.utils.rnn.pad_sequence([one["input_ids"] for one in documents()], batch_first=True)
    mask = (torch.arange(ids.shape[1])[None] < torch.tensor(LENGTHS)[:, None]).long()
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return [supervised_losses(row[: len(one["input_ids"])], one) for row, one in zip(logits, documents(), strict=True)]


def step_on(model, parts, reduction):
    """Loss and gradients of one optimizer step on this rank's micro-batches; the loss is that of all ranks."""
    step = rank_step(batches_of(parts), reduction=reduction)
    total = torch.zeros((), dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroSupervisedTokensWarning)
        for batch in step.micro_batches(model):
            loss = step.loss(model(**inputs(batch)).logits, batch)
            loss.backward()
            total += loss.detach()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(total)
        total /= torch.distributed.get_world_size()
    return total.item(), taken_gradients(model)


def taken_gradients(model):
    """Whole gradients by the names of the plain model; takes them away."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            found = taken_gradients(model.module)
        model.zero_grad()
        return {name.replace("_fsdp_wrapped_module.", ""): gradient for name, gradient in found.items()}
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradient = parameter.grad
            whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            found[name.removeprefix("module.")] = whole.clone()
            parameter.grad = None
    return found


def expected(model_type, reduction):
    """Loss and gradients of the step, from each document alone in a model that nothing was done to."""
    model = plain(model_type)
    loss = weighed(solo(model), reduction)
    loss.backward()
    return loss.item(), taken_gradients(model)


def furthest(found, wanted):
    """Largest difference of loss and of each parameter's gradient, relative to the largest of that gradient."""
    (loss, gradients), (right, right_gradients) = found, wanted
    assert gradients.keys() == right_gradients.keys()
    apart = [abs(loss - right) / abs(right)]
    for name, gradient in right_gradients.items():
        apart.append(((gradients[name] - gradient).abs().max() / gradient.abs().max()).item())
    return max(apart)


def over_ranks(sealed, kind):
    """A copy of a sealed model, wrapped or sharded."""
    model = copy.deepcopy(sealed)
    if kind == "DDP":
        return DistributedDataParallel(model)
    if kind == "FSDP1":
        layers = ModuleWrapPolicy({type(layer) for layer in model.model.layers})
        options = {"auto_wrap_policy": layers, "use_orig_params": True, "device_id": torch.device("cpu")}
        return FullyShardedDataParallel(model, **options)
    if kind == "FSDP2":
        return shard_sealed(model)
    if kind == "FSDP2 with checkpointing":
        return shard_sealed(model.train(), checkpointing=True)
    assert kind == "FSDP2 sealed afterwards"
    hermetic.unseal(model)
    for layer in model.model.layers:
        fully_shard(layer)
    hermetic.seal(fully_shard(model))
    check_sharded(model)
    return model
