"""The writer: records ▸ window ▸ store ▸ confirmations. `window`, `gate` and `backoff` are pure."""

from labeler.plan import WriterLimits
from labeler.writer.stats import WriterStats
from labeler.writer.writer import Graveyard, Records, Writer

__all__ = ["Graveyard", "Records", "Writer", "WriterLimits", "WriterStats"]
