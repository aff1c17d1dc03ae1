"""Packed rows in the forms that other trainers read, complete or not there at all.

Each form has its module, which says its columns, what it does at a document's first token and at a row's end, and shows
one row of two documents. Boundaries are written, never left to be guessed.
"""

from hermetic.data.export.export import FORMATS, ExportSummary, export_packed

__all__ = ["FORMATS", "ExportSummary", "export_packed"]
