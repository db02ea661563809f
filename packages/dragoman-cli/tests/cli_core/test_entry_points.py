"""The entry points of installed packages."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import zipfile
from pathlib import Path

import pytest

from dragoman_cli.entry_points import EntryPoint, find_entry_points, load_entry_point

GROUP = "test.group"


def install(folder: Path, name: str, entries: str | None) -> None:
    info = folder / name
    info.mkdir(parents=True)
    if entries is not None:
        (info / "entry_points.txt").write_text(entries, encoding="utf-8")


def test_entry_points_equal_those_of_importlib():
    points = importlib.metadata.entry_points()
    assert "dragoman.commands" in points.groups
    for group in points.groups:
        expected = sorted((point.name, point.value) for point in points.select(group=group))
        assert sorted(find_entry_points(group)) == expected


def test_file_with_comments_and_groups_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    entries = f"# a = b:c\n[other]\nx=y:z\n\n[{GROUP}]\n two = p.q:R.s [extra]\none=p\n"
    install(tmp_path, "some_package-1.0.dist-info", entries)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert find_entry_points(GROUP) == (
        EntryPoint("one", "p"),
        EntryPoint("two", "p.q:R.s [extra]"),
    )
    assert find_entry_points("other") == (EntryPoint("x", "y:z"),)


@pytest.mark.parametrize("entries", [None, f"[{GROUP}]\nnew = a:b\n"])
def test_first_package_of_a_name_hides_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: str | None
):
    install(tmp_path / "first", "A.package-2.0.dist-info", entries)
    install(tmp_path / "second", "a_package-1.0.egg-info", f"[{GROUP}]\nold = a:b\n")
    folders = [str(tmp_path / "absent"), str(tmp_path / "first"), str(tmp_path / "second")]
    monkeypatch.setattr(sys, "path", [*folders, *sys.path])
    names = [point.name for point in find_entry_points(GROUP)]
    assert names == ([] if entries is None else ["new"])


def test_package_in_archive_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped-1.0.dist-info/METADATA", "Name: zipped\nVersion: 1.0\n")
        file.writestr("zipped-1.0.dist-info/entry_points.txt", f"[{GROUP}]\none = a:b\n")
    monkeypatch.setattr(sys, "path", [str(archive), *sys.path])
    assert find_entry_points(GROUP) == (EntryPoint("one", "a:b"),)


def test_package_of_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, "local-1.0.dist-info", f"[{GROUP}]\nworkdir = os.path:join\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert load_entry_point(GROUP, "workdir") is os.path.join


@pytest.mark.parametrize(
    ("value", "expected"),
    [("os", os), ("os.path : join", os.path.join), ("os:path.join [extra]", os.path.join)],
)
def test_entry_point_loads_module_or_attribute(value: str, expected: object):
    assert EntryPoint("name", value).load() is expected
