"""How much memory a process has in RAM, and what it holds open, as the system tells it (Linux)."""

import os
from pathlib import Path

from tests.support.service import Service


def resident_bytes(service: Service) -> int:
    """The service's memory in RAM now. Errors: `AssertionError` where `/status` says otherwise."""
    status = Path(f"/proc/{service.pid}/status").read_text(encoding="ascii")
    resident = 1024 * int(status.split("VmRSS:")[1].split()[0])
    told = int(service.status()["process"]["resident_bytes"])
    assert abs(told - resident) < 8 << 20, (told, resident)  # read one after the other
    return resident


def open_files(service: Service) -> int:
    """Its file descriptors."""
    return len(os.listdir(f"/proc/{service.pid}/fd"))


def threads(service: Service) -> int:
    """Its threads."""
    return len(os.listdir(f"/proc/{service.pid}/task"))
