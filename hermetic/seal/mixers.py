"""Find the modules that the attention interface does not cover, and unpack around them.

Algorithm: innermost modules first, each call of a packed forward is repeated alone. A module that mixes
documents, or cannot run packed rows at all, is run document by document from then on, unless what is around it
still mixes: then that is unpacked in its place. Then modules whose positions depend on the row are found by
comparing with each document alone.
Guarantee: found by measuring, never by name. What cannot be unpacked is left to the check of the seal.
"""

import functools
from collections.abc import Callable

import torch
from torch import nn

from hermetic.seal.aligned import Axes, Path, tensors_in
from hermetic.seal.channel import PackedForward
from hermetic.seal.distortion import distorted, is_coupled_by_length, restarts
from hermetic.seal.measure import frozen
from hermetic.seal.replay import TOKEN_WISE, Call, Recording, axes_of, chooses_tokens, is_causal, mixes, recorded
from hermetic.seal.trial import Trial
from hermetic.seal.unpack import Unpacked

_MAX_FAILURES = 1000
"""Forwards of one search that break off and are mended; each one unpacks one more module."""


Dtypes = dict[int, dict[Path, torch.dtype]]
"""Of every tensor that each module, by ``id``, gets in a run over one document."""


def dtypes_of(trial: Trial) -> Dtypes:
    """What the modules of a trial's model get in the precision that it runs in now."""
    return _dtypes(_first_calls(trial))


def _first_calls(trial: Trial) -> dict[int, Call]:
    return {id(call.module): call for call in reversed(recorded(trial.model, trial.as_one_document).calls)}


def _dtypes(calls: dict[int, Call]) -> Dtypes:
    named = {module: tensors_in(call.arguments) for module, call in calls.items()}
    return {module: {path: tensor.dtype for path, tensor in found.items()} for module, found in named.items()}


class Mixers:
    """The search over one model; ``installed`` are the modules that are unpacked so far."""

    def __init__(
        self, trial: Trial, door: nn.Module, original: Callable[[nn.Module], str], dtypes: Dtypes | None = None
    ) -> None:
        """Search the model of ``trial``.

        Args:
            trial: of the model that is sealed, which may be a wrapper.
            door: the outermost transformers model in it. Boundaries are known inside of it only, and labels are
                its arguments, so neither it nor what is around it can be unpacked.
            original: the attention implementation of a module before the seal.
            dtypes: what ``dtypes_of`` says of the model, where the trial runs in another precision than the model.
        """
        self.trial = trial
        self.original = original
        self.outside = [one for one in trial.model.modules() if any(inner is door for inner in one.modules())]
        self.lengths = trial.lengths
        self.num_slots = sum(trial.lengths)
        self.packed = PackedForward(lengths=trial.lengths, num_rows=1, num_slots=self.num_slots)
        self.names = {id(module): name for name, module in trial.model.named_modules()}
        self.installed: dict[int, Unpacked] = {}
        self.alone = _first_calls(trial)
        self.dtypes = _dtypes(self.alone) if dtypes is None else dtypes

    def unpack_mixers(self) -> None:
        """Unpack around every module that mixes documents or fails on them."""
        with frozen(self.trial.model.parameters()):
            for _ in range(_MAX_FAILURES):
                recording = recorded(self.trial.model, self.trial.packed)
                if any(
                    self._unpack(module, f"it fails on packed rows: {recording.error}") for module in recording.failed
                ):
                    continue
                self._unpack_mixing(recording)
                return

    def restore_positions(self) -> None:
        """Unpack around every module that computes something else for a packed document than for it alone."""
        tried: set[int] = set()
        while True:
            recording = recorded(self.trial.model, self.trial.packed)
            if recording.failed:
                return
            packed = [call for call in recording.calls if not self._covered(call.module)]
            runs = [functools.partial(self.trial.alone, document) for document in range(len(self.lengths))]
            alone = [recorded(self.trial.model, run).calls for run in runs]
            fresh = (call for call in distorted(packed, alone, self.lengths) if id(call.module) not in tried)
            call = next(fresh, None)
            if call is None:
                return
            tried.add(id(call.module))
            positions = restarts(call, self.alone[id(call.module)], self.num_slots)
            self._unpack(call.module, "its positions depend on the row", exact=True, positions=positions)

    def unpack_whole(self) -> None:
        """Unpack around the outermost module inside the model that takes its tokens: everything runs unpacked."""
        for _, module in self.trial.model.named_modules():
            if self._unpack(module, "modules in it mix documents and cannot be unpacked one by one"):
                return

    def uncouple_lengths(self) -> None:
        """Run modules that scale positions by the longest document of the row for each length by itself."""
        for call in recorded(self.trial.model, self.trial.packed).calls:
            if is_coupled_by_length(call, self.lengths):
                self._unpack(call.module, "it scales positions by the longest document of the row", exact=True)

    def _unpack_mixing(self, recording: Recording) -> None:
        for call in recording.calls:
            if type(call.module) in TOKEN_WISE or self._covered(call.module):
                continue
            axes = axes_of(call.arguments, self.num_slots)
            if not mixes(call, self.packed, self.lengths, axes):
                continue
            inside = self._inside(call.module)
            if self._unpack(call.module, "it carries one document into another") and mixes(
                call, self.packed, self.lengths, axes
            ):
                self._undo(call.module, inside)

    def _unpack(
        self, module: nn.Module, reason: str, *, exact: bool = False, positions: dict[Path, int] | None = None
    ) -> bool:
        """Unpack around a module, in place of those inside it; says whether that was possible."""
        call = self.alone.get(id(module))
        if call is None or any(module is one for one in self.outside) or self._covered(module):
            return False
        results = axes_of(call.output, self.num_slots)
        if not any(len(axes) == 1 for axes in results.values()):
            return False
        inside = self._inside(module)
        for inner in inside:
            self.installed.pop(id(inner.module)).remove()
        arguments = axes_of(call.arguments, self.num_slots)
        unpacked = Unpacked(
            module,
            name=self.names[id(module)],
            reason=reason,
            original=self.original(module),
            arguments=arguments,
            results=results,
            exact=exact or any(inner.exact for inner in inside) or self._needs_equal_lengths(call, arguments),
            restarts=positions or {},
            masks=self.dtypes.get(id(module), {}),
        )
        unpacked.install()
        self.installed[id(module)] = unpacked
        return True

    def _needs_equal_lengths(self, call: Call, axes: Axes) -> bool:
        """Whether pads after a document may move what the module computes for it."""
        return not is_causal(call, axes, self.num_slots) or chooses_tokens(call, axes, self.num_slots)

    def _covered(self, module: nn.Module) -> bool:
        """Whether this module, or one around it, is unpacked."""
        return any(module is inner for unpacked in self.installed.values() for inner in unpacked.module.modules())

    def _inside(self, module: nn.Module) -> list[Unpacked]:
        return [self.installed[id(child)] for child in module.modules() if id(child) in self.installed]

    def _undo(self, module: nn.Module, inside: list[Unpacked]) -> None:
        self.installed.pop(id(module)).remove()
        for inner in inside:
            inner.install()
            self.installed[id(inner.module)] = inner
