"""Where the project is and which files belong to it."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# Written by tools, so that no limit applies: `make proto`, the package managers.
GENERATED = ("python/labeler/v1/", "Cargo.lock", "uv.lock")


def project_files() -> list[str]:
    """Paths below `ROOT` of all files that are, or will be, committed; generated ones left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file())
    return [name for name in names if not name.startswith(GENERATED)]


def read(name: str) -> str:
    """The text of a project file; empty where it is not UTF-8."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
