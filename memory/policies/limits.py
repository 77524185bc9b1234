"""Every size limit of the memory layer, in one place. Exceeding one is an error that names it."""

from __future__ import annotations

import sys
from typing import Final

MAX_CONTENT_BYTES: Final = 4 * 1024 * 1024
"""UTF-8. Longer texts are documents: split them, one memory each."""
MAX_QUERY_BYTES: Final = 1024 * 1024
MAX_ID_BYTES: Final = 512
"""Of a user id, memory id or session id: all lead or live in index keys."""
MAX_TAGS: Final = 256
MAX_TAG_LENGTH: Final = 128
MAX_METADATA_BYTES: Final = 64 * 1024
"""Of the JSON text of one memory's metadata."""
MERGED: Final = 16
"""A record may exceed the limits of tags and metadata by this factor: merging what two sides may write each must
never make a memory that cannot travel."""
MAX_METADATA_DEPTH: Final = 32
MAX_NUMBER: Final = int(sys.float_info.max)
"""Of metadata: what every JSON reader can hold."""
MAX_TOP_K: Final = 1_000
MAX_PAGE: Final = 1_000
MAX_FILTER_VALUES: Final = 1_000
"""Of one list in a filter, and of metadata conditions."""
MAX_BATCH: Final = 100_000
"""Items of one ``add_many`` call."""
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Of one line of an export file."""
EARLIEST_MS: Final = 0
LATEST_MS: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z."""
SECONDS_BELOW: Final = 1e11
"""A caller's number below this is in seconds: as milliseconds it would lie before March 1973."""
