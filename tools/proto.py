"""Regenerates what is made from the protos: python/labeler/v1 and the committed descriptor image.

Refuses a change that breaks the contract, unless ALLOW_BREAKING=1: the image is what the next
change is compared with, so a break that slips into it is never seen again. Run by `make proto`.
"""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGE = ROOT / "tests" / "contract" / "descriptors.binpb"
BUF = Path(sys.executable).with_name("buf")


def generate(out: Path) -> None:
    """Writes the Python modules of protos/labeler/v1, with their stubs, under `out`/labeler/v1."""
    from grpc_tools import protoc

    protos = ROOT / "protos"
    names = sorted(str(p.relative_to(protos)) for p in (protos / "labeler" / "v1").glob("*.proto"))
    outs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    includes = [f"-I{protos}", f"-I{files('grpc_tools') / '_proto'}"]
    if code := protoc.main(["protoc", *includes, *outs, *names]):
        raise SystemExit(f"protoc failed with {code}")


def build_image(out: Path) -> None:
    """Writes the protos' descriptors, without comments, as `buf breaking` reads them."""
    flags = ["--exclude-source-info", "--as-file-descriptor-set"]
    subprocess.run([BUF, "build", *flags, "-o", out], cwd=ROOT, check=True)


def breaking() -> str:
    """What in the protos breaks a client of the committed image; empty where nothing does."""
    command = [BUF, "breaking", "--against", IMAGE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> None:
    """Checks, then regenerates."""
    if IMAGE.exists() and os.environ.get("ALLOW_BREAKING") != "1" and (problems := breaking()):
        raise SystemExit(
            f"{problems}the contract would break; ALLOW_BREAKING=1 does it all the same"
        )
    generate(ROOT / "python")
    build_image(IMAGE)


if __name__ == "__main__":
    main()
