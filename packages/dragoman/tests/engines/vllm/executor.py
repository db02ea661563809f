"""An executor for vLLM that computes the embedded model in numpy.

vLLM gets its name as `distributed_executor_backend`. All other parts are real and run
in vLLM's own process: the scheduler, blocks and their hashes, chunked prefill,
grammars, and the communication with the front end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from shutil import copyfile
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dragoman.core.request import Sampling
from dragoman.core.token_engine import ReasoningBudget, TokenLogprob, TokenRequest
from dragoman.engines.batching import BLOCK_SIZE, Chunk, build_rng
from dragoman.engines.batching.sampler import build_logprob, log_softmax, sample
from dragoman.engines.batching.sequence import ReasoningBudgetState, Sequence
from dragoman.engines.tiny.llama import read_model
from dragoman.engines.tiny.paged_llama import LlamaRunner, PagedLlama

from .serving import DIES_OF

# Untyped, as in the engine's own backend.
torch: Any = import_module("torch")
executor: Any = import_module("vllm.v1.executor.abstract")
interface: Any = import_module("vllm.v1.kv_cache_interface")
outputs: Any = import_module("vllm.v1.outputs")

Spec: TypeAlias = Any
Adapter: TypeAlias = Any
SchedulerOutput: TypeAlias = Any
GrammarOutput: TypeAlias = Any
New: TypeAlias = Any
Params: TypeAlias = Any
ModelOutput: TypeAlias = Any
Scored: TypeAlias = Any
Floats = NDArray[np.float32]

_KV_BYTES = 64 << 20


class NumpyExecutor(executor.Executor):  # pyright: ignore[reportUntypedBaseClass]
    """Runs the network, paged KV cache and sampler of `tiny` under vLLM's continuous
    batching.
    """

    def _init_executor(self) -> None:
        self._model = PagedLlama(read_model(Path(self.model_config.model)))
        self._runner: LlamaRunner | None = None
        self._num_blocks = 0
        self._rows: dict[str, Sequence] = {}
        self._due: tuple[SchedulerOutput, list[Chunk], Floats] | None = None
        self._adapters: set[int] = set()
        self._answers: dict[str, Callable[..., Any]] = {
            "get_supported_tasks": lambda: ("generate",),
            "get_supported_kv_cache_layouts": lambda: ["LBNHC"],
            "get_kv_cache_spec": self._kv_cache_spec,
            "determine_available_memory": lambda: _KV_BYTES,
            "initialize_from_config": self._allocate,
            "add_lora": self._add_lora,
            "remove_lora": self._remove_lora,
            "list_loras": lambda: set(self._adapters),
            "supports_draft_weight_updates": lambda: False,
            "reload_weights": self._reload,
        }

    def check_health(self) -> None:
        pass

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> list[Any]:
        answer = self._answers.get(method, lambda *_, **__: None)
        return [answer(*args, **(kwargs or {}))]

    def compile_or_warm_up_model(self) -> None:
        pass

    def _kv_cache_spec(self) -> dict[str, Spec]:
        config = self.model_config.hf_config
        one = interface.FullAttentionSpec(
            block_size=BLOCK_SIZE,
            num_kv_heads=config.num_key_value_heads,
            head_size=config.head_dim,
            dtype=torch.float32,
        )
        return {
            f"model.layers.{index}.self_attn.attn": one for index in range(config.num_hidden_layers)
        }

    def _allocate(self, configs: list[Spec]) -> None:
        self._num_blocks = configs[0].num_blocks + 1
        self._runner = self._model.build_runner(self._num_blocks)

    def _reload(self, weights_path: str) -> None:
        if not Path(weights_path, "config.json").exists():
            copyfile(
                Path(self.model_config.model, "config.json"), Path(weights_path, "config.json")
            )
        self._model = PagedLlama(read_model(Path(weights_path)))
        assert self._num_blocks
        self._runner = self._model.build_runner(self._num_blocks)

    def _add_lora(self, adapter: Adapter) -> bool:
        if not Path(adapter.lora_path).is_dir():
            raise ValueError(
                f"Loading lora {adapter.lora_name} failed: no such directory {adapter.lora_path}"
            )
        self._adapters.add(adapter.lora_int_id)
        return True

    def _remove_lora(self, number: int) -> bool:
        self._adapters.discard(number)
        return True

    def execute_model(
        self, scheduler_output: SchedulerOutput, non_block: bool = False
    ) -> Future[None]:
        assert self._runner is not None
        for id in scheduler_output.finished_req_ids:
            self._rows.pop(id, None)
        for new in scheduler_output.scheduled_new_reqs:
            row = _sequence(new, self._model.vocab, self.model_config.max_model_len)
            row.reasoning_budget = self._build_reasoning_budget(new)
            self._rows[new.req_id] = row
        self._follow(scheduler_output)
        chunks = [
            self._chunk(id, count) for id, count in scheduler_output.num_scheduled_tokens.items()
        ]
        states = self._runner.forward(chunks) if chunks else None
        logits = np.zeros((0, self._model.vocab), np.float32)
        if states is not None:
            logits = states.compute_last_logits(range(len(chunks)))
            for place, chunk in enumerate(chunks):
                _score_prompt(chunk, states.compute_span_logits(place, 0, chunk.num_tokens))
        self._due = (scheduler_output, chunks, logits)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _build_reasoning_budget(self, new: New) -> ReasoningBudgetState | None:
        """Build the state of the reasoning budget, as vLLM's sampler does; None without
        a budget.
        """
        budget: int | None = new.sampling_params.thinking_token_budget
        if budget is None:
            return None
        reasoning = self.vllm_config.reasoning_config
        begin = tuple(reasoning.reasoning_start_token_ids)
        end = tuple(reasoning.reasoning_end_token_ids)
        is_open = tuple(new.prompt_token_ids[-len(begin) :]) == begin
        return ReasoningBudgetState(ReasoningBudget(budget, begin, end, end, is_open))

    def _follow(self, output: SchedulerOutput) -> None:
        """Apply the scheduler's data of requests that were scheduled before."""
        cached = output.scheduled_cached_reqs
        for id, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            row = self._rows[id]
            row.num_computed_tokens = computed
            if id in cached.resumed_req_ids:
                row.blocks = []
            if blocks is not None:
                row.blocks = [*row.blocks, *blocks[0]]

    def _chunk(self, id: str, count: int) -> Chunk:
        row = self._rows[id]
        return Chunk(row, row.num_computed_tokens, row.num_computed_tokens + count)

    def sample_tokens(self, grammar_output: GrammarOutput, non_block: bool = False) -> ModelOutput:
        assert self._due is not None
        (output, chunks, logits) = self._due
        self._due = None
        ids = list(output.num_scheduled_tokens)
        masks = _masks(grammar_output)
        due = [
            place for place, chunk in enumerate(chunks) if chunk.end == chunk.sequence.num_tokens
        ]
        rows = [chunks[place].sequence for place in due]
        tokens = sample(
            logits[due], [row.sampling for row in rows], [masks.get(ids[place]) for place in due]
        )
        tokens = [_apply_budget(row, token) for row, token in zip(rows, tokens, strict=True)]
        scores = [
            build_logprob(row, token, _MOST)
            for row, token in zip(log_softmax(logits[due]), tokens, strict=True)
        ]
        sampled: list[list[int]] = [[] for _ in ids]
        for place, row, token in zip(due, rows, tokens, strict=True):
            if (
                DIES_OF in row.request.stop_token_ids
                and row.num_tokens - row.num_prompt_tokens == 3
            ):
                os._exit(1)
            sampled[place] = [token]
            row.tokens.append(token)
            row.sampling.observe(token)
            if row.reasoning_budget is not None:
                row.reasoning_budget.observe(token)
        return outputs.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id: place for place, id in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=_lists(len(ids), due, tokens, scores),
            prompt_logprobs_dict={
                id: scored
                for id, chunk in zip(ids, chunks, strict=True)
                if (scored := _whole(chunk.sequence))
            },
        )


