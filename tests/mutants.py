"""Mutation tests: plant known bugs in a copy of the source, one at a time, and check
that the tests find each.

Most of the bugs are real ones of comparable servers. Each mutant replaces one text of a
source file and runs its tests. If the file does not contain that text exactly once, the
mutant is out of date and the run fails. The exit status is 1 if a bug was not found.
pytest does not collect this file.

    python tests/mutants.py --quick     the sample that every run of CI takes
    python tests/mutants.py --all       all mutants
    python tests/mutants.py chat 17     mutants whose file or description contains
                                        "chat", and number 17
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("packages", "tests", "docs", "conftest.py", "pyproject.toml")
IGNORED = shutil.ignore_patterns(".hypothesis", ".pytest_cache", "node_modules")
"""Names that are not copied. Byte code is copied, because it stays valid for all files
but the mutated one.
"""
TIMEOUT = 120
"""Seconds for the tests of a mutant. A bug that makes them hang counts as found."""
_NO_TEST_RAN = (
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)
QUICK_TESTS = "not (long or torch or mlx or vllm or clients)"
"""A pytest marker expression: the other tests are slow and find none of these bugs."""


class Mutant(NamedTuple):
    """A bug to plant.

    bug: a description, followed by the servers that had the bug, in parentheses.
    file: a path relative to the root of the repository.
    old: the text to replace; it occurs in the file exactly once.
    new: the replacement.
    tests: files, directories or pytest node ids; at least one of the tests must fail.
    quick: whether the mutant is part of the sample of `--quick`, which covers every
        area
      of the source with tests that take a few seconds.
    needs: a package without which the tests that find the bug are skipped. The mutant is
      then skipped too.
    """

    bug: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    quick: bool = False
    needs: str = ""


CHAT = "packages/dragoman/tests/laws/test_chat.py"
COMPLETIONS = "packages/dragoman/tests/laws/test_completions.py"
GOLDEN = "packages/dragoman/tests/golden"
TRAPS = "packages/dragoman/tests/dialects/test_traps.py"
CLIENTS = "packages/dragoman/tests/dialects/test_clients.py"
BODY = "packages/dragoman/tests/dialects/test_body.py"
READER = "packages/dragoman/tests/dialects/test_chat_reader.py"
PARAMETERS = "packages/dragoman/tests/dialects/test_all_parameters.py"
RESPONSES = "packages/dragoman/tests/laws/test_responses.py"
HOSTED = "packages/dragoman/tests/serving/responses/test_hosted_results.py"
STREAMS = "packages/dragoman/tests/dialects/responses"
UPSTREAM = "packages/dragoman/tests/engines/upstream"
FUZZ = "packages/dragoman/tests/dialects/test_fuzz.py"
PARSERS = "packages/dragoman/tests/parsers"
SERVING = "packages/dragoman/tests/serving"
LLAMACPP = "packages/dragoman/tests/engines/llamacpp"
REMOTE = "packages/dragoman/tests/engines/remote"
SIMULATOR = "packages/dragoman-sim/tests/engine"
RECORDING = "packages/dragoman/tests/recording"
DIRECT = "packages/dragoman/tests/serving/test_direct_delivery.py"
SCHEMAS = "packages/dragoman/tests/pipeline/test_unenforced_schemas.py"
NESTED = "packages/dragoman/tests/dialects/test_nested_fields.py"
NAMES = "packages/dragoman/tests/serving/test_field_names.py"
WARNINGS = "packages/dragoman/tests/serving/test_warnings.py"
UNMATCHED = "packages/dragoman/tests/serving/test_unmatched_results.py"

MUTANTS = (
    Mutant(
        "sequences keep their KV blocks after their front end has died (vLLM's API servers)",
        "packages/dragoman/src/dragoman/engines/remote/server.py",
        "        for id in ids:\n            self._hosted.engine.abort(id)\n",
        "",
        (REMOTE,),
    ),
    Mutant(
        "streams hang forever after the engine process has died (vLLM's front ends)",
        "packages/dragoman/src/dragoman/engines/remote/client.py",
        "        self._client.lose_connection(self)\n",
        "",
        (REMOTE,),
    ),
    Mutant(
        "only the front end that loaded an adapter knows it (vLLM's API servers)",
        "packages/dragoman/src/dragoman/engines/remote/server.py",
        "        self._server.broadcast_state()\n        self._send(\n            CallResult(",
        "        self._send(\n            CallResult(",
        (REMOTE,),
    ),
    Mutant(
        "schema keywords that no mask enforces are silently dropped (ours, vLLM's)",
        "packages/dragoman/src/dragoman/pipeline/response_grammar.py",
        "        warnings.append(relaxation.text)",
        "        pass",
        (SCHEMAS,),
    ),
    Mutant(
        "a string's `format` is silently dropped where arguments are written one by one (ours)",
        "packages/dragoman/src/dragoman/parsers/argument_pieces.py",
        '        list_unenforced(schema, "type", "pattern", "minLength", "maxLength", '
        "*_NO_TEXT_KEYWORDS),",
        "        (),",
        (SCHEMAS,),
    ),
    Mutant(
        "unknown fields below the top level are silently ignored (all servers)",
        "packages/dragoman/src/dragoman/dialects/parameter_table.py",
        "(*unknown, *nested)[:MAX_UNKNOWN]",
        "unknown",
        (NESTED,),
        quick=True,
    ),
    Mutant(
        "a prefix that the response must continue is treated as a finished turn (ours)",
        "packages/dragoman/src/dragoman/dialects/chat/reader.py",
        "            param = param or flag",
        "            pass",
        (NESTED,),
    ),
    Mutant(
        "an error names a field that the client did not send (ours)",
        "packages/dragoman/src/dragoman/serving/call_reading.py",
        "        error.is_translated = True\n",
        "        pass\n",
        (NAMES,),
    ),
    Mutant(
        "the results of a batch lose their warnings (ours)",
        "packages/dragoman/src/dragoman/serving/internal_client.py",
        'WARNINGS_HEADER: "body"',
        'WARNINGS_HEADER: "none"',
        (WARNINGS,),
    ),
    Mutant(
        "a tool result without a matching call is accepted (ours, vLLM's)",
        "packages/dragoman/src/dragoman/pipeline/capability_checks.py",
        "part.answers_call and part.call_id not in call_ids",
        "part.answers_call and not part.call_id",
        (UNMATCHED,),
    ),
    Mutant(
        "an engine that was paused once counts as full forever (ours, for an hour)",
        "packages/dragoman/src/dragoman/pipeline/token_run.py",
        "        except QueueFull:",
        "        except DragomanError:",
        ("packages/dragoman/tests/engines/rollout/test_rollout.py",),
    ),
    # Assignment of tokens to events.
    Mutant(
        "delimiter tokens are listed as content tokens (the joined logprobs are longer than the "
        "content)",
        "packages/dragoman/src/dragoman/parsers/text_parser.py",
        "        pending = self._pending_tokens if call else map(_as_markup, "
        "self._pending_tokens)\n",
        "        pending = self._pending_tokens\n",
        ("packages/dragoman/tests/parsers/test_think.py",),
        quick=True,
    ),
    Mutant(
        "the last reasoning token counts as content (ours: reasoning_tokens is one short)",
        "packages/dragoman/src/dragoman/parsers/text_buffer.py",
        "        released = -1 if drop or not size else self.released\n",
        "        released = -1\n",
        ("packages/dragoman/tests/parsers/test_think.py",),
    ),
    Mutant(
        "a token that a stop string truncates is listed with its whole text",
        "packages/dragoman/src/dragoman/dialects/token_alignment.py",
        "        if own.startswith(text):\n",
        "        if False:\n",
        ("packages/dragoman/tests/dialects/test_content_tokens.py",),
    ),
    Mutant(
        "OpenAI's logprobs include reasoning, delimiters and the end token (as vLLM's do)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "        if self._lists_all_tokens:\n            listed = [",
        "        if True:\n            listed = [",
        ("packages/dragoman/tests/dialects/test_traps.py",),
    ),
    Mutant(
        'the content of a response with only tool calls is "" in the stream, but null in the '
        "object",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        'b\',"content":""\' if self._is_vllm or self._ends_empty else b""',
        'b\',"content":""\'',
        (CHAT,),
        quick=True,
    ),
    Mutant(
        "finished choices are counted as requests (rates above 100 %)",
        "packages/dragoman/src/dragoman/pipeline/request_metrics.py",
        "                    if not self._open_choices:\n",
        "                    if True:\n",
        ("packages/dragoman/tests/serving/test_metrics.py",),
    ),
    Mutant(
        "the simulator's reply to the same ids and seed depends on the dialect",
        "packages/dragoman-sim/src/dragoman_sim/engine/reply_generator.py",
        "            enabled = draw < self._options.reasoning\n",
        "            enabled = rng.random() < self._options.reasoning\n",
        ("packages/dragoman-sim/tests/engine/test_content.py",),
    ),
    # Malformed tool calls.
    Mutant(
        "a tool call inside unterminated reasoning is lost",
        "packages/dragoman/src/dragoman/parsers/think.py",
        "        if marker not in self._ends.calls:\n",
        "        if True:\n",
        ("packages/dragoman/tests/parsers/test_broken_calls.py",),
    ),
    Mutant(
        "malformed arguments swallow all later calls",
        "packages/dragoman/src/dragoman/parsers/delimited_calls.py",
        "        if mark_offset < 0:\n",
        "        if True:\n",
        ("packages/dragoman/tests/parsers/test_broken_calls.py",),
    ),
    Mutant(
        "a truncated function name is accepted as a call of a function with a shorter name",
        "packages/dragoman/src/dragoman/parsers/delimited_calls.py",
        "            and not self._call.has_begun\n            and reason is FinishReason.STOP\n",
        "            and not self._call.has_begun\n",
        ("packages/dragoman/tests/parsers/test_broken_calls.py",),
        quick=True,
    ),
    # Settings.
    Mutant(
        "an option that the engine does not support is silently ignored (all servers with one "
        "list of options)",
        "packages/dragoman/src/dragoman/launch/unsupported_settings.py",
        "    warn_unsupported_names(settings, find_changed_settings(settings), *kinds)\n",
        "",
        ("packages/dragoman/tests/launch/test_engine_support.py",),
    ),
    # Browsers.
    Mutant(
        "any web page can send requests to a server on its visitor's machine (CSRF)",
        "packages/dragoman/src/dragoman/serving/access_policy.py",
        "        if access is not Access.PUBLIC:\n",
        "        if access is Access.ADMIN:\n",
        ("packages/dragoman/tests/hardening/test_browsers.py",),
        quick=True,
    ),
    Mutant(
        "an error on a path that two vendors share always has one vendor's format",
        "packages/dragoman/src/dragoman/serving/http_request.py",
        "        envelope.resolve(headers) if envelope.clients else envelope,\n",
        "        envelope,\n",
        ("packages/dragoman/tests/serving/test_routes.py",),
    ),
    Mutant(
        "a 404 below a dialect's path has another dialect's format",
        "packages/dragoman/src/dragoman/serving/app.py",
        '            path = path.rpartition("/")[0]\n',
        "            return BY_CLIENT\n",
        ("packages/dragoman/tests/serving/test_routes.py",),
    ),
    Mutant(
        "a body without a content type is accepted as JSON: browsers send a Blob without a "
        "preflight",
        "packages/dragoman/src/dragoman/serving/http_request.py",
        'content_type = self.headers.get("content-type", "")\n',
        'content_type = self.headers.get("content-type", "application/json")\n',
        ("packages/dragoman/tests/hardening/test_browsers.py",),
    ),
    Mutant(
        "an image URL on another site can flush the cache: browsers send no Origin with it",
        "packages/dragoman/src/dragoman/serving/cors.py",
        "        if origins or not sites or all(site in _OWN_SITES",
        "        if True or all(site in _OWN_SITES",
        ("packages/dragoman/tests/hardening/test_browsers.py",),
    ),
    Mutant(
        "a deeply nested body of an admin route causes a 500",
        "packages/dragoman/src/dragoman/serving/routes/engine_control.py",
        "        check_text(data)\n",
        "",
        ("packages/dragoman/tests/hardening/test_admin_bodies.py",),
    ),
    Mutant(
        "any local user can connect to the socket file (uvicorn)",
        "packages/dragoman/src/dragoman/launch/listener.py",
        "    umask = os.umask(0o777 & ~mode)\n",
        "    umask = os.umask(0)\n",
        ("packages/dragoman/tests/hardening/test_socket_file.py",),
        quick=True,
    ),
    Mutant(
        "an upgrade request that is not a WebSocket handshake is never answered (uvicorn)",
        "packages/dragoman/src/dragoman/http/server_connection.py",
        "                check_websocket(head)\n",
        "                pass\n",
        ("packages/dragoman/tests/hardening/test_websockets.py",),
    ),
    Mutant(
        "incomplete WebSocket messages do not count against the memory budget (uvicorn)",
        "packages/dragoman/src/dragoman/launch/websocket.py",
        "        if self._count is not None and not self._count(pending):\n",
        "        if False:\n",
        ("packages/dragoman/tests/hardening/test_websockets.py",),
    ),
    Mutant(
        "an incomplete WebSocket message has no timeout",
        "packages/dragoman/src/dragoman/launch/websocket.py",
        "        elif self._deadline is None:\n            self._begin_deadline()\n",
        "",
        ("packages/dragoman/tests/hardening/test_websockets.py",),
    ),
    Mutant(
        "a body may arrive one byte at a time forever",
        "packages/dragoman/src/dragoman/http/server_connection.py",
        "        elif self._received_bytes >= limits.body_rate * limits.body:\n",
        "        elif self._received_bytes:\n",
        ("packages/dragoman/tests/hardening/test_connections.py",),
    ),
    Mutant(
        "the number of connections is unlimited",
        "packages/dragoman/src/dragoman/http/server_connection.py",
        "        if not self._context.admit(self, self._address):\n",
        "        if not self._context.admit(self, self._address) and not self._address:\n",
        ("packages/dragoman/tests/hardening/test_connections.py",),
    ),
    Mutant(
        "a disconnect goes unnoticed while pipelined data is unread",
        "packages/dragoman/src/dragoman/http/server_connection.py",
        "            self._set_deadline(self._timeouts.peek)\n\n    def _resume_reading",
        "\n    def _resume_reading",
        ("packages/dragoman/tests/hardening/test_connections.py",),
    ),
    Mutant(
        "a request target whose host differs from the Host header is accepted (RFC 9112, 3.2.2)",
        "packages/dragoman/src/dragoman/http/request_head.py",
        "        if any(host != authority for host in hosts):\n",
        "        if False:\n",
        ("packages/dragoman/tests/hardening/test_connections.py",),
    ),
    # HTTP.
    Mutant(
        "a client that sends its headers byte by byte holds a connection forever (uvicorn, "
        "Slowloris)",
        "packages/dragoman/src/dragoman/http/server_connection.py",
        "            if data and self._deadline is not self._timeouts.head:\n",
        "            if data:\n",
        ("packages/dragoman/tests/hardening/test_slow_clients.py",),
    ),
    Mutant(
        "data after an oversized chunk is parsed as another request (smuggling, such as "
        "CVE-2019-16786)",
        "packages/dragoman/src/dragoman/http/body_readers.py",
        '        if line != b"\\r\\n":\n            raise BadRequest(400, "One of the body',
        '        if False:\n            raise BadRequest(400, "One of the body',
        ("packages/dragoman/tests/hardening/test_smuggling.py",),
        quick=True,
    ),
    Mutant(
        "a truncated response looks complete to an HTTP/1.0 client",
        "packages/dragoman/src/dragoman/http/exchange.py",
        "connection.abort(hard=isinstance(self._framing, CloseDelimitedFraming))",
        "connection.abort(hard=False)",
        ("packages/dragoman/tests/http/test_connection.py",),
        quick=True,
    ),
    Mutant(
        "an application that continues after its response writes into the next response",
        "packages/dragoman/src/dragoman/http/exchange.py",
        "        self._is_complete = True\n"
        "        self._disconnect_callback = None\n"
        "        self._detach()\n",
        "        self._disconnect_callback = None\n",
        ("packages/dragoman/tests/http/test_connection.py",),
    ),
    Mutant(
        "an error response is lost because the connection closes while the client is still sending",
        "packages/dragoman/src/dragoman/http/server_connection.py",
        "        self.transport.write_eof()\n",
        "        self._close()\n",
        ("packages/dragoman/tests/hardening/test_smuggling.py",),
    ),
    # Grammars.
    Mutant(
        "a response that the grammar closed at the token limit looks complete",
        "packages/dragoman/src/dragoman/pipeline/token_run.py",
        "if reason is FinishReason.STOP and (choice.was_closed or ended.was_closed):",
        "if False:",
        ("packages/dragoman/tests/serving/test_closing.py",),
    ),
    Mutant(
        "a response that an engine in another process closed at the token limit looks complete",
        "packages/dragoman/src/dragoman/pipeline/token_run.py",
        "(choice.was_closed or ended.was_closed)",
        "choice.was_closed",
        (REMOTE,),
    ),
    Mutant(
        "max_tokens truncates JSON that should be closed: the previous ending is assumed to fit "
        "always",
        "packages/dragoman/src/dragoman/constraints/closing_matcher.py",
        "if candidate and len(candidate) <= left and _is_complete_after(state, candidate):",
        "if candidate:",
        ("packages/dragoman/tests/constraints/test_ending.py",),
    ),
    Mutant(
        "a tool call has undeclared arguments (llguidance and others that follow JSON Schema "
        "literally)",
        "packages/dragoman/src/dragoman/constraints/response_grammar.py",
        "closed_schema = close_schema(schema)",
        "closed_schema = schema",
        ("packages/dragoman/tests/constraints/test_strict_schema.py",),
        quick=True,
    ),
    Mutant(
        "allOf schemas reject every object because each branch is closed",
        "packages/dragoman/src/dragoman/constraints/response_grammar.py",
        '"oneOf" in part or combines_schemas(part)',
        '"oneOf" in part',
        ("packages/dragoman/tests/constraints/test_strict_schema.py",),
    ),
    Mutant(
        "a 212-byte schema exhausts memory: multipleOf compiles to that many states (llguidance)",
        "packages/dragoman/src/dragoman/constraints/json_schema.py",
        "        if max(_count_last_digit_units(multiple), _count_last_digit_units(common)) > "
        "MAX_MULTIPLE:\n",
        "        if False:\n",
        ("packages/dragoman/tests/constraints/test_bounded.py",),
    ),
    Mutant(
        "a grammar of unbounded cost is compiled in the server process (vLLM CVE-2025-48944)",
        "packages/dragoman/src/dragoman/constraints/response_grammar.py",
        "is_cheap = not self._costly and",
        "is_cheap =",
        ("packages/dragoman/tests/constraints/test_bounded.py",),
    ),
    Mutant(
        "a schema with combined subschemas counts as cheap because each keyword is cheap",
        "packages/dragoman/src/dragoman/constraints/json_schema.py",
        "        if combines_schemas(part):\n",
        "        if False:\n",
        ("packages/dragoman/tests/constraints/test_bounded.py",),
    ),
    Mutant(
        "a grammar that exceeded the compile limits is compiled again",
        "packages/dragoman/src/dragoman/constraints/bounded_compiler.py",
        "            self._rejected[digest] = message\n",
        "",
        ("packages/dragoman/tests/constraints/test_bounded.py",),
    ),
    # Worker processes.
    Mutant(
        "a grammar is compiled to the end after the client has disconnected",
        "packages/dragoman/src/dragoman/isolation/worker_pool.py",
        "            attempt.cancel()\n            raise",
        "            raise",
        ("packages/dragoman/tests/isolation/test_pool.py",),
    ),
    Mutant(
        "a worker call has no CPU time limit, and the wall-clock limit is much longer",
        "packages/dragoman/src/dragoman/isolation/worker_loop.py",
        "        _limit_time(setup.seconds)\n",
        "",
        ("packages/dragoman/tests/isolation/test_pool.py",),
    ),
    Mutant(
        "a worker call has no memory limit",
        "packages/dragoman/src/dragoman/isolation/worker_loop.py",
        "        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n",
        "",
        ("packages/dragoman/tests/isolation/test_pool.py",),
    ),
    Mutant(
        "the server's API keys are in the environment of the process that renders clients' "
        "templates",
        "packages/dragoman/src/dragoman/isolation/worker_pool.py",
        '                if not name.startswith("DRAGOMAN_")',
        "",
        ("packages/dragoman/tests/isolation/test_pool.py",),
        quick=True,
    ),
    Mutant(
        "a 41-byte template produces 10 GB: `indent` charges its width once instead of per line "
        "(ours)",
        "packages/dragoman/src/dragoman/prompts/sandbox.py",
        "lines * (len(width)",
        "(len(width)",
        ("packages/dragoman/tests/prompts/test_template.py",),
        quick=True,
    ),
    # llama.cpp.
    Mutant(
        "tokens within characters that llama.cpp's stream omits are not requested again "
        "(llama.cpp)",
        "packages/dragoman/src/dragoman/engines/llamacpp/completion_state.py",
        "self._schedule_completion(_NextCompletion(missing + len(tokens)))",
        "pass",
        (LLAMACPP,),
    ),
    Mutant(
        "a slot's cached prefix is reused for another owner's prompt",
        "packages/dragoman/src/dragoman/engines/llamacpp/engine.py",
        "if not self._caching or slot_salt != salt:",
        "if not self._caching:",
        (LLAMACPP,),
    ),
    Mutant(
        "a token from llama.cpp that the grammar forbids is accepted",
        "packages/dragoman/src/dragoman/engines/llamacpp/completion_state.py",
        "if token != self._current.forced and not token_filter.is_allowed(token, self.output):",
        "if False:",
        (LLAMACPP,),
    ),
    Mutant(
        "a slot's cached prefix is reused for a prompt with other images",
        "packages/dragoman/src/dragoman/engines/llamacpp/engine.py",
        "    if not images:\n        return tokens\n",
        "    return tokens\n",
        (LLAMACPP,),
    ),
    Mutant(
        "control token names in user text beside an image become control tokens in llama.cpp",
        "packages/dragoman/src/dragoman/engines/llamacpp/image_prompt.py",
        "if await client.tokenize(candidate) == ids:",
        "if True:",
        (LLAMACPP,),
        needs="xllamacpp",
    ),
    # Hung engines.
    Mutant(
        "an engine with a hung step stays unready forever",
        "packages/dragoman/src/dragoman/engines/batching/engine.py",
        "running=running,\n                failed=has_failed,\n            )",
        "running=running)",
        ("packages/dragoman/tests/engines/batching/test_hanging.py",),
        quick=True,
    ),
    # Media.
    Mutant(
        "prompts with different images share cached blocks",
        "packages/dragoman/src/dragoman/engines/batching/block_hashes.py",
        'return blake2b(array("q", tokens).tobytes() + image_key,',
        'return blake2b(array("q", tokens).tobytes(),',
        ("packages/dragoman/tests/engines/batching",),
    ),
    Mutant(
        "one public address hides a private address of the same host (SSRF: vLLM CVE-2025-6242)",
        "packages/dragoman/src/dragoman/serving/media_fetcher.py",
        "not all(map(self._is_allowed, resolved))",
        "not any(map(self._is_allowed, resolved))",
        ("packages/dragoman/tests/hardening/test_ssrf.py",),
    ),
    Mutant(
        "a host name is resolved again for the connection (DNS rebinding)",
        "packages/dragoman/src/dragoman/serving/media_fetcher.py",
        "_REQUEST_HEADERS, connect_to=str(address)",
        "_REQUEST_HEADERS",
        ("packages/dragoman/tests/hardening/test_ssrf.py",),
    ),
    Mutant(
        "a small file with a huge image is decoded (vLLM CVE-2026-22773)",
        "packages/dragoman/src/dragoman/core/image_header.py",
        "if info.width * info.height > MAX_PIXELS:",
        "if info.width > MAX_PIXELS:",
        ("packages/dragoman/tests/core/test_image_info.py",),
    ),
    # The simulator and the server.
    Mutant(
        "a signal that arrives before the server listens is ignored",
        "packages/dragoman/src/dragoman/launch/signals.py",
        "        signal.signal(signal_number, server.handle_exit)\n",
        "        signal.signal(signal_number, signal.SIG_IGN)\n",
        ("packages/dragoman/tests/cli/test_cli.py",),
    ),
    Mutant(
        "the queue limit counts only requests, so that the queue holds hours of work",
        "packages/dragoman/src/dragoman/pipeline/request_queue.py",
        "        excess_tokens = (\n"
        "            self.waiting_tokens + tokens - self._max_tokens if self.waiting_tokens "
        "else 0\n"
        "        )\n",
        "        excess_tokens = 0\n",
        ("packages/dragoman/tests/pipeline/test_request_queue.py",),
        quick=True,
    ),
    Mutant(
        "a rejection waits behind requests with paced starts (ours: p99 of 88 ms)",
        "packages/dragoman/src/dragoman/serving/call_admission.py",
        "        model.queues.generation.check_capacity(terms.queue_share)\n",
        "        if (turn := context.service.generation.start_limiter.acquire()):\n"
        "            await turn\n",
        ("packages/dragoman/tests/hardening/test_overload.py",),
    ),
    Mutant(
        "clients wait forever for an engine that failed without ending its streams",
        "packages/dragoman/src/dragoman/pipeline/driver.py",
        "            self._failure = error\n            self._wake()\n",
        "            self._failure = error\n",
        ("packages/dragoman/tests/hardening/test_dying_engines.py",),
    ),
    Mutant(
        "the error for a script that does not fit a schema does not name the field",
        "packages/dragoman/src/dragoman/engines/script/validate_reply.py",
        'cannot be returned as requested: {error}.", param=param\n',
        'cannot be returned as requested: {error}."\n',
        ("packages/dragoman/tests/engines/test_every_engine.py",),
    ),
    Mutant(
        "an upstream's traceback is forwarded to the client",
        "packages/dragoman/src/dragoman/engines/upstream/errors.py",
        '        message = _SERVER_ERRORS.get(status, "")\n',
        "",
        ("packages/dragoman/tests/engines/upstream/test_errors.py",),
        quick=True,
    ),
    Mutant(
        "a plug-in's token count of -2 is passed on",
        "packages/dragoman/src/dragoman/core/event_grammar.py",
        "        if type(count) is not int or count < 0:\n",
        "        if type(count) is not int:\n",
        ("packages/dragoman/tests/laws/test_core.py",),
        quick=True,
    ),
    Mutant(
        "a prompt that will be truncated is first rendered whole, at any length",
        "packages/dragoman/src/dragoman/pipeline/prompt_length.py",
        "        if not isinstance(prompt, tuple):\n            check_countable(",
        "        if False:\n            check_countable(",
        ("packages/dragoman/tests/hardening/test_big_prompts.py",),
    ),
    Mutant(
        "one key fills the queue, and all others are rejected (ours: 2 of 21 requests served)",
        "packages/dragoman/src/dragoman/pipeline/request_queue.py",
        "            if greedy is None or others[greedy][unit] / greedy.weight <= own_load[unit "
        "- 1]:\n",
        "            if greedy is None or unit:\n",
        (
            "packages/dragoman/tests/pipeline/test_request_queue.py",
            "packages/dragoman/tests/hardening/test_fairness.py",
        ),
    ),
    Mutant(
        "a key of weight 2 gets the share of weight 1",
        "packages/dragoman/src/dragoman/pipeline/request_queue.py",
        "        self.served += tokens / self.weight\n",
        "        self.served += tokens\n",
        ("packages/dragoman/tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "a rate limit admits a fraction of a request too many because of rounding",
        "packages/dragoman/src/dragoman/tenants/counters.py",
        "            retry_after = -(-missing // demand.limit)\n",
        "            retry_after = missing // demand.limit\n",
        ("packages/dragoman/tests/tenants/test_counters.py",),
        quick=True,
    ),
    Mutant(
        "a request that the token limit rejects still counts against the request limit",
        "packages/dragoman/src/dragoman/serving/tenancy.py",
        "                self.add(tenant, {REQUESTS: -1})\n",
        "",
        ("packages/dragoman/tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "a cancelled request never releases its concurrency slot",
        "packages/dragoman/src/dragoman/serving/tenancy.py",
        "tenancy.add(\n                tenant, {CONCURRENCY: -1,",
        "tenancy.add(\n                tenant, {",
        ("packages/dragoman/tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "a batch of counts is added twice if the response to it was lost",
        "packages/dragoman/src/dragoman/tenants/apply_batch.py",
        "            redo = ()\n",
        "            pass\n",
        ("packages/dragoman/tests/tenants/test_shared.py",),
    ),
    Mutant(
        "the concurrency slots of a killed process are never released",
        "packages/dragoman/src/dragoman/tenants/apply_batch.py",
        "if id in live)",
        ")",
        ("packages/dragoman/tests/tenants/test_shared.py",),
    ),
    Mutant(
        "the usage of another process is overwritten instead of added to",
        "packages/dragoman/src/dragoman/serving/usage_ledger.py",
        "            merged: HourUsage = {} if record is None else _decode(record)\n",
        "            merged: HourUsage = {}\n",
        ("packages/dragoman/tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "a key can use a forbidden model by its name",
        "packages/dragoman/src/dragoman/pipeline/model_registry.py",
        "            slot = None  # The error must not reveal models that the API key may not "
        "use.\n",
        "            pass\n",
        ("packages/dragoman/tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "an upstream starts a new trace",
        "packages/dragoman/src/dragoman/serving/call_admission.py",
        "requests.append(directed if trace is None else replace(directed, trace=trace))\n",
        "requests.append(directed)\n",
        ("packages/dragoman/tests/telemetry/test_traces.py",),
    ),
    Mutant(
        "FIFO order: other keys wait behind all requests of a greedy one",
        "packages/dragoman/src/dragoman/pipeline/request_queue.py",
        "    return is_background, owner.served, arrival\n",
        "    return is_background, 0, arrival\n",
        ("packages/dragoman/tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "a key that was idle is served exclusively until it has caught up with the others",
        "packages/dragoman/src/dragoman/pipeline/request_queue.py",
        "            owner.served = max(owner.served, min(present, default=0))\n",
        "            pass\n",
        ("packages/dragoman/tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "all callers share one queue: keys do not get fair shares of the engine",
        "packages/dragoman/src/dragoman/serving/tenancy.py",
        "        return QueueShare(owner, 1.0 if tenant is None else tenant.weight, "
        "self._threads)\n",
        "        return ONE_QUEUE\n",
        ("packages/dragoman/tests/hardening/test_fairness.py",),
    ),
    Mutant(
        "a plug-in or upstream gets unlimited concurrent requests (ours: --max-num-seqs ignored)",
        "packages/dragoman/src/dragoman/pipeline/request_queue.py",
        "        self._concurrency = slots if limits_concurrency else None\n",
        "        self._concurrency = None\n",
        (
            "packages/dragoman/tests/pipeline/test_request_queue.py",
            "packages/dragoman/tests/hardening/test_fairness.py",
        ),
    ),
    Mutant(
        "each body has a size limit, but not all of them together (vLLM CVE-2025-48956)",
        "packages/dragoman/src/dragoman/serving/body_memory.py",
        "        if growth > 0 and not is_alone and not budget.can_grow(self.owner, growth):\n",
        "        if budget.used < 0:\n",
        ("packages/dragoman/tests/hardening/test_body_sizes.py",),
    ),
    Mutant(
        "tokenizing a megabyte blocks all other requests: the library holds the GIL",
        "packages/dragoman/src/dragoman/prompts/hf_tokenizer.py",
        "            if len(text) > MAX_UNSHARED_CHARS:\n",
        "            if len(text) < 0:\n",
        ("packages/dragoman/tests/hardening/test_big_prompts.py",),
    ),
    Mutant(
        "a server that is shutting down accepts new requests and then aborts them",
        "packages/dragoman/src/dragoman/pipeline/model_registry.py",
        "        if self.is_closed:\n",
        "        if not self._slots:\n",
        ("packages/dragoman/tests/hardening/test_stopping.py",),
    ),
    Mutant(
        "a server that gets a stop signal closes its listener at once (uvicorn)",
        "packages/dragoman/src/dragoman/launch/graceful_shutdown.py",
        "        while not self.force_exit:\n",
        "        while False:\n",
        ("packages/dragoman/tests/hardening/test_stopping.py",),
    ),
    Mutant(
        "a closed port stays open in the kernel: new connections wait instead of being refused",
        "packages/dragoman-sim/src/dragoman_sim/port_faults.py",
        "                    listener.close()\n                else:\n",
        "                    self._listener = listener\n                else:\n",
        ("packages/dragoman-sim/tests/sim_launch/test_port_faults.py",),
    ),
    Mutant(
        "closing one port of a process aborts the streams of all ports",
        "packages/dragoman-sim/src/dragoman_sim/port_faults.py",
        'if transport.get_extra_info("sockname")[1] != self.port:',
        "if connection is None:",
        ("packages/dragoman-sim/tests/sim_launch/test_port_faults.py",),
    ),
    Mutant(
        "a server that is shutting down answers all queued WebSocket frames before it closes the "
        "connection",
        "packages/dragoman/src/dragoman/serving/routes/responses/websocket.py",
        "while not self._is_finishing and (data",
        "while (data",
        ("packages/dragoman/tests/serving/responses/test_websocket.py",),
    ),
    Mutant(
        "a context edit is applied although it saves less than `clear_at_least`",
        "packages/dragoman/src/dragoman/pipeline/context_editing.py",
        "if saved_tokens >= least_saved:",
        "if saved_tokens > 0:",
        ("packages/dragoman/tests/pipeline/test_context_edits.py",),
    ),
    Mutant(
        "tool results that are excluded from clearing are cleared",
        "packages/dragoman/src/dragoman/pipeline/context_editing.py",
        "if names.get(id) not in edit.exclude}",
        "}",
        ("packages/dragoman/tests/pipeline/test_context_edits.py",),
    ),
    Mutant(
        "the stream does not report the applied edits, but the object does",
        "packages/dragoman/src/dragoman/dialects/anthropic/writer.py",
        "                self._applied_edits = event.edited\n",
        "",
        ("packages/dragoman/tests/laws/test_anthropic.py",),
    ),
    Mutant(
        "a llama.cpp slot counts as holding a prompt that was aborted before it was sent",
        "packages/dragoman/src/dragoman/engines/llamacpp/engine.py",
        "sequence.keys if sequence.has_begun else ()",
        "sequence.keys",
        (LLAMACPP,),
        needs="xllamacpp",
    ),
    Mutant(
        "two instances of a process publish their events on the same port",
        "packages/dragoman-sim/src/dragoman_sim/instances.py",
        "        ranks += _count_ranks(instance_settings)\n",
        "",
        ("packages/dragoman-sim/tests/sim_launch/test_instances.py",),
    ),
    Mutant(
        "the data parallel rank that a router requests is ignored",
        "packages/dragoman-sim/src/dragoman_sim/engine/data_parallel_rank.py",
        "            return ranks[requested]\n",
        "",
        (f"{SIMULATOR}/test_steering.py",),
    ),
    Mutant(
        "every HTTP method that a client invents creates a metrics series",
        "packages/dragoman/src/dragoman/serving/http_metrics.py",
        '            method = method if method in _METHODS else "other"\n',
        "",
        ("packages/dragoman/tests/serving/test_metrics.py",),
    ),
    Mutant(
        "a late driver delays all later steps, so that times drift (a sleep per token)",
        "packages/dragoman-sim/src/dragoman_sim/engine/engine_core.py",
        "        return StepOutcome(flight.ends, flight.begins",
        "        return StepOutcome(now, flight.begins",
        (f"{SIMULATOR}/test_defects.py",),
    ),
    Mutant(
        "an error message in the request log quotes the prompt",
        "packages/dragoman/src/dragoman/serving/request_log.py",
        "type(error).__name__",
        "str(error)",
        (f"{SERVING}/test_request_log.py",),
    ),
    Mutant(
        "a request keeps its slot after its client has disconnected (xPyD-sim)",
        "packages/dragoman-sim/src/dragoman_sim/engine/engine.py",
        "        self._rank_of.pop(id).abort(live, self._now())\n",
        "        self._rank_of.pop(id)\n",
        ("packages/dragoman-sim/tests/engine/test_content.py",),
    ),
    Mutant(
        "when one of two equal blocks is evicted, routers are told that both are",
        "packages/dragoman-sim/src/dragoman_sim/engine/kv_events.py",
        "                    if not self._copies[block_hash]:\n"
        "                        del self._copies[block_hash]\n",
        "                    if True:\n"
        "                        self._copies.pop(block_hash, None)\n",
        ("packages/dragoman-sim/tests/engine/test_kv_events.py",),
    ),
    Mutant(
        "blocks that no instance fetches are held forever",
        "packages/dragoman-sim/src/dragoman_sim/engine/kv_transfers.py",
        "        self._call_at(at + self._context.lease_seconds, self._expire)\n",
        "",
        ("packages/dragoman-sim/tests/engine/test_transfers.py",),
    ),
    Mutant(
        "any sender can free the blocks that a prefill holds",
        "packages/dragoman-sim/src/dragoman_sim/engine/kv_notices.py",
        "if hmac.compare_digest(notice.seal.encode(), expected.encode()):",
        "if expected:",
        ("packages/dragoman-sim/tests/engine/test_transfers.py",),
    ),
    # Loading and unloading models.
    Mutant(
        "a model is unloaded while it generates",
        "packages/dragoman/src/dragoman/pipeline/model_lifecycle.py",
        "await self._wait_until(lambda: not self._n_users)",
        "self._n_users = 0",
        ("packages/dragoman/tests/pipeline/test_models.py",),
    ),
    Mutant(
        "an engine that fails to start is restarted forever without a backoff",
        "packages/dragoman/src/dragoman/pipeline/model_lifecycle.py",
        "self.retry_at = now + min(MAX_BACKOFF, MIN_BACKOFF * 2**self._n_failures)",
        "self.retry_at = now",
        ("packages/dragoman/tests/pipeline/test_models.py",),
    ),
    # Embeddings, and fields that are passed through.
    Mutant(
        "base64 is ignored: vectors have a quarter of their dimensions (litellm#42426)",
        "packages/dragoman/src/dragoman/dialects/openai_embeddings.py",
        'body.encoding_format == "base64",',
        "False,",
        ("packages/dragoman/tests/dialects/embeddings",),
    ),
    Mutant(
        "a shortened vector is not normalized again",
        "packages/dragoman/src/dragoman/engines/pooled_outputs.py",
        "length = np.sqrt(doubles @ doubles)",
        "length = np.linalg.norm(vector.astype(np.float64))",
        ("packages/dragoman/tests/engines/encoder",),
    ),
    Mutant(
        "a call with one text waits for an earlier call with a thousand texts",
        "packages/dragoman/src/dragoman/engines/dynamic_batcher.py",
        "            if call.next_index < len(call.inputs):\n"
        "                self._calls.append(call)",
        "            if call.next_index < len(call.inputs):\n"
        "                self._calls.appendleft(call)",
        ("packages/dragoman/tests/engines/arrays",),
    ),
    Mutant(
        "a caller sees another caller's prompt",
        "packages/dragoman/src/dragoman/pipeline/recent_prompts.py",
        "self._prompts.get((owner, model), ())",
        "next(iter(self._prompts.values()), ())",
        ("packages/dragoman/tests/pipeline/test_recent_prompts.py",),
    ),
    Mutant(
        "a parser loses kv_transfer_params",
        "packages/dragoman/src/dragoman/parsers/text_parser.py",
        "                if pending or self._warnings:\n"
        "                    event = msgspec.structs.replace(\n                        event,\n",
        "                if True:\n                    event = msgspec.structs.replace(\n"
        "                        event,\n                        kv_transfer_params=None,\n",
        ("packages/dragoman/tests/serving/test_kv_transfer.py",),
    ),
    # Offline simulation and recordings.
    Mutant(
        "fetched blocks are held forever",
        "packages/dragoman-sim/src/dragoman_sim/engine/block_leases.py",
        "if sequence is not None:",
        "if sequence is not None and entry is not None:",
        (f"{SIMULATOR}/test_disaggregation.py",),
    ),
    Mutant(
        "a fetched prompt waits behind one that waits for its blocks: deadlock",
        "packages/dragoman-sim/src/dragoman_sim/engine/scheduler.py",
        "if (self._ready_to_resume and not self._resume_fetched(step, loras)) or (",
        "if (not self._waiting and not self._resume_fetched(step, loras)) or (",
        (f"{SIMULATOR}/test_disaggregation.py",),
    ),
    Mutant(
        "more adapters than max_loras run at once",
        "packages/dragoman-sim/src/dragoman_sim/engine/scheduler.py",
        "len(loras) >= self.config.max_loras",
        "len(loras) > self.config.max_loras",
        (f"{SIMULATOR}/test_scheduler.py",),
        quick=True,
    ),
    Mutant(
        "a freed block without contents is evicted after cached ones",
        "packages/dragoman-sim/src/dragoman_sim/engine/block_pool.py",
        "self._free.extendleft(reversed(unhashed))",
        "self._free.extend(reversed(unhashed))",
        (f"{SIMULATOR}/test_blocks.py",),
    ),
    Mutant(
        "sleeping between the chunks makes a replayed stream drift (llm-d-inference-sim)",
        "packages/dragoman/src/dragoman/recording/replay.py",
        "delay = started_at + offset / self._time_scale - asyncio.get_running_loop().time()",
        "delay = offset / self._time_scale",
        (RECORDING,),
        quick=True,
    ),
    Mutant(
        "API keys are written into recordings",
        "packages/dragoman/src/dragoman/recording/redaction.py",
        "return [(name, value) for name, value in raw if name.lower() in RECORDED_REQUEST_HEADERS]",
        "return [(name, value) for name, value in raw]",
        (RECORDING,),
    ),
    Mutant(
        "the held-out error of a fit is computed over the requests of the fit",
        "packages/dragoman-sim/src/dragoman_sim/lab/calibration.py",
        "held_out = [timing for timing in measured if timing.id not in excluded]",
        "held_out = [timing for timing in measured if timing.id in excluded]",
        ("packages/dragoman-sim/tests/lab/test_accuracy.py::test_fit_ignores_held_out_requests",),
    ),
    # The upstream engine.
    Mutant(
        "a stream that breaks off counts as a short response (guidellm, LangChain, litellm)",
        "packages/dragoman/src/dragoman/engines/upstream/chunk_reader.py",
        "for choice in self._choices for event in choice.close()]",
        "for choice in self._choices if choice.finish for event in choice.close()]",
        (UPSTREAM,),
    ),
    Mutant(
        "a chunk with a field twice is taken for the last one with another text",
        "packages/dragoman/src/dragoman/engines/upstream/chunk_template.py",
        "if data.count(b'\"%b\"' % name.encode()) != 1 or ",
        "if ",
        (f"{UPSTREAM}/test_chunk_template.py",),
    ),
    Mutant(
        "a request fails on an idle connection that the upstream has closed",
        "packages/dragoman/src/dragoman/engines/upstream/engine.py",
        "if index is None and isinstance(last_error, ConnectionClosed):",
        "if index is None and not last_error:",
        (f"{UPSTREAM}/test_engine.py",),
    ),
    Mutant(
        "a truncated body counts as complete",
        "packages/dragoman-http/src/dragoman_http/client_connection.py",
        "if response is not None and self._framing is BodyFraming.CLOSE and exc is None:",
        "if response is not None and exc is None:",
        ("packages/dragoman-http/tests/http_client/test_responses.py",),
        quick=True,
    ),
    Mutant(
        "bytes after a response are parsed as the next response",
        "packages/dragoman-http/src/dragoman_http/client_connection.py",
        "        if not is_exact:\n",
        "        if False:\n",
        ("packages/dragoman-http/tests/http_client/test_responses.py",),
    ),
    Mutant(
        "interleaved tool calls are emitted in the order of their deltas",
        "packages/dragoman/src/dragoman/engines/upstream/answer_items.py",
        "if not head.name or not (head.is_ended or (head.is_complete and not is_last)):",
        "if not head.name or (is_last and not head.is_ended):",
        (UPSTREAM,),
    ),
    Mutant(
        "an upstream's error about our API key is forwarded to clients, including the key",
        "packages/dragoman/src/dragoman/engines/upstream/errors.py",
        "if status in (401, 402, 403, 407) or error.type == _KEY_INVALID or 300 <= status < 400:",
        "if error.type == _KEY_INVALID or 300 <= status < 400:",
        (UPSTREAM,),
    ),
    # The chat writer.
    Mutant(
        "the stream does not start with role chunks: choices appear as their text arrives "
        "(LightLLM, vLLM)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        'return b"" if self._awaits_prompt or self._ends_empty else self._render_roles(None)',
        'return b""',
        (CHAT,),
    ),
    Mutant(
        "the stream lacks the logprobs that the object has (xPyD-sim)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "logprobs = self._render_logprobs(state.scored)",
        "pass",
        (CHAT,),
    ),
    Mutant(
        "trailing tokens have no logprobs in the object",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "return [*listed, *((False, token) for token in choice.trailing_tokens)]",
        "return listed",
        (CHAT,),
    ),
    Mutant(
        "tokens that released no text are lost",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "        tokens = state.pending_tokens\n",
        "        tokens = state.pending_tokens[-1:]\n",
        (CHAT,),
    ),
    Mutant(
        "a refusal's tokens are listed as content",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "content_tokens = [token for refusal, token in tokens if not refusal]",
        "content_tokens = [token for _, token in tokens]",
        (CHAT,),
    ),
    Mutant(
        'finish_reason stays "stop" after a tool call in the stream',
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "reason = self._render_reason(event.reason, has_calls)",
        "reason = self._render_reason(event.reason, False)",
        (CHAT,),
    ),
    Mutant(
        "finish_reason is tool_calls in the object although the length limit cut the call off "
        "(vLLM)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "reason = self._render_reason(choice.reason, choice.has_tool_calls)",
        "reason = (b'\"tool_calls\"' if choice.has_tool_calls else "
        "self._render_reason(choice.reason, False))",
        (CHAT,),
    ),
    Mutant(
        "finish_reason is tool_calls although the length limit cut the call off (vllm#53269)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "if reason is not FinishReason.STOP or not has_calls or self._options.is_named_choice:",
        "if not has_calls or self._options.is_named_choice:",
        (TRAPS, GOLDEN),
    ),
    Mutant(
        "finish_reason is tool_calls for a named function (vllm#25054)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "if reason is not FinishReason.STOP or not has_calls or self._options.is_named_choice:",
        "if reason is not FinishReason.STOP or not has_calls:",
        (TRAPS, GOLDEN),
    ),
    Mutant(
        "all parallel tool calls have index 0 (litellm#33678, vercel/ai#14277)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "if is_legacy\n                    else render_call_start(event, state.calls - 1)",
        "if is_legacy\n                    else render_call_start(event, 0)",
        (CHAT,),
    ),
    Mutant(
        "arguments are attached to the previous tool call",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "else render_call_arguments(event.arguments, state.calls - 1, state.is_custom)",
        "else render_call_arguments(event.arguments, max(0, state.calls - 2), state.is_custom)",
        (CHAT,),
    ),
    Mutant(
        "later deltas repeat the name field (lmstudio-bug-tracker#649)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        'return b\'"tool_calls":[{"index":%d,"%s":{"%s":%s}}]\' % (index, kind, field, '
        "encode_string(text))",
        'return b\'"tool_calls":[{"index":%d,"%s":{"name":"","%s":%s}}]\' % (index, kind, field, '
        "encode_string(text))",
        (CHAT,),
    ),
    Mutant(
        "every message has an empty list of tool calls (vllm#53255)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "if calls and not legacy:",
        "if not legacy:",
        (CHAT,),
    ),
    Mutant(
        "the stream has one name for reasoning, and the object has two (vllm#42664)",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "fields = [render_reasoning(names, encode_string(text))] if text else []",
        "fields = [render_reasoning(names[:1], encode_string(text))] if text else []",
        (CHAT,),
    ),
    Mutant(
        "hidden reasoning appears in the object",
        "packages/dragoman/src/dragoman/dialects/chat/writer.py",
        "if names and (reasoning or profile is Profile.VLLM):\n"
        "        fields.append(render_reasoning(names,",
        "if reasoning or profile is Profile.VLLM:\n"
        '        fields.append(render_reasoning(names or ("reasoning",),',
        (CHAT,),
    ),
    # Envelopes.
    Mutant(
        "the stream has a usage chunk that was not requested (LangChain.js doubles the tokens: "
        "litellm#28735)",
        "packages/dragoman/src/dragoman/dialects/chunk_envelope.py",
        '        if not self._options.include_usage:\n            return b""\n',
        "",
        (CHAT,),
    ),
    Mutant(
        "usage counts events instead of tokens (xPyD-sim)",
        "packages/dragoman/src/dragoman/dialects/token_usage.py",
        "self._completion += len(tokens)",
        "self._completion += 1",
        (CHAT,),
    ),
    Mutant(
        'chunks before the last one lack `"usage": null`',
        "packages/dragoman/src/dragoman/dialects/chunk_envelope.py",
        "null_usage = options.include_usage and options.profile is Profile.OPENAI",
        "null_usage = False",
        (TRAPS, GOLDEN),
    ),
    Mutant(
        "[DONE] follows an error in the stream",
        "packages/dragoman/src/dragoman/dialects/chunk_envelope.py",
        'return b"data: %s\\n\\n" % render_openai_error(error, self._options.profile)',
        'return b"data: %s\\n\\n" % render_openai_error(error, self._options.profile) + DONE',
        (CLIENTS, GOLDEN),
    ),
    Mutant(
        "an aborted response looks complete",
        "packages/dragoman/src/dragoman/dialects/chunk_envelope.py",
        "return b'\"length\"'",
        "return b'\"stop\"'",
        (GOLDEN,),
    ),
    Mutant(
        "U+2028 in the text breaks clients that split lines",
        "packages/dragoman/src/dragoman/dialects/json_encoding.py",
        "return data if data.isascii() else escape_line_breaks(data)",
        "return data",
        (CHAT,),
    ),
    Mutant(
        "a logprob of minus infinity becomes null",
        "packages/dragoman/src/dragoman/dialects/json_encoding.py",
        "return value if value is not None and math.isfinite(value) else UNKNOWN_LOGPROB",
        "return UNKNOWN_LOGPROB if value is None else value",
        (CHAT,),
    ),
    Mutant(
        "error bodies lack `param`",
        "packages/dragoman/src/dragoman/dialects/openai_errors.py",
        "class OpenAIErrorDetail(Struct, frozen=True):",
        "class OpenAIErrorDetail(Struct, frozen=True, omit_defaults=True, rename={'param': "
        "'parameter'}):",
        (GOLDEN, "packages/dragoman/tests/dialects/test_errors.py"),
    ),
    # The Completions writer.
    Mutant(
        "an echoed prompt goes to the choices of the first prompt",
        "packages/dragoman/src/dragoman/dialects/completions/writer.py",
        "choices = range(\n"
        "            event.prompt * self._choices_per_prompt, (event.prompt + 1) * "
        "self._choices_per_prompt\n"
        "        )",
        "choices = range(self._choices_per_prompt\n        )",
        (COMPLETIONS,),
    ),
    Mutant(
        "text offsets restart in every chunk",
        "packages/dragoman/src/dragoman/dialects/completions/writer.py",
        "logprobs = self._render_logprobs(state.offsets, prompt, scored)",
        "logprobs = self._render_logprobs(self._create_offsets(), prompt, scored)",
        (COMPLETIONS,),
    ),
    Mutant(
        "the first token of an echoed prompt has a logprob",
        "packages/dragoman/src/dragoman/dialects/logprobs.py",
        "self._build_row(token, offset)\n"
        "                if rows\n"
        "                else LogprobRow(offset, self._get_name(token), None, None)",
        "self._build_row(token, offset)",
        (CLIENTS,),
    ),
    Mutant(
        "the sampled token is not among its alternatives (lm-eval's is_greedy)",
        "packages/dragoman/src/dragoman/dialects/logprobs.py",
        "for alternative in (token, *best) if self._sampled_first else (*best, token):",
        "for alternative in best or (token,):",
        (COMPLETIONS,),
    ),
    Mutant(
        "the response has more alternatives than requested",
        "packages/dragoman/src/dragoman/dialects/logprobs.py",
        "for alternative in token.top[:top]\n        ]",
        "for alternative in token.top\n        ]",
        (CLIENTS, GOLDEN),
    ),
    # The readers.
    Mutant(
        "a deeply nested body is accepted",
        "packages/dragoman/src/dragoman/dialects/request_body.py",
        "> MAX_DEPTH and _is_too_deep(data):",
        "> MAX_DEPTH and not data:",
        (BODY,),
    ),
    Mutant(
        "invalid UTF-8 is accepted in parts of the body that are not decoded",
        "packages/dragoman/src/dragoman/dialects/request_body.py",
        "if not data.isascii():",
        "if not data:",
        (BODY, FUZZ),
    ),
    Mutant(
        "an error echoes a client's value at any length (vLLM's 23.6 MB of errors)",
        "packages/dragoman/src/dragoman/dialects/field_errors.py",
        'return repr(value) if len(value) <= MAX_ECHO else repr(value[:MAX_ECHO]) + "..."',
        "return repr(value)",
        (BODY,),
    ),
    Mutant(
        "unsupported fields are silently ignored",
        "packages/dragoman/src/dragoman/dialects/parameter_table.py",
        "raise Unsupported(f\"'{name}' is not supported here: {row.note}.\", param=name)",
        "pass",
        (PARAMETERS,),
    ),
    Mutant(
        "a custom tool's regex is shown to the model but not enforced (ours, seen with the OpenAI "
        "SDK)",
        "packages/dragoman/src/dragoman/parsers/tool_parameters.py",
        'if tool.syntax == "regex" and tool.definition is not None:',
        "if tool.definition is None:",
        ("packages/dragoman/tests/serving/test_embedded.py",),
    ),
    Mutant(
        "a text file is rejected if the engine does not accept files (vLLM; ours, seen with "
        "Anthropic's Files)",
        "packages/dragoman/src/dragoman/serving/media.py",
        "replacements[file] = _decode_text(resolved.get(file, file)) or file",
        "replacements[file] = file",
        ("packages/dragoman/tests/serving/test_media.py",),
    ),
    Mutant(
        "Anthropic's clients get OpenAI's format on a path that both share (ours, seen with "
        "Anthropic's Files)",
        "packages/dragoman/src/dragoman/dialects/error_envelope.py",
        "return any(name in headers for name in self.client_headers)",
        "return False",
        ("packages/dragoman/tests/serving/test_anthropic_files.py",),
    ),
    Mutant(
        "file: URLs are accepted (LightLLM)",
        "packages/dragoman/src/dragoman/dialects/media.py",
        'if scheme in ("http", "https"):',
        'if scheme in ("http", "https", "file"):',
        (READER,),
    ),
    Mutant(
        "tool_choice can force an undeclared function",
        "packages/dragoman/src/dragoman/dialects/chat/tool_reader.py",
        "if not any(tool.name == name and isinstance(tool, kind) for tool in tools):",
        "if not tools:",
        (READER,),
    ),
    Mutant(
        "one hosted tool causes the whole request to be rejected (llama.cpp#20156)",
        "packages/dragoman/src/dragoman/dialects/chat/tool_reader.py",
        "                warnings.append(\n"
        '                    f"{path}: tools of type {abbreviate(hosted)} cannot be run here; '
        'it was left "\n'
        '                    f"out"\n'
        "                )\n",
        "                raise missing_parameter(path)\n",
        (TRAPS,),
    ),
    Mutant(
        "max_tokens overrides max_completion_tokens",
        "packages/dragoman/src/dragoman/dialects/chat/reader.py",
        "body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens",
        "body.max_completion_tokens if body.max_tokens is None else body.max_tokens",
        (READER,),
    ),
    Mutant(
        "-1 is used as a token limit",
        "packages/dragoman/src/dragoman/dialects/chat/reader.py",
        "None if max_tokens == -1 else max_tokens, max_tokens_name",
        "max_tokens, max_tokens_name",
        (READER,),
    ),
    Mutant(
        "only one field name of replayed reasoning is read",
        "packages/dragoman/src/dragoman/dialects/chat/messages.py",
        "message.reasoning\n            or message.reasoning_content\n            or",
        "message.reasoning\n            or ",
        (TRAPS,),
    ),
    # Parsers.
    Mutant(
        "a delimiter that is split over two deltas leaks into the reasoning (no buffering)",
        "packages/dragoman/src/dragoman/parsers/think.py",
        "len(self._buffer) - patterns.pending_lengths[self._search_state]",
        "len(self._buffer)",
        (PARSERS,),
    ),
    Mutant(
        "text that is still buffered at the end is dropped (LightLLM)",
        "packages/dragoman/src/dragoman/parsers/think.py",
        "self._emit_buffered(ReasoningDelta if in_reasoning else TextDelta, len(self._buffer))",
        "self._drop(len(self._buffer))",
        (f"{PARSERS}/test_laws.py",),
    ),
    Mutant(
        "delimiter tokens are lost",
        "packages/dragoman/src/dragoman/parsers/text_parser.py",
        "self._pending_tokens.extend(self._buffer.pop(n, drop=True)[1])",
        "self._buffer.pop(n, drop=True)",
        (f"{PARSERS}/test_laws.py",),
    ),
    Mutant(
        "a malformed call is dropped instead of returned as text (LightLLM: 400 Failed to parse "
        "fc)",
        "packages/dragoman/src/dragoman/parsers/call_parser.py",
        "elif call.is_undeclared or status is not ReadStatus.MORE:\n"
        "            self._emit_buffered(TextDelta, n)",
        "elif call.is_undeclared or status is not ReadStatus.MORE:\n            self._drop(n)",
        (PARSERS,),
    ),
    Mutant(
        "a partial start delimiter of a call leaks into the text (several parsers of vLLM)",
        "packages/dragoman/src/dragoman/parsers/delimited_calls.py",
        "self._emit_buffered(\n"
        "                TextDelta, len(self._buffer) - "
        "start_patterns.pending_lengths[self._search_state]\n"
        "            )",
        "self._emit_buffered(\n                TextDelta, len(self._buffer))",
        (PARSERS,),
    ),
    Mutant(
        "every argument between tags is a string, whatever the schema says",
        "packages/dragoman/src/dragoman/parsers/xml_call_reader.py",
        "self._types = self._parameters.find_types(self._key)\n",
        'self._types = ("string",)\n',
        (PARSERS,),
    ),
    Mutant(
        "a parameter that DeepSeek marks as a string stays a string against the schema (ours)",
        "packages/dragoman/src/dragoman/parsers/xml_call_reader.py",
        'if (is_text and (not self._types or "string" in self._types)) or (',
        "if is_text or (",
        (PARSERS,),
    ),
    Mutant(
        "an object of all arguments is parsed as a single argument (ours)",
        "packages/dragoman/src/dragoman/parsers/xml_call_reader.py",
        "arguments = _decode_object(raw) if self._is_spliced else None",
        "arguments = None",
        (PARSERS,),
    ),
    Mutant(
        "a call's marker counts although the token in it is spelled (ours)",
        "packages/dragoman/src/dragoman/parsers/think.py",
        "(found := _find_anchor(marker, self._added))",
        "(found := None)",
        (f"{PARSERS}/test_vocabularies.py",),
    ),
    Mutant(
        "a tag in an unfinished JSON string ends the value (ours)",
        "packages/dragoman/src/dragoman/parsers/xml_call_reader.py",
        "if self._json.is_open and is_value_end and not is_cdata:",
        "if False:",
        (f"{PARSERS}/test_slips.py",),
    ),
    Mutant(
        "control tokens that are only parts of a marker never reach the parser (ours: five "
        "families)",
        "packages/dragoman/src/dragoman/pipeline/output_formats.py",
        "for text, id in special.items() if any(text in marker for marker in markers)",
        "for text, id in special.items() if text in markers",
        ("packages/dragoman/tests/pipeline/test_marker_tokens.py",),
    ),
    Mutant(
        "keywords beside an argument's `anyOf` are silently dropped (ours)",
        "packages/dragoman/src/dragoman/parsers/schema_alternatives.py",
        "            else:\n                self.unenforced[key] = None\n        return merged",
        "        return merged",
        (SCHEMAS,),
    ),
    Mutant(
        "enum values that other keywords forbid are forced (ours)",
        "packages/dragoman/src/dragoman/parsers/schema_alternatives.py",
        "if all(check(value, limit) for check, limit in checks)\n        ]",
        "]",
        ("packages/dragoman/tests/constraints/test_families.py",),
    ),
    Mutant(
        "Kimi's call ids are replaced, so that it does not recognize them in the next turn",
        "packages/dragoman/src/dragoman/parsers/json_calls.py",
        '                name = prefix.removeprefix("functions.")\n                id = raw\n',
        '                name = prefix.removeprefix("functions.")\n                id = None\n',
        (PARSERS,),
    ),
    Mutant(
        "Python's True in arguments is copied into the JSON",
        "packages/dragoman/src/dragoman/parsers/pythonic_values.py",
        '{"True": "true", "False": "false", "None": "null"}',
        '{"True": "True", "False": "False", "None": "None"}',
        (PARSERS,),
    ),
    # Responses.
    Mutant(
        "sequence_number starts at 1 (llama.cpp#24957)",
        "packages/dragoman/src/dragoman/dialects/responses/writer.py",
        "        sequence = self._sequence\n        self._sequence = self._sequence + 1\n",
        "        sequence = self._sequence = self._sequence + 1\n",
        (RESPONSES,),
        quick=True,
    ),
    Mutant(
        "output_text.done is empty (ogx#5309)",
        "packages/dragoman/src/dragoman/dialects/responses/item_writers.py",
        "(self.part_location, encode_string(text), logprobs)",
        '(self.part_location, encode_string(""), logprobs)',
        (RESPONSES,),
    ),
    Mutant(
        "deltas arrive for a content part that was never added (vllm#45742)",
        "packages/dragoman/src/dragoman/dialects/responses/item_writers.py",
        'render_text_part("", b"[]")),\n            )\n        ]',
        'render_text_part("", b"[]")),\n            )\n        ][1:]',
        (RESPONSES,),
    ),
    Mutant(
        "a truncated response has the status completed",
        "packages/dragoman/src/dragoman/dialects/responses/writer.py",
        "return COMPLETED if reason is FinishReason.STOP else INCOMPLETE",
        "return COMPLETED",
        (RESPONSES,),
    ),
    Mutant(
        "cache_write_tokens is always 0",
        "packages/dragoman/src/dragoman/dialects/responses/item_writers.py",
        "usage.prompt, usage.cached or 0, usage.written or 0,",
        "usage.prompt, usage.cached or 0, 0,",
        ("packages/dragoman/tests/serving/test_counting.py",),
    ),
    Mutant(
        "items in the object have other ids than in the stream (litellm#37852, vllm#38227)",
        "packages/dragoman/src/dragoman/dialects/responses/writer.py",
        "self._item_writers.create_complete(len(items), part)",
        "self._item_writers.create_complete(i + 1, part)",
        (RESPONSES,),
    ),
    Mutant(
        "a namespaced tool call loses its namespace (vllm#46737)",
        "packages/dragoman/src/dragoman/dialects/responses/item_writer_factory.py",
        'self._names.get(name) or ToolName(name, name, "")',
        'ToolName(name, name, "")',
        (STREAMS,),
    ),
    Mutant(
        "the whole response lacks the output of a hosted shell",
        "packages/dragoman/src/dragoman/dialects/responses/writer.py",
        "items.append(next_item.render(COMPLETED))",
        "pass",
        (HOSTED,),
    ),
    Mutant(
        "the model can write an argument that an option of a hosted tool sets",
        "packages/dragoman/src/dragoman/dialects/responses/hosted_options.py",
        "name: raw for name, raw in properties.items() if name not in names",
        "name: raw for name, raw in properties.items()",
        (HOSTED,),
    ),
    Mutant(
        "an image that clients cannot decode is returned",
        "packages/dragoman/src/dragoman/serving/tool_loop.py",
        "tuple(image for image in images if _is_valid(image))",
        "tuple(image for image in images)",
        (HOSTED,),
    ),
    Mutant(
        "a client replaces the list of a hosted tool",
        "packages/dragoman/src/dragoman/dialects/responses/mcp_tools.py",
        "if not item.server_label or item.server_label.startswith(HOSTED_PREFIX):",
        "if not item.server_label:",
        (HOSTED,),
    ),
    Mutant(
        "a keepalive is an SSE comment (openai/codex#31539)",
        "packages/dragoman/src/dragoman/dialects/responses/writer.py",
        "return self._render_start() or self._render_in_progress()",
        'return b": keepalive\\n\\n"',
        (STREAMS,),
    ),
    Mutant(
        "an unfinished call gets a done event when the response fails: agents would execute it",
        "packages/dragoman/src/dragoman/dialects/responses/writer.py",
        "start_events = self._render_start()\n",
        "start_events = self._render_start() + self._close_item(INCOMPLETE)\n",
        (STREAMS,),
    ),
    Mutant(
        "tokens before the first text have no logprobs in the stream",
        "packages/dragoman/src/dragoman/dialects/responses/writer.py",
        "            tokens = (*self._early_tokens, *tokens)\n"
        "            self._early_tokens = []\n",
        "            self._early_tokens = []\n",
        (RESPONSES,),
    ),
    Mutant(
        "a refusal in the input is stored as its text, which is empty",
        "packages/dragoman/src/dragoman/dialects/responses/input_items.py",
        '(part.refusal if part.type == "refusal" else part.text)',
        "part.text",
        (STREAMS,),
    ),
    # The pipeline and the serving path.
    Mutant(
        "choices of several prompts are interleaved by choice",
        "packages/dragoman/src/dragoman/pipeline/merge.py",
        "choice=index * first_started.choices + event.choice",
        "choice=event.choice * len(self._started) + index",
        ("packages/dragoman/tests/pipeline/test_merge.py",),
        quick=True,
    ),
    Mutant(
        "errors before the first token arrive in a stream with status 200",
        "packages/dragoman/src/dragoman/serving/responder.py",
        "                await self._produce()\n",
        "                await self._send_headers()\n                await self._produce()\n",
        (f"{SERVING}/test_answers.py",),
        quick=True,
    ),
    # Stored responses.
    Mutant(
        "a response is acknowledged before it is stored (vllm-mlx loses turns)",
        "packages/dragoman/src/dragoman/pipeline/driver.py",
        "                    await stage.finish()\n",
        "                    asyncio.get_running_loop().create_task(stage.finish())\n",
        ("packages/dragoman/tests/serving/responses/test_stored.py",),
    ),
    Mutant(
        "a response deleted in the middle of a conversation is silently skipped",
        "packages/dragoman/src/dragoman/serving/routes/responses/history.py",
        "if not chain.is_complete:",
        "if False:",
        ("packages/dragoman/tests/serving/responses/test_continuing.py",),
    ),
    Mutant(
        "a resumed stream repeats the last event that the client has received",
        "packages/dragoman/src/dragoman/serving/routes/responses/background.py",
        "event.number > starting_after",
        "event.number >= starting_after",
        ("packages/dragoman/tests/serving/responses/test_background.py",),
    ),
    Mutant(
        "responses of a dead process stay in_progress forever",
        "packages/dragoman/src/dragoman/serving/routes/responses/background.py",
        "        await self.finalize_abandoned()\n        self._watcher",
        "        self._watcher",
        ("packages/dragoman/tests/serving/responses/test_background.py",),
    ),
    Mutant(
        "the engine keeps generating after the client has disconnected (LightLLM's middleware)",
        "packages/dragoman/src/dragoman/serving/responder.py",
        "        on_disconnect(self._abort)\n",
        "",
        ("packages/dragoman/tests/serving/test_disconnect.py",),
    ),
    Mutant(
        "every cancellation counts as a client disconnect, so that a shutdown does not end the "
        "request",
        "packages/dragoman/src/dragoman/serving/responder.py",
        "            if not self._is_cancelled or self._task is None or self._task.uncancel():\n"
        "                raise\n",
        "            pass\n",
        ("packages/dragoman/tests/serving/test_disconnect.py",),
    ),
    Mutant(
        "an engine failure ends the stream as if it were complete",
        "packages/dragoman/src/dragoman/serving/responder.py",
        "await self._write(self._framing.render_error(error), more_body=False)",
        "await self._write(self._framing.end, more_body=False)",
        (f"{SERVING}/test_answers.py",),
    ),
    # Replay of sampled tokens.
    Mutant(
        "a history is tokenized again, and its cached prefix ends where the sampled tokens differ",
        "packages/dragoman/src/dragoman/prompts/token_replay.py",
        "return matching_ids.popleft() if matching_ids else None",
        "return None",
        ("packages/dragoman/tests/serving/responses/test_agents.py",),
    ),
    Mutant(
        "sampled ids are reused across control tokens, even those that a user wrote",
        "packages/dragoman/src/dragoman/prompts/token_replay.py",
        "                if id in control_ids:\n                    pieces.append([])\n",
        "                if False:\n                    pieces.append([])\n",
        ("packages/dragoman/tests/prompts/test_token_replay.py",),
    ),
    Mutant(
        "if `*` is allowed, any page can call admin routes",
        "packages/dragoman/src/dragoman/serving/cors.py",
        '        if "*" in self._allowed and not by_name:\n',
        '        if "*" in self._allowed:\n',
        ("packages/dragoman/tests/serving/test_cors.py",),
    ),
    Mutant(
        "a burst of requests delays the tokens of all others until every request is read",
        "packages/dragoman/src/dragoman/serving/service.py",
        "        if self._available and not self._waiters:",
        "        if True:",
        ("packages/dragoman/tests/serving/test_pacing.py",),
    ),
    # The WebSocket.
    Mutant(
        "a page of any site can use the server over a WebSocket",
        "packages/dragoman/src/dragoman/serving/routes/responses/websocket.py",
        "            self._policy.check_origin(http.headers, self.access)\n",
        "",
        ("packages/dragoman/tests/serving/responses/test_websocket.py",),
    ),
    Mutant(
        "the connection keeps its history after a failed continuation",
        "packages/dragoman/src/dragoman/serving/routes/responses/websocket.py",
        "        elif self._history is not None and self._history.id == previous:\n"
        "            self._history = None\n",
        "",
        ("packages/dragoman/tests/serving/responses/test_websocket.py",),
    ),
    # Encryption and signatures.
    Mutant(
        "sealed reasoning can be opened by any client (one key for all owners)",
        "packages/dragoman/src/dragoman/serving/crypto.py",
        'info = f"dragoman 1 {purpose}\\n{self.owner}".encode()',
        'info = f"dragoman 1 {purpose}".encode()',
        (f"{SERVING}/test_crypto.py",),
    ),
    Mutant(
        "an invalid signature of reasoning is accepted",
        "packages/dragoman/src/dragoman/dialects/anthropic/content_blocks.py",
        'is_signed = key is not None and seal != "" and key.verify_signature(thinking, seal)',
        "is_signed = True",
        ("packages/dragoman/tests/dialects/anthropic", f"{SERVING}/test_crypto.py"),
    ),
    # The store.
    Mutant(
        "a failed commit keeps the changes that precede the failure",
        "packages/dragoman/src/dragoman/store/group_writer.py",
        'connection.execute("ROLLBACK TO job")',
        "pass",
        ("packages/dragoman/tests/store/test_kit.py",),
    ),
    Mutant(
        "a write is acknowledged although the disk is full",
        "packages/dragoman/src/dragoman/store/group_writer.py",
        "job.error = StoreUnavailable(failure.message)",
        "pass",
        ("packages/dragoman/tests/store/test_sqlite.py",),
    ),
    Mutant(
        "any client that knows an id reads the chain of another key (Open WebUI CVE-2026-45349)",
        "packages/dragoman/src/dragoman/store/sql.py",
        "ON r.owner = $1 AND r.kind = $2 AND r.id = hop.parent",
        "ON r.kind = $2 AND r.id = hop.parent",
        ("packages/dragoman/tests/store/test_kit.py",),
        quick=True,
    ),
    Mutant(
        "reading a record does not protect it from eviction",
        "packages/dragoman/src/dragoman/store/sql_store.py",
        "self._touches[record.position] = now",
        "pass",
        (
            "packages/dragoman/tests/store/test_kit.py",
            "packages/dragoman/tests/store/test_state_machine.py",
        ),
    ),
    Mutant(
        "a reused block is offloaded under its old hash",
        "packages/dragoman/src/dragoman/engines/batching/kv_offload.py",
        "if find(block_hash) == block:",
        "if find(block_hash) == block or True:",
        ("packages/dragoman/tests/engines/batching/test_offload.py",),
    ),
    Mutant(
        "the digest of a cache file is not checked",
        "packages/dragoman/src/dragoman/engines/batching/kv_offload.py",
        "if digest != _compute_digest(block_hash, contents):",
        "if not contents:",
        ("packages/dragoman/tests/engines/batching/test_offload.py",),
    ),
    Mutant(
        "adapters share cached blocks",
        "packages/dragoman/src/dragoman/engines/batching/block_hashes.py",
        'key=adapter.to_bytes(8, "big")',
        'key=b""',
        ("packages/dragoman/tests/engines/batching/test_blocks.py",),
    ),
    Mutant(
        "two responses run in one conversation at once",
        "packages/dragoman/src/dragoman/serving/routes/responses/turn.py",
        "conversation_lock = conversation_locks.acquire(owner, responses_call.conversation)",
        "conversation_lock = None",
        ("packages/dragoman/tests/serving/responses/test_conversations.py",),
    ),
    # Background work, control of engines, and further dialects.
    Mutant(
        "a batch repeats all of its requests after a restart",
        "packages/dragoman/src/dragoman/serving/openai_batch_job.py",
        "if line.custom_id not in done_ids:",
        "if True:",
        ("packages/dragoman/tests/serving/test_batches.py",),
    ),
    Mutant(
        "a batch fails its requests when the engine is full",
        "packages/dragoman/src/dragoman/serving/durable_jobs.py",
        "_OVERLOADED_STATUSES = frozenset({429, 503, 529})",
        "_OVERLOADED_STATUSES = frozenset({429})",
        ("packages/dragoman/tests/serving/test_batches.py",),
    ),
    Mutant(
        "batches run before interactive requests",
        "packages/dragoman/src/dragoman/serving/call_admission.py",
        "request.priority + BACKGROUND_PRIORITY_OFFSET if caller.is_background",
        "request.priority if caller.is_background",
        ("packages/dragoman/tests/serving/test_batches.py",),
    ),
    Mutant(
        "a thread continues without the turn that was deleted in its middle",
        "packages/dragoman/src/dragoman/serving/routes/messages.py",
        "if chain is None or not chain.is_complete:",
        "if chain is None:",
        ("packages/dragoman/tests/serving/test_threads.py",),
    ),
    Mutant(
        "running sequences continue with the KV cache of the old weights, so that samples match "
        "no policy",
        "packages/dragoman/src/dragoman/engines/batching/stepper.py",
        "        self.scheduler.restart_all()\n        self.scheduler.disable_offload()\n",
        "        self.scheduler.disable_offload()\n",
        ("packages/dragoman/tests/engines/batching/test_control.py",),
    ),
    Mutant(
        "a trainer's path may be outside the directory that the operator configured",
        "packages/dragoman/src/dragoman/serving/routes/engine_control.py",
        "    if not location.is_relative_to(Path(root).resolve()):\n",
        "    if not location.is_absolute():\n",
        (
            "packages/dragoman/tests/serving/test_weights.py",
            "packages/dragoman/tests/serving/test_adapters.py",
        ),
    ),
    Mutant(
        "a bad word is sampled if masks are packed for a device",
        "packages/dragoman/src/dragoman/engines/batching/sampler.py",
        "        np.bitwise_and.at(packed, forbidden >> 3, ~(1 << (forbidden & "
        "7)).astype(np.uint8))\n",
        "",
        ("packages/dragoman/tests/engines/batching/test_sampler.py",),
    ),
    Mutant(
        "a response names only the weights that it started with",
        "packages/dragoman/src/dragoman/engines/batching/stepper.py",
        "                if sequence.version != self.version:\n",
        "                if sequence.version is None:\n",
        ("packages/dragoman/tests/engines/batching/test_control.py",),
    ),
    Mutant(
        "SGLang's clients expect cumulative text, but get only the new text",
        "packages/dragoman/src/dragoman/dialects/sglang/writer.py",
        "                state.text += text\n",
        "                state.text = text\n",
        ("packages/dragoman/tests/laws/test_sglang.py",),
    ),
    Mutant(
        "TGI's last token is sent before its finish reason is known, and an event without a token "
        "ends the stream",
        "packages/dragoman/src/dragoman/dialects/tgi/writer.py",
        "        reached_limit = limit is not None and self._count >= limit\n",
        "        reached_limit = limit is not None and self._count > limit\n",
        ("packages/dragoman/tests/dialects/tgi",),
    ),
    Mutant(
        "each of several TGI tokens in one delivery has the text of all of them",
        "packages/dragoman/src/dragoman/dialects/token_alignment.py",
        "        self._text = self._text[len(data) :]\n",
        "",
        ("packages/dragoman/tests/dialects/tgi", "packages/dragoman/tests/laws/test_tgi.py"),
    ),
    Mutant(
        "Ollama's clients get a tool call twice because a finished call stays open",
        "packages/dragoman/src/dragoman/dialects/ollama/writer.py",
        "        call = self._call\n"
        "        self._call = None\n"
        "        if call is None:\n"
        '            return b""\n'
        "        arguments",
        "        call = self._call\n"
        "        if call is None:\n"
        '            return b""\n'
        "        arguments",
        ("packages/dragoman/tests/laws/test_ollama.py",),
    ),
    Mutant(
        "Ollama's clients, which ignore done_reason, execute a call with truncated arguments",
        "packages/dragoman/src/dragoman/dialects/tool_input.py",
        "    if is_incomplete and not _is_object(arguments):\n",
        "    if is_incomplete and not arguments:\n",
        ("packages/dragoman/tests/laws/test_ollama.py",),
        quick=True,
    ),
    Mutant(
        "keep_alive of one request applies to all later loads of the model",
        "packages/dragoman/src/dragoman/pipeline/model_lifecycle.py",
        "        self._ttl = self.spec.ttl\n",
        "",
        ("packages/dragoman/tests/serving/test_ollama.py",),
    ),
    Mutant(
        "SGLang's clients get TGI's format",
        "packages/dragoman/src/dragoman/dialects/tgi/reader.py",
        "        return False\n    return True\n",
        "        return True\n    return True\n",
        ("packages/dragoman/tests/dialects/tgi", "packages/dragoman/tests/serving/test_tgi.py"),
    ),
    Mutant(
        "an executor that tokenizes a prompt again is accepted",
        "packages/dragoman/src/dragoman/engines/rollout_calls.py",
        "        if candidate.prompt_token_ids not in (None, call.prompt):\n",
        "        if False:\n",
        ("packages/dragoman/tests/engines/rollout",),
    ),
    Mutant(
        "weights are replaced during a call, so that its tokens match neither policy",
        "packages/dragoman/src/dragoman/engines/rollout_control.py",
        "            if self._control is None or not self._control.is_paused:\n",
        "            if False:\n",
        ("packages/dragoman/tests/engines/rollout",),
    ),
    Mutant(
        "a misspelled member of structured_outputs is silently ignored",
        "packages/dragoman/src/dragoman/dialects/constraint_fields.py",
        "    if outputs is not None and not constraints and outputs.close_at_limit is None:\n",
        "    if False:\n",
        ("packages/dragoman/tests/dialects/test_chat_reader.py",),
    ),
    Mutant(
        "a rejection that the engine reports late becomes a server error",
        "packages/dragoman/src/dragoman/pipeline/token_run.py",
        "                self.failure = error\n",
        "                self.failure = EngineError(error.message)\n",
        ("packages/dragoman/tests/pipeline/test_prompt_run.py",),
    ),
    # Direct delivery and caches of prompts.
    Mutant(
        "tokens overtake those that are buffered for a slow reader",
        "packages/dragoman/src/dragoman/http/exchange.py",
        "self.can_write = not is_paused and self._framing is not None",
        "self.can_write = self._framing is not None",
        ("packages/dragoman/tests/http/test_direct_write.py",),
    ),
    Mutant(
        "a token is written before the headers",
        "packages/dragoman/src/dragoman/http/exchange.py",
        '        self._pending = b""\n        self.can_write = False\n',
        '        self._pending = b""\n        self.can_write = True\n',
        ("packages/dragoman/tests/http/test_direct_write.py",),
    ),
    Mutant(
        "headers without an immediate body are never sent",
        "packages/dragoman/src/dragoman/http/exchange.py",
        "        self._context.loop.call_soon(self.flush)\n",
        "",
        ("packages/dragoman/tests/http/test_direct_write.py",),
    ),
    Mutant(
        "a directly delivered response never ends if its last choice ends at a stop string",
        "packages/dragoman/src/dragoman/pipeline/driver.py",
        "        if run.has_ended or run.failure is not None or self._failure is not None:",
        "        if run.failure is not None or self._failure is not None:",
        (DIRECT,),
    ),
    Mutant(
        "an error of one response's pipeline during direct delivery is lost",
        "packages/dragoman/src/dragoman/pipeline/driver.py",
        "        except Exception as error:\n            self._failure = error\n        if run",
        "        except Exception:\n            pass\n        if run",
        (DIRECT,),
    ),
    Mutant(
        "the stored response lacks the tokens that were delivered directly",
        "packages/dragoman/src/dragoman/pipeline/driver.py",
        "            if batch and (feed is None or (batch := feed(batch))):",
        "            if batch:",
        (DIRECT,),
    ),
    Mutant(
        "simulated front-end time is added to the server's own (ours)",
        "packages/dragoman-sim/src/dragoman_sim/engine/timer_queue.py",
        "return now if loop_time is None else",
        "return now if self else",
        ("packages/dragoman-sim/tests/engine/test_arrival.py",),
    ),
    Mutant(
        "uvloop spins until a step is due (ours)",
        "packages/dragoman-sim/src/dragoman_sim/engine/timer_queue.py",
        "_TOLERANCE = 0.000502",
        "_TOLERANCE = 0.000002",
        ("packages/dragoman-sim/tests/engine/test_timer_queue.py",),
    ),
    Mutant(
        "owners share cached token ids of prompts",
        "packages/dragoman/src/dragoman/prompts/encoding_cache.py",
        "                key = (owner, begins and index == 0, text)",
        '                key = ("", begins and index == 0, text)',
        ("packages/dragoman/tests/prompts/test_tokenizer.py",),
    ),
    Mutant(
        "a piece within a prompt gets the cached token ids of one that begins a prompt",
        "packages/dragoman/src/dragoman/prompts/encoding_cache.py",
        "                key = (owner, begins and index == 0, text)",
        "                key = (owner, False, text)",
        ("packages/dragoman/tests/prompts/test_tokenizer.py",),
    ),
    Mutant(
        "Prometheus gets other metric names than the dashboard uses",
        "packages/dragoman/src/dragoman/serving/metrics_registry.py",
        '        options["escaping"] = ALLOWUTF8',
        "        pass",
        ("packages/dragoman/tests/serving/test_metrics.py",),
    ),
    Mutant(
        "the generation prompt counts as part of the conversation before it",
        "packages/dragoman/src/dragoman/prompts/chat_template.py",
        "last.elif_ or last.else_ or len(reads) != 1",
        "last.elif_ or len(reads) != 1",
        ("packages/dragoman/tests/prompts/test_render.py",),
    ),
)


def main(arguments: list[str]) -> int:
    options = _parse_options(arguments)
    _check_up_to_date()
    first, step = map(int, options.share.split("/"))
    candidates = [pair for pair in enumerate(MUTANTS) if pair[1].quick or not options.quick]
    selected: list[tuple[int, Mutant]] = []
    for i, mutant in candidates[first::step]:
        if not _is_selected(i, mutant, options.patterns):
            continue
        if mutant.needs and find_spec(mutant.needs) is None:
            print(f"{i:3} SKIPPED, as {mutant.needs} is not installed: {mutant.bug}")
        else:
            selected.append((i, mutant))
    tests = sorted({test for _, mutant in selected for test in mutant.tests})
    n_threads = os.cpu_count() or 1
    n_missed = 0
    # Each run has its own copy of the tree, so parallel runs do not interfere.
    with ThreadPoolExecutor(n_threads) as pool:
        if not options.suite_passed and (
            failed := [
                name
                for names in pool.map(_find_failures_without_mutant, _split_tests(tests, n_threads))
                for name in names
            ]
        ):
            print(f"the tests fail without any mutant: {', '.join(failed)}")
            return 1
        results = pool.map(_try_mutant, (mutant for _, mutant in selected))
        for (i, mutant), (failed, seconds) in zip(selected, results, strict=True):
            n_missed += not failed
            verdict = "CAUGHT" if failed else "MISSED"
            print(
                f"{i:3} {verdict} {seconds:4.0f} s  {mutant.bug}  <- {', '.join(failed)}",
                flush=True,
            )
    print(f"{len(selected) - n_missed} of {len(selected)} caught")
    return 1 if n_missed else 0


def _parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/mutants.py", description="Run mutation tests.")
    parser.add_argument(
        "patterns",
        nargs="*",
        help="a number, or a text that the file or the description of a mutant contains",
    )
    parser.add_argument("--all", action="store_true", help="run all mutants")
    parser.add_argument("--quick", action="store_true", help="run the sample of quick mutants")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="run each Nth, from number I")
    parser.add_argument(
        "--suite-passed",
        action="store_true",
        help="do not run the tests without a mutant: the suite has just passed",
    )
    options = parser.parse_args(arguments)
    if not (options.all or options.quick or options.patterns):
        parser.error("give --quick, --all or patterns")
    return options


def _split_tests(tests: list[str], count: int) -> list[tuple[str, ...]]:
    """Distribute the tests over at most `count` shares with about the same number of
    files; no test runs twice.
    """
    shares: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    n_files = {test: 1 + len(list((ROOT / test).rglob("test_*.py"))) for test in tests}
    for test in sorted(tests, key=lambda test: -n_files[test]):
        if not any(test.startswith(f"{other}/") for other in tests):
            smallest = sizes.index(min(sizes))
            shares[smallest].append(test)
            sizes[smallest] += n_files[test]
    return [tuple(share) for share in shares if share]


def _find_failures_without_mutant(tests: tuple[str, ...]) -> list[str]:
    with _copy_tree() as tree:
        return _run_tests(tree, tests, 10 * TIMEOUT)


def _try_mutant(mutant: Mutant) -> tuple[list[str], float]:
    """Return the tests that found the bug, and the duration in seconds."""
    started_at = time.monotonic()
    with _copy_tree() as tree:
        path, source = _mutate(tree, mutant)
        path.write_text(source)
        failed = _run_tests(tree, mutant.tests)
    return failed, time.monotonic() - started_at


def _check_up_to_date() -> None:
    """Check all mutants before the long run: a mutant that changes nothing would prove
    nothing.
    """
    for mutant in MUTANTS:
        _mutate(ROOT, mutant)


def _mutate(tree: Path, mutant: Mutant) -> tuple[Path, str]:
    """Return the path of the mutant's file and the file's mutated source."""
    path = tree / mutant.file
    source = path.read_text()
    if (count := source.count(mutant.old)) != 1:
        raise SystemExit(
            f"out of date: {mutant.bug!r}: its text occurs {count} times in {mutant.file}, "
            f"expected once"
        )
    return path, source.replace(mutant.old, mutant.new)


def _is_selected(number: int, mutant: Mutant, patterns: list[str]) -> bool:
    text = f"{mutant.file} {mutant.bug}"
    return not patterns or any(
        pattern == str(number) if pattern.isdigit() else pattern in text for pattern in patterns
    )


@contextmanager
def _copy_tree() -> Generator[Path]:
    """Copy the tree to a temporary directory, which is deleted on exit."""
    with tempfile.TemporaryDirectory(prefix="dragoman-mutant-") as directory:
        tree = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=IGNORED)
            else:
                shutil.copy(source, tree / name)
        yield tree


def _run_tests(tree: Path, tests: tuple[str, ...], timeout: float = TIMEOUT) -> list[str]:
    """Return the names of the tests that failed. Exit if tests cannot be collected."""
    sources = os.pathsep.join(str(source) for source in sorted(tree.glob("packages/*/src")))
    environment = {**os.environ, "PYTHONPATH": sources, "HYPOTHESIS_PROFILE": "mutants"}
    options = ["-q", "-x", "-m", QUICK_TESTS, "-p", "no:cacheprovider", "--tb=no"]
    # A worker, which has a session of its own and is kept busy by a mutant, would
    # outlive the tests and occupy a core.
    limited = ["sh", "-c", f'ulimit -t {int(timeout) * (os.cpu_count() or 1)}; exec "$@"', "sh"]
    try:
        done = subprocess.run(
            [*limited, sys.executable, "-m", "pytest", *options, *tests],
            cwd=tree, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ["timeout"]
    if done.returncode in _NO_TEST_RAN:
        # The copy lacks something that a module imports, the mutant is not valid
        # Python, or no test is left after the marker expression.
        raise SystemExit(f"no test ran of {', '.join(tests)}:\n{done.stdout}{done.stderr}")
    return list(_find_failed_tests(done.stdout)) or (
        [done.stdout + done.stderr] if done.returncode else []
    )


def _find_failed_tests(output: str) -> Iterator[str]:
    for match in re.finditer(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE):
        yield match.group(1).split("::")[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
