"""What lies in the saved states of data loaders.

Algorithm: a state is searched for the dictionaries that carry a format of ours, wherever the loader has put them.
Guarantee: it is read from the states of all ranks, which must have been saved after the same step, or it is an error.
Price: a walk through the states. The only thing known of torchdata is the name of the number of batches that a loader
has given since its last snapshot.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hermetic.errors import FeedError

_STEPS_SINCE: Final = "_steps_since_snapshot"


def states_of(state: Any, form: str) -> Iterator[Mapping[str, Any]]:
    """All dictionaries in a nested state whose ``format`` is ``form``."""
    if isinstance(state, Mapping):
        if state.get("format") == form:
            yield state
            return
        for value in state.values():
            yield from states_of(value, form)


def steps_since(state: Mapping[str, Any]) -> int:
    """Batches that a loader has given since the snapshot in its state."""
    return int(state.get(_STEPS_SINCE, 0))


def check_format(state: Any, form: str, version: int, names: set[str]) -> None:
    """Refuse what is not a state of this format and version with exactly these keys.

    Raises:
        FeedError: It is another thing.
    """
    if not isinstance(state, Mapping) or state.get("format") != form:
        raise FeedError(f"the state is not of the format {form!r}; expected what state_dict returned")
    if state.get("version") != version:
        raise FeedError(
            f"the state is of version {state.get('version')!r}, and this release of hermetic reads version {version}; "
            "load it with the release that saved it"
        )
    expected = {"format", "version", *names}
    if set(state) != expected:
        raise FeedError(
            f"the state differs from a {form} in the keys {sorted(map(str, set(state) ^ expected))}; "
            "expected what state_dict returned"
        )


def check_ranks(ranks: Sequence[int], num_ranks: int) -> None:
    """Refuse states of loaders that are not one of each rank.

    Raises:
        FeedError: A rank is missing or there twice.
    """
    if sorted(ranks) != list(range(num_ranks)):
        raise FeedError(
            f"the states are of the ranks {sorted(ranks)}, expected one of each of the {num_ranks} ranks; "
            "gather the state of every rank's loader"
        )
