"""Thread counts follow the cgroup's quota and the affinity, never the host's cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from labeler.cpus import available

V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
V1_MOUNT = (
    "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n"
    "34 25 0:30 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory"
)


def machine(root: Path, mounts: str, groups: str, files: dict[str, str]) -> Path:
    """A file system as a process of that group sees it."""
    contents = {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups, **files}
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("quota", "count"),
    [("100000 100000", 1), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", 16)],
)
def test_a_v2_quota_bounds_the_threads(tmp_path: Path, quota: str, count: int) -> None:
    files = {"sys/fs/cgroup/pod/app/cpu.max": quota}
    root = machine(tmp_path, V2_MOUNT, "0::/pod/app", files)
    found = available(root, affinity=16)
    assert found.count == count
    if count < 16:
        assert "/sys/fs/cgroup/pod/app/cpu.max" in found.origin
    assert "affinity 16" in found.origin


def test_a_quota_of_a_group_above_counts_too(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/pod/app/cpu.max": "800000 100000",
        "sys/fs/cgroup/pod/cpu.max": "300000 100000",
    }
    found = available(machine(tmp_path, V2_MOUNT, "0::/pod/app", files), affinity=16)
    assert found.count == 3
    assert "/sys/fs/cgroup/pod/cpu.max" in found.origin


def test_a_v1_quota_bounds_the_threads(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    files = {f"{folder}/cpu.cfs_quota_us": "200000", f"{folder}/cpu.cfs_period_us": "100000"}
    groups = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc"
    assert available(machine(tmp_path, V1_MOUNT, groups, files), affinity=16).count == 2


def test_a_v1_quota_of_minus_one_is_none(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct"
    files = {f"{folder}/cpu.cfs_quota_us": "-1", f"{folder}/cpu.cfs_period_us": "100000"}
    found = available(machine(tmp_path, V1_MOUNT, "4:cpu,cpuacct:/", files), affinity=4)
    assert found.count == 4
    assert "no cgroup quota" in found.origin


def test_a_container_that_sees_only_its_own_group_reads_the_mount_point(tmp_path: Path) -> None:
    mount = "33 25 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu"
    folder = "sys/fs/cgroup/cpu"
    files = {f"{folder}/cpu.cfs_quota_us": "150000", f"{folder}/cpu.cfs_period_us": "100000"}
    for group in ("4:cpu:/docker/abc", "4:cpu:/elsewhere"):
        assert available(machine(tmp_path, mount, group, files), affinity=8).count == 1


def test_an_affinity_below_the_quota_wins(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu.max": "800000 100000"}
    found = available(machine(tmp_path, V2_MOUNT, "0::/", files), affinity=2)
    assert found.count == 2
    assert found.origin.startswith("affinity 2")


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert available(tmp_path, affinity=6).count == 6


def test_this_machine_has_at_least_one_thread() -> None:
    assert available().count >= 1
