"""The weights of a model of mlx-lm are replaced while it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mlx.core", reason="needs mlx")
pytest.importorskip("mlx_lm", reason="needs mlx-lm")

from dragoman.core.errors import RequestError, Unsupported
from dragoman.core.token_engine import TokenRequest
from dragoman.core.weight_updates import WeightsInMemory, WeightsOnDisk
from dragoman.engines import mlx
from dragoman.engines.batching import EngineLimits

from ..harness import GREEDY, run_alone, run_client
from ..tiny.models import make_model, write_model

pytestmark = pytest.mark.mlx

ASK = TokenRequest(id="a", prompt=tuple(range(3, 40)), max_tokens=8, sampling=GREEDY)


async def test_update_weights_matches_numpy(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    write_model(tmp_path / "old")
    expected = run_alone(make_model(tmp_path / "new", seed=1), ASK).tokens
    engine = mlx.load(tmp_path / "old", EngineLimits(), dtype="float32")
    async with run_client(engine) as client:
        assert (await client.ask(ASK)).tokens != expected
        with pytest.raises(RequestError, match="not a safetensors file"):
            await engine.control.update_weights(WeightsInMemory((b"\x80\x04.",)))
        await engine.control.update_weights(WeightsOnDisk(str(tmp_path / "new")))
        assert (await client.ask(ASK)).tokens == expected
        await engine.control.sleep(1)
        await engine.control.wake_up()
        assert (await client.ask(ASK)).tokens == expected
        with pytest.raises(Unsupported):
            await engine.control.sleep(2)
