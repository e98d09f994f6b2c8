"""The writer: groups ▸ plan ▸ store ▸ confirmations. `plan`, `backoff` and `aside` are pure."""

from labeler.writer.writer import Records, Writer, WriterLimits, WriterStats

__all__ = ["Records", "Writer", "WriterLimits", "WriterStats"]
