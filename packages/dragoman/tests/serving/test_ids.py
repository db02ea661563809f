"""Ids are drawn in blocks, and no two are equal."""

from __future__ import annotations

import os
import re

import pytest

from dragoman.serving.clock import RandomIdGenerator


def test_ids_of_several_blocks_are_unique_and_plain():
    ids = RandomIdGenerator()
    drawn = [ids.new("req_") for _ in range(1000)]
    assert len(set(drawn)) == len(drawn)
    assert all(re.fullmatch("req_[0-9a-f]{32}", id) for id in drawn)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_ids_of_forked_process_differ_from_parents():
    ids = RandomIdGenerator()
    ids.new("")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, ids.new("").encode())
        os._exit(0)
    os.close(write_end)
    _, status = os.waitpid(child, 0)
    assert status == 0
    with os.fdopen(read_end) as reader:
        assert reader.read() not in {ids.new("") for _ in range(256)}
