"""Near-duplicate documents of a packed folder, and which of them share a row."""

from hermetic.data.duplicates.find import DuplicateDocument, DuplicatePair, DuplicateReport, find_duplicates

__all__ = ["DuplicateDocument", "DuplicatePair", "DuplicateReport", "find_duplicates"]