_MOST = 20
"""Alternatives that are computed for every token; vLLM returns as many as a request
asks for.
"""


def _sequence(new: New, vocab: int, max_model_len: int) -> Sequence:
    params = new.sampling_params
    assert params is not None
    assert new.prompt_token_ids is not None
    row = Sequence(
        0,
        _request(new.req_id, new.prompt_token_ids, params),
        vocab=vocab,
        max_model_len=max_model_len,
        rng_factory=build_rng,
    )
    row.blocks = list(new.block_ids[0])
    row.num_computed_tokens = new.num_computed_tokens
    return row


def _request(id: str, prompt: list[int], params: Params) -> TokenRequest:
    return TokenRequest(
        id=id,
        prompt=tuple(prompt),
        max_tokens=params.max_tokens or 1,
        min_tokens=params.min_tokens,
        stop_token_ids=frozenset(params.all_stop_token_ids),
        prompt_logprobs=params.prompt_logprobs,
        sampling=Sampling(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            seed=params.seed,
            logit_bias=tuple(dict[int, float](params.logit_bias or {}).items()),
            allowed_token_ids=None
            if params.allowed_token_ids is None
            else tuple(params.allowed_token_ids),
            bad_words=tuple(tuple(word) for word in params.bad_words_token_ids or ()),
        ),
    )


