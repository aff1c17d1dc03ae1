"""Documents as they come: sources of every kind as frozen, picklable parts that independent tasks can read.

``parse_source`` reads what a user wrote, ``find_files`` fingerprints what it stands for, ``split_into_parts`` cuts that
into runs of whole records, and ``read_part`` reads one of them anywhere. ``read_records`` is all of it for one file.
Nothing is guessed and nothing is passed over: what is not a record is a :class:`BadRecord` with its file, its line and
a reason to count by, and what hides where records end is a :class:`hermetic.errors.SourceError`.
"""

from hermetic.data.sources.files import find_files
from hermetic.data.sources.fingerprint import sha256_of_file
from hermetic.data.sources.parts import MAX_RECORD_BYTES, BadRecord, Part, SourceFile, SourceRecord, location
from hermetic.data.sources.reading import PART_BYTES, read_part, read_records, split_into_parts
from hermetic.data.sources.spec import SourceSpec, parse_source

__all__ = [
    "MAX_RECORD_BYTES",
    "PART_BYTES",
    "BadRecord",
    "Part",
    "SourceFile",
    "SourceRecord",
    "SourceSpec",
    "find_files",
    "location",
    "parse_source",
    "read_part",
    "read_records",
    "sha256_of_file",
    "split_into_parts",
]
