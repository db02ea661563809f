"""Texts without the paths of the server."""

from __future__ import annotations

import pytest

from dragoman.serving.public_text import hide_paths


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("cannot open /srv/models/x.gguf.", "cannot open .../x.gguf."),
        ("No such file: '/srv/my models/x.gguf'", "No such file: '.../x.gguf'"),
        ("~/models/a/b failed (/opt/x/lib.so)", ".../b failed (.../lib.so)"),
        ("~alice/models/x.gguf is gone", ".../x.gguf is gone"),
        ("no '~alice/my models/x.gguf'", "no '.../x.gguf'"),
        ("file:///srv/x/y: wrong", ".../y: wrong"),
        ("unix:/run/engine.sock is gone", "unix:.../engine.sock is gone"),
        (r"C:\models\x.gguf: wrong", ".../x.gguf: wrong"),
        (r"\\server\share\x is gone", ".../x is gone"),
        ("/models/a, /models/b", ".../a, .../b"),
        ("/models/a or /models/b", ".../a or .../b"),
        ("cannot open /srv/my models/x.gguf.", "cannot open .../x.gguf."),
        ("/srv/our own big models/of 2026/my x.gguf is gone", ".../my x.gguf is gone"),
        (r"C:\Program Files\my models\x.gguf: wrong", ".../x.gguf: wrong"),
    ],
)
def test_hide_paths_keeps_last_part_of_paths(text: str, public: str) -> None:
    assert hide_paths(text) == public


@pytest.mark.parametrize(
    "text",
    [
        "http://10.0.0.1:8000/v1 refused the connection",
        "org/name needs 3/4 of it, and/or more",
        "the model is loading",
        "a / b",
        "",
    ],
)
def test_hide_paths_leaves_other_text(text: str) -> None:
    assert hide_paths(text) == text
