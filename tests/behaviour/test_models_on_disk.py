"""`labeler models verify` and `compare`: what a version on disk is worth before it is served."""

import json
import shutil
from pathlib import Path

import pytest

from labeler.errors import ModelInvalidError, ModelNotFoundError
from labeler.models.folders import find_version, read_version
from labeler.models.verify import verify_version
from tests.support.made_models import sign_again
from tests.support.repo import ROOT
from tests.support.service import run_labeler
from tests.support.training import stump

PACKAGED = ROOT / "python" / "labeler" / "models" / "packaged"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the packaged `kiva-floor/1`."""
    return Path(shutil.copytree(PACKAGED / "kiva-floor" / "1", tmp_path / "kiva-floor" / "1"))


@pytest.mark.parametrize("name", ["kiva-floor", "wall-following@1"])
def test_a_packaged_model_is_fit_to_serve_in_both_precisions(name: str) -> None:
    done = run_labeler("models", "verify", name, "--json")

    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["good"]
    results = {one["precision"]: one["result"] for one in shown["files"] if one["precision"]}
    assert set(results) == {"int8", "fp32"}
    assert all("golden rows within" in result for result in results.values())


@pytest.mark.parametrize("name", ["model.onnx", "model.int8.onnx", "golden.json", "report.json"])
def test_a_flipped_byte_in_any_file_is_found_and_named(copied: Path, name: str) -> None:
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)

    done = run_labeler("models", "verify", str(copied))

    assert done.returncode == ModelInvalidError.exit_code
    assert f"{name} has SHA-256" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_truncated_and_a_missing_file_are_found(copied: Path) -> None:
    (copied / "model.onnx").write_bytes((copied / "model.onnx").read_bytes()[:-1])
    (copied / "model.int8.onnx").unlink()

    problems = [one.problem for one in verify_version(read_version(copied)) if one.problem]

    assert len(problems) == 2
    assert "No such file" in problems[0]
    assert "bytes, expected" in problems[1]


def test_a_golden_score_that_this_cpu_does_not_give_is_found_by_precision(copied: Path) -> None:
    golden = json.loads((copied / "golden.json").read_text())
    golden["scores"]["int8"][3][0] += 0.001
    (copied / "golden.json").write_text(json.dumps(golden))
    sign_again(copied, "golden.json")

    found = {one.precision: one.problem for one in verify_version(read_version(copied))}

    assert "a golden score is 0.001 off on this CPU, expected within 0.0001" in found["int8"]
    assert found["fp32"] == ""


def test_another_golden_label_is_found_by_row(copied: Path) -> None:
    golden = json.loads((copied / "golden.json").read_text())
    golden["scores"]["fp32"][7].reverse()
    (copied / "golden.json").write_text(json.dumps(golden))
    sign_again(copied, "golden.json")

    problems = [one.problem for one in verify_version(read_version(copied)) if one.problem]

    assert problems == ["model.onnx: golden row 7 gives another label on this CPU"]


def test_a_file_that_is_no_model_is_refused_also_with_a_fitting_hash(copied: Path) -> None:
    (copied / "model.onnx").write_bytes(b"not a model")
    sign_again(copied, "model.onnx")

    [problem] = [one.problem for one in verify_version(read_version(copied)) if one.problem]

    assert problem.startswith("model.onnx: ONNX Runtime refuses it")


@pytest.mark.parametrize(
    ("line", "instead", "expected"),
    [
        ("format = 1", "format = 2", "format is 2, expected 1"),
        ("width = 24", "", "width is missing"),
        ('path = "model.onnx"', 'path = "../model.onnx"', "expected a file name without folders"),
        ('precision = "int8"', 'precision = "int4"', "expected fp32, int8 or both"),
        ("width = 24", "width = ", "model.toml"),
    ],
)
def test_a_manifest_that_can_not_be_used_is_refused_by_field(
    copied: Path, line: str, instead: str, expected: str
) -> None:
    manifest = copied / "model.toml"
    assert line in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(line, instead, 1))

    with pytest.raises(ModelInvalidError, match=expected.replace(".", r"\.")):
        read_version(copied)


def test_without_a_version_the_newest_of_the_repositories_is_meant(tmp_path: Path) -> None:
    for version in ("9", "10", "10-rc1"):
        folder = shutil.copytree(PACKAGED / "kiva-floor" / "1", tmp_path / "kiva-floor" / version)
        manifest = Path(folder) / "model.toml"
        text = manifest.read_text().replace('version = "1"', f'version = "{version}"')
        manifest.write_text(text)

    assert find_version("kiva-floor", [tmp_path, PACKAGED]).version == "10"
    assert find_version("kiva-floor@9", [tmp_path, PACKAGED]).version == "9"
    assert find_version("kiva-floor@1", [tmp_path, PACKAGED]).folder == PACKAGED / "kiva-floor/1"


@pytest.mark.parametrize("reference", ["no-such", "kiva-floor@7", "./no/such/folder", ""])
def test_a_version_that_is_not_there_is_named(reference: str) -> None:
    with pytest.raises(ModelNotFoundError) as missing:
        find_version(reference, [PACKAGED])

    assert reference in missing.value.message


def test_two_known_models_are_compared_as_they_differ(tmp_path: Path) -> None:
    low, high = stump(0.3, tmp_path, "low-stump"), stump(0.5, tmp_path, "high-stump")
    rows = tmp_path / "rows.csv"
    values = [place / 1000 for place in range(1, 1001)]
    lines = [f"7,{value},{'low' if value <= 0.4 else 'high'}" for value in values]
    rows.write_text("\n".join(["id,v,truth", *lines]) + "\n")
    options = ["--rows", str(rows), "--label", "truth", "--drop", "id", "--json"]

    done = run_labeler("models", "compare", str(low), str(high), *options)

    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["rows"], shown["agreement"]) == (1000, 0.8)
    assert shown["disagreements"] == [["high", "low", 200]]
    assert [side["accuracy"] for side in shown["sides"]] == [0.9, 0.9]
    sizes = [(folder / "model.onnx").stat().st_size for folder in (low, high)]
    assert [side["bytes"] for side in shown["sides"]] == sizes
    assert all(side["run_cpu_us"] > side["row_cpu_us_in_256"] > 0 for side in shown["sides"])


def test_labels_are_compared_by_name_and_not_by_place(tmp_path: Path) -> None:
    one = stump(0.5, tmp_path, "one")
    other = stump(0.5, tmp_path, "other", labels=("high", "low"))

    shown = json.loads(run_labeler("models", "compare", str(one), str(other), "--json").stdout)

    assert (shown["rows"], shown["agreement"]) == (2, 0.0)


def test_both_files_of_a_version_can_be_compared() -> None:
    done = run_labeler("models", "compare", "kiva-floor:int8", "kiva-floor@1:fp32", "--json")

    shown = json.loads(done.stdout)
    assert [side["precision"] for side in shown["sides"]] == ["int8", "fp32"]
    assert shown["agreement"] > 0.9
    assert shown["sides"][0]["accuracy"] is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["kiva-floor", "kiva-floor:int4"], "kiva-floor@1 has no int4 file, only int8 and fp32"),
        (["kiva-floor", "wall-following", "--label", "x"], "columns of --rows FILE"),
        (["kiva-floor", "no-such"], "no model 'no-such'"),
    ],
)
def test_what_can_not_be_compared_is_said_in_one_line(arguments: list[str], expected: str) -> None:
    done = run_labeler("models", "compare", *arguments)

    assert done.returncode == 1
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_models_of_other_widths_are_not_compared(tmp_path: Path) -> None:
    done = run_labeler("models", "compare", "kiva-floor", str(stump(0.5, tmp_path, "one")))

    assert done.returncode == 1
    assert "kiva-floor@1 takes 24 values a payload, the rows have 1" in done.stderr
