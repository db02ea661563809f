"""Tables, warnings and progress."""

from __future__ import annotations

import pytest

from dragoman_cli import print_warning, render_table, show_progress


def test_table_columns_are_aligned():
    rows = [("name", "size"), ("a", "10"), ("long name", "7")]
    assert render_table(rows) == "name       size\na          10\nlong name  7\n"
    assert render_table(rows, right=True) == "name       size\na            10\nlong name     7\n"


def test_warning_has_no_color_without_terminal(capsys: pytest.CaptureFixture[str]):
    print_warning("low memory")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Warning: low memory\n")


def test_progress_without_terminal_prints_nothing(capsys: pytest.CaptureFixture[str]):
    with show_progress("files", 2) as on_progress:
        on_progress(1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_progress_on_terminal_shows_position(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with show_progress("files", 2, lambda count: f"{count} B") as on_progress:
        on_progress(1)
    assert "1 B/2 B" in capsys.readouterr().err
