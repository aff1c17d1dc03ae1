"""What a record may look like: one module for each family of shapes, each with its checks.

A parser takes the place of a record for messages and its keys that are not null, and gives one of the types of
:mod:`hermetic.data.shapes.types`, or raises a :class:`hermetic.errors.RecordError`. Which parser a record goes
to is decided in :mod:`hermetic.data.records`.
"""
