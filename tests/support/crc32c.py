"""CRC32C, as the journal's headers have it: for tests that write a header of their own."""

_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes | bytearray) -> int:
    """The Castagnoli checksum; for a few bytes, since it goes bit by bit."""
    total = 0xFFFFFFFF
    for byte in data:
        total ^= byte
        for _ in range(8):
            total = (total >> 1) ^ (_POLYNOMIAL if total & 1 else 0)
    return total ^ 0xFFFFFFFF
