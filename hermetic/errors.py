"""Every error that hermetic raises.

Each one names the offender, the value, what was expected and the way out, and carries a stable ``code``
that scripts may match on. The code never changes its meaning; messages may be reworded.

    HermeticError
    ├── PlanError (ValueError)             HE100  lengths, capacity or policy do not make a plan
    │   ├── DocumentTooLongError           HE101  a document does not fit and on_overflow is "error"
    │   ├── ConservationError              HE102  a plan lost, repeated or invented a document
    │   └── PlanFileError                  HE103  a saved plan cannot be read or written
    ├── BoundariesError (ValueError)       HE200  lengths, edges, ids or positions do not describe documents
    ├── BatchError (ValueError)            HE210  documents do not make a batch
    │   └── DocumentError                  HE211  one document is malformed
    ├── AttentionError (ValueError)        HE300  shapes or options of packed_attention
    │   └── BackendError                   HE301  this backend cannot do what was asked
    ├── LossError (ValueError)             HE310  logits and labels do not fit each other
    │   └── NonFiniteError                 HE311  a supervised token has NaN or infinite logits
    ├── SealError (RuntimeError)           HE400  a module cannot be made watertight
    ├── ProbeError (RuntimeError)          HE500  an instrument cannot run
    │   ├── LeakError                      HE501  the probe found a leak and was told to raise
    │   │   └── NotSealedError             HE505  a model was asserted to be sealed (AssertionError)
    │   ├── UnsupportedError               HE502  a model runs documents alone and fails on packed ones
    │   ├── NotPackedError                 HE503  each row of a call holds one document
    │   └── NoBoundariesError              HE504  nothing in a call says where its documents start
    ├── DataError (ValueError)             HE600  documents cannot be read, rendered or written
    │   ├── SourceError                    HE601  a source file is missing, empty or malformed
    │   ├── RecordError                    HE602  one record of a source is malformed
    │   ├── TemplateError                  HE603  the tokenizer cannot render a conversation
    │   ├── PackedDataError                HE604  a packed folder is damaged or is not one
    │   ├── PackRunError                   HE605  a run of packing cannot start, go on or be resumed
    │   └── FeedError                      HE606  rows cannot be given in an order, or a position is not theirs
    │       └── RowIndexError              HE607  there is no such row (IndexError)
    ├── TrainError (ValueError)            HE700  training cannot start
    │   └── ArmError                       HE701  a model cannot run an arm of a comparison
    ├── AtlasError (RuntimeError)          HE710  a model type cannot be built or run here
    ├── DoctorError (RuntimeError)         HE720  a training command cannot be examined
    ├── AuditError (ValueError)            HE730  what is to be audited or shown cannot be read
    ├── ReportError (ValueError)           HE740  there is no report of this, or none can be written there
    ├── ConformanceError (AssertionError)  HE800  a backend breaks a law of packed attention
    └── MissingDependencyError             HE900  an optional package is not installed (ImportError)
"""

from typing import ClassVar


class HermeticError(Exception):
    """The root of all errors of this package; ``code`` is stable across releases."""

    code: ClassVar[str] = "HE000"


class PlanError(HermeticError, ValueError):
    """Lengths, capacity or policy do not make a plan."""

    code = "HE100"


class DocumentTooLongError(PlanError):
    """A document is longer than the capacity and the overflow policy is ``"error"``."""

    code = "HE101"


class ConservationError(PlanError):
    """A plan does not hold every document exactly once."""

    code = "HE102"


class PlanFileError(PlanError):
    """A plan cannot be read from a file or written to one."""

    code = "HE103"


class BoundariesError(HermeticError, ValueError):
    """Lengths, edges, ids or positions do not describe documents."""

    code = "HE200"


class BatchError(HermeticError, ValueError):
    """Documents do not make a batch."""

    code = "HE210"


class DocumentError(BatchError):
    """One document of a batch is malformed."""

    code = "HE211"


class AttentionError(HermeticError, ValueError):
    """Shapes or options of ``packed_attention`` do not fit each other."""

    code = "HE300"


class BackendError(AttentionError):
    """The chosen attention backend cannot do what was asked of it."""

    code = "HE301"


class LossError(HermeticError, ValueError):
    """Logits, labels and options of a loss do not fit each other."""

    code = "HE310"


class NonFiniteError(LossError):
    """A supervised token has logits that are NaN or infinite."""

    code = "HE311"


class SealError(HermeticError, RuntimeError):
    """A module cannot be made watertight, or a sealed model got inputs that it cannot keep apart."""

    code = "HE400"


class ProbeError(HermeticError, RuntimeError):
    """An instrument of the probe cannot run."""

    code = "HE500"


class LeakError(ProbeError):
    """The probe found that documents reach each other."""

    code = "HE501"


class UnsupportedError(ProbeError):
    """A model runs each document alone and fails on packed ones."""

    code = "HE502"


class NotPackedError(ProbeError):
    """Each row of a call holds one document, which has no neighbour to reach."""

    code = "HE503"


class NoBoundariesError(ProbeError):
    """Nothing in a call says where documents start, so nobody can tell whether its rows are packed."""

    code = "HE504"


class NotSealedError(LeakError, AssertionError):
    """A model was asserted to be sealed, and the probe's verdict is another."""

    code = "HE505"


class DataError(HermeticError, ValueError):
    """Documents cannot be read, rendered or written."""

    code = "HE600"


class SourceError(DataError):
    """A source file is missing, empty or malformed; ``reason`` is a word for a ledger to count by."""

    code = "HE601"

    def __init__(self, message: str, *, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


class RecordError(DataError):
    """One record of a source is malformed; the message names file and line, ``reason`` is a word to count by."""

    code = "HE602"

    def __init__(self, message: str, *, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


class TemplateError(DataError):
    """The tokenizer cannot render a conversation or say which tokens are the assistant's."""

    code = "HE603"

    def __init__(self, message: str, *, reason: str = "template") -> None:
        super().__init__(message)
        self.reason = reason


class PackedDataError(DataError):
    """A folder of packed rows is damaged, incomplete or not one."""

    code = "HE604"


class PackRunError(DataError):
    """A run of packing cannot start, go on or be resumed; what it finished so far is kept."""

    code = "HE605"


class FeedError(DataError):
    """Rows cannot be given in the order that was asked for, or a saved position is not one of theirs."""

    code = "HE606"


class RowIndexError(FeedError, IndexError):
    """There is no row of this number."""

    code = "HE607"


class TrainError(HermeticError, ValueError):
    """Training cannot start with what it was given."""

    code = "HE700"


class ArmError(TrainError):
    """A model cannot run an arm of a comparison: it fails on its rows, or lets documents reach each other."""

    code = "HE701"


class AtlasError(HermeticError, RuntimeError):
    """A model type cannot be built or run here."""

    code = "HE710"


class DoctorError(HermeticError, RuntimeError):
    """A training command cannot be examined: it is not found, ended too early, or has no batch of token ids."""

    code = "HE720"


class AuditError(HermeticError, ValueError):
    """A configuration, script, batch or folder to be audited or shown cannot be read, or is of no known kind."""

    code = "HE730"


class ReportError(HermeticError, ValueError):
    """There is no report of a thing of this kind, or none can be written to this path."""

    code = "HE740"


class ConformanceError(HermeticError, AssertionError):
    """A backend breaks a law that the conformance suite holds it to, or declined all that it was asked."""

    code = "HE800"


class MissingDependencyError(HermeticError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""

    code = "HE900"
