"""transformers' Trainer over packed rows: collators, losses, loaders, evaluation, a Trainer that probes, a guard."""

from hermetic.integrations.rows import PackedCollator as PackedCollator
from hermetic.integrations.rows import PaddedCollator as PaddedCollator
from hermetic.integrations.rows import Row as Row
from hermetic.integrations.rows import RowDataset as RowDataset
from hermetic.integrations.rows import collate_rows as collate_rows
from hermetic.integrations.transformers.guard import LeakGuard as LeakGuard
from hermetic.integrations.transformers.guard import SealModel as SealModel
from hermetic.integrations.transformers.loss import PackedLoss as PackedLoss
from hermetic.integrations.transformers.loss import packed_token_loss as packed_token_loss
from hermetic.integrations.transformers.messages import StepMessages as StepMessages
from hermetic.integrations.transformers.messages import without_progress_bars as without_progress_bars
from hermetic.integrations.transformers.packed_rows import PackedRows as PackedRows
from hermetic.integrations.transformers.trainer import SealedTrainer as SealedTrainer
