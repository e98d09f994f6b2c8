"""The gate: exact figures are compared by stated allowances, and planted regressions are caught.

The rules are tested with figures that were taken once; slow tests build trees with a regression
planted in them, and an unchanged one.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.gate import figures, run, trees
from bench.gate.judge import Figures, compare, lines, rule_of
from tests.support.repo import ROOT

SAMPLE = ROOT / "tests" / "fixtures" / "gate" / "figures.json"


@pytest.fixture
def sample() -> dict[str, float]:
    """Figures of a real tree."""
    taken: dict[str, float] = json.loads(SAMPLE.read_text())
    return taken


def regressions(
    base: Figures, head: Figures, accepted: Mapping[str, str] | None = None
) -> list[str]:
    return [c.name for c in compare(base, head, accepted or {}) if c.verdict == "regression"]


# --- the rules


def test_an_unchanged_tree_has_no_regression_and_says_how_much_was_compared(
    sample: dict[str, float],
) -> None:
    compared = compare(sample, sample, {})
    assert len(compared) > 100
    assert lines(compared, {}) == [f"{len(compared)} exact figures: {len(compared)} same"]


@pytest.mark.parametrize(
    ("name", "growth", "caught"),
    [
        ("instructions/decode/floats", 1.10, True),
        ("instructions/decode/floats", 1.02, False),
        ("unary-buffered/transport/allocations", 31 / 30, True),
        ("stream-journaled/infer/allocations", 13 / 12, True),
        ("unary-journaled/committer/file_syncs", 2.0, True),
        ("unary-buffered/stage/encode/per_label", 0.5, True),
        ("unary-buffered/stage/journal/us_p50", 3.0, False),
    ],
)
def test_a_figure_may_grow_by_its_allowance_and_no_further(
    sample: dict[str, float], name: str, growth: float, caught: bool
) -> None:
    head = sample | {name: sample[name] * growth}
    assert regressions(sample, head) == ([name] if caught else [])


@pytest.mark.parametrize("call", ["file_syncs", "file_opens", "file_writes", "connects", "sleeps"])
@pytest.mark.parametrize("thread", ["transport", "infer"])
def test_one_wait_a_label_on_a_thread_of_the_path_is_a_regression(
    sample: dict[str, float], thread: str, call: str
) -> None:
    name = f"unary-buffered/{thread}/{call}"
    assert sample[name] == 0
    assert regressions(sample, sample | {name: 1.0}) == [name]


def test_a_stage_that_waits_for_a_store_is_a_regression(sample: dict[str, float]) -> None:
    name = "unary-buffered/stage/journal/us_p50"
    assert regressions(sample, sample | {name: 10_000.0}) == [name]


def test_what_hangs_on_time_is_not_judged(sample: dict[str, float]) -> None:
    names = ("unary-buffered/committer/file_syncs", "unary-journaled/other/allocations")
    assert [rule_of(name) for name in names] == [None, None]
    assert not regressions(sample, sample | dict.fromkeys(names, 1e6))


def test_a_regression_is_named_with_both_figures_and_what_was_allowed(
    sample: dict[str, float],
) -> None:
    base, head = {"instructions/decode/floats": 5000.0}, {"instructions/decode/floats": 5500.0}
    said = lines(compare(base, head, {}), {})
    figure = "instructions/decode/floats: base 5,000, head 5,500"
    assert said[0] == f"REGRESSION {figure} (+10.0%, allowed +3% and +20)"


def test_a_growth_that_its_commit_wants_is_shown_with_the_reason_and_passes(
    sample: dict[str, float],
) -> None:
    name = "unary-buffered/transport/allocations"
    head, accepted = sample | {name: 40.0}, {name: "a reply names its shard"}
    assert not regressions(sample, head, accepted)
    said = lines(compare(sample, head, accepted), accepted)
    assert said[0].startswith(f"accepted {name}")
    assert said[0].endswith("a reply names its shard")


def without(figures: Figures, name: str) -> Figures:
    return {n: value for n, value in figures.items() if n != name}


def test_a_new_figure_is_shown_and_fails_nothing(sample: dict[str, float]) -> None:
    base = without(sample, "instructions/decode/floats")
    verdicts = {c.name: c.verdict for c in compare(base, sample, {})}
    assert verdicts["instructions/decode/floats"] == "new"
    assert not regressions(base, sample)


def test_a_figure_that_is_gone_is_a_regression_unless_its_commit_wants_it(
    sample: dict[str, float],
) -> None:
    name = "instructions/encode/unary"
    head, accepted = without(sample, name), {name: "replies are encoded by their streams"}
    assert regressions(sample, head) == [name]
    said = lines(compare(sample, head, {}), {})
    assert said[0].startswith(f"REGRESSION {name}: base ")
    assert said[0].endswith("head - (no longer counted)")
    assert not regressions(sample, head, accepted)
    said = lines(compare(sample, head, accepted), accepted)
    assert said[0].endswith(f"(no longer counted): {accepted[name]}")


def test_the_table_shows_each_load_and_thread(sample: dict[str, float]) -> None:
    text = "\n".join(figures.table(sample))
    assert "decode/floats" in text
    assert "unary-journaled, of a label" in text
    assert "transport    30.00 allocations" in text


def test_figures_of_a_debug_build_are_refused() -> None:
    with pytest.raises(figures.FiguresError, match="debug build"):
        figures.figures_of({}, {"profile": "debug", "loads": {}})


# --- what a tree is compared with


@dataclass
class Repository:
    """A repository of its own."""

    root: Path

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false"]
        command = ["git", *who, *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """With a first commit on `main`."""
    made = Repository(tmp_path)
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit("first")
    return made


def base(repository: Repository, **environment: str) -> str | None:
    found = trees.base_of(environment, repository.root)
    return found[0] if found else None


def test_the_only_commit_has_nothing_to_be_compared_with(repository: Repository) -> None:
    assert base(repository) is None


def test_a_folder_without_a_repository_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    # Its own parent is no repository either.
    assert trees.base_of({}, tmp_path / "plain") is None


def test_the_default_branch_is_compared_with_the_commit_before(repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.commit("second")
    assert base(repository) == first


def test_a_branch_is_compared_with_where_it_left_the_default_branch(repository: Repository) -> None:
    left = repository.commit("second")
    repository.git("checkout", "--quiet", "-b", "change")
    repository.commit("third")
    repository.commit("fourth")
    assert base(repository) == left


def test_a_named_base_goes_before_all_and_must_exist(repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.commit("second")
    repository.commit("third")
    assert base(repository, LABELER_BASE="HEAD~2") == first
    with pytest.raises(trees.TreeError, match="nowhere is no commit"):
        base(repository, LABELER_BASE="nowhere")


def test_a_commit_says_which_growth_it_wants(repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.commit("Name the shard\n\nCosts: instructions/encode/unary: a reply names its shard")
    assert trees.accepted(first, repository.root) == {
        "instructions/encode/unary": "a reply names its shard"
    }


def test_a_base_is_checked_out_for_a_while(repository: Repository, tmp_path: Path) -> None:
    folder = tmp_path / "target" / "base"
    first = repository.git("rev-parse", "HEAD")
    with trees.checked_out(first, folder, repository.root) as tree:
        assert (tree / ".git").exists()
    assert not folder.exists()
    assert len(repository.git("worktree", "list").splitlines()) == 1


def test_a_base_without_micro_benchmarks_passes_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], repository: Repository
) -> None:
    monkeypatch.setenv("CARGO_TARGET_DIR", str(repository.root / "target"))
    monkeypatch.delenv("LABELER_BASE", raising=False)
    assert run.main(repository.root) == 0
    assert "no commit to compare with" in capsys.readouterr().out
    repository.commit("second")
    assert run.main(repository.root) == 0
    assert "the base has no micro-benchmarks" in capsys.readouterr().out
    monkeypatch.setenv("LABELER_BASE", "nowhere")
    assert run.main(repository.root) == 2


# --- planted


@dataclass(frozen=True)
class Plant:
    """A regression: `new` stands before `old` in a file. `caught`: figures that must tell.

    `grows`: a figure, and from which to which ratio it grows if the plant is as large as it says.
    """

    file: str
    old: str
    new: str
    caught: tuple[str, ...]
    grows: tuple[str, float, float] | None = None

    def put(self, tree: Path) -> None:
        path = tree / "rust_core" / "src" / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.old} is not once in {self.file}"
        path.write_text(text.replace(self.old, f"{self.new}\n{self.old}"))
        # As in a tree that lay there before its base was built: cargo goes by the age of files.
        os.utime(path, (1_000_000_000, 1_000_000_000))


PLANTS = {
    "a tenth more to do in decode": Plant(
        "transport/codec.rs",
        '        faults::point("decode");',
        # Four instructions each: 268 beside the 2,700 of 24 floats.
        "(0..std::hint::black_box(67_u32)).for_each(|n| { std::hint::black_box(n); });",
        ("instructions/decode/floats", "instructions/decode/raw_float64"),
        grows=("instructions/decode/floats", 1.05, 1.15),
    ),
    "one more allocation a label": Plant(
        "path/mod.rs",
        '        faults::point("admit");',
        "std::hint::black_box(Box::new(deadline_us));",
        ("unary-buffered/transport/allocations", "stream-journaled/transport/allocations"),
    ),
    "a synchronous write to a store": Plant(
        "path/journal.rs",
        "        let labeled_at_unix_us = self.stamps.note(self.clock.unix_us());",
        """
        if let Ok(mut store) = std::fs::File::create(std::env::temp_dir().join("planted-store")) {
            let _ = std::io::Write::write_all(&mut store, &[0; 200]);
            let _ = store.sync_all();
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        """,
        (
            "unary-buffered/stage/journal/us_p50",
            "unary-buffered/infer/file_syncs",
            "unary-buffered/infer/file_writes",
            "stream-journaled/infer/sleeps",
        ),
    ),
}


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[Figures, Path]]:
    """This commit's figures, and another work tree of it."""
    if not shutil.which("valgrind"):
        pytest.skip("needs valgrind")
    head = trees.full_name("HEAD")
    folder = figures.target_folder() / "gate"
    with (
        trees.checked_out(head, folder / "base") as first,
        trees.checked_out(head, folder / "planted") as second,
    ):
        yield figures.measure(first), second


@pytest.mark.slow  # builds the micro-benchmarks of two trees, then counts ten times
@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ten_runs_of_an_unchanged_tree_stay_green(built: tuple[Figures, Path]) -> None:
    base, tree = built
    with figures.built(tree) as count:
        for _ in range(10):
            assert regressions(base, count()) == []


@pytest.mark.slow  # builds a tree with each of them, about a minute
@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_regression_is_caught_by_its_figures(
    built: tuple[Figures, Path], name: str
) -> None:
    base, tree = built
    plant = PLANTS[name]
    path = tree / "rust_core" / "src" / plant.file
    before = path.read_text()
    plant.put(tree)
    try:
        head = figures.measure(tree)
    finally:
        path.write_text(before)
    assert set(plant.caught) <= set(regressions(base, head))
    if plant.grows:
        figure, least, most = plant.grows
        assert least <= head[figure] / base[figure] <= most