def _apply_budget(row: Sequence, token: int) -> int:
    forced = None if row.reasoning_budget is None else row.reasoning_budget.forced_token
    return token if forced is None else forced


def _masks(grammar: GrammarOutput) -> dict[str, bytes]:
    if grammar is None:
        return {}
    rows = grammar.grammar_bitmask
    return {
        id: rows[place].tobytes() for place, id in enumerate(grammar.structured_output_request_ids)
    }


def _score_prompt(chunk: Chunk, logits: Floats) -> None:
    sequence = chunk.sequence
    scores = chunk.sequence.prompt_logprobs
    if scores is None:
        return
    stop = min(chunk.end, sequence.num_prompt_tokens - 1)
    count = sequence.request.prompt_logprobs or 0
    for row, at in zip(log_softmax(logits), range(chunk.begin, stop), strict=False):
        scores.append(build_logprob(row, sequence.tokens[at + 1], count))


def _whole(sequence: Sequence) -> Scored:
    """Return the logprobs of a prompt once, when the last one is known."""
    scores = sequence.prompt_logprobs
    if scores is None or len(scores) < sequence.num_prompt_tokens:
        return None
    sequence.prompt_logprobs = None
    known = [one for one in scores if one is not None]
    ids, values = _table(
        list(sequence.request.prompt[1:]), known, sequence.request.prompt_logprobs or 0
    )
    ranks = torch.tensor([one.rank or 0 for one in known], dtype=torch.int64)
    return outputs.LogprobsTensors(torch.from_numpy(ids), torch.from_numpy(values), ranks)


def _lists(count: int, due: list[int], tokens: list[int], scores: list[TokenLogprob]) -> Scored:
    ids = np.zeros((count, _MOST + 1), np.int32)
    values = np.zeros((count, _MOST + 1), np.float32)
    ranks = np.ones(count, np.int64)
    if due:
        ids[due], values[due] = _table(tokens, scores, _MOST)
        ranks[due] = [one.rank or 0 for one in scores]
    return outputs.LogprobsLists(ids, values, ranks)


def _table(
    tokens: list[int], scores: list[TokenLogprob], count: int
) -> tuple[NDArray[np.int32], Floats]:
    """Return [n, count + 1]: the token itself, then the best ones, as in vLLM's layout."""
    rows = [
        ((token, one.logprob), *one.top[:count]) for token, one in zip(tokens, scores, strict=True)
    ]
    ids = np.array([[id for id, _ in row] for row in rows], np.int32).reshape(len(rows), count + 1)
    values = np.array([[value for _, value in row] for row in rows], np.float32).reshape(
        len(rows), count + 1
    )
    return ids, values
