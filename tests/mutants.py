"""Mutation tests: plant known bugs in a copy of the source, one at a time, and check
that the tests find each.

Most of the bugs are real ones of comparable servers. Each mutant replaces one text of a
source file and runs its tests. If the file does not contain that text exactly once, the
mutant is out of date and the run fails. The exit status is 1 if a bug was not found.
pytest does not collect this file.

    python tests/mutants.py             all mutants
    python tests/mutants.py chat 17     mutants whose file or description contains "chat", and number 17
"""

from __future__ import annotations

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
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "tests", "docs", "pyproject.toml")
IGNORED = shutil.ignore_patterns(".hypothesis", ".pytest_cache", "node_modules")
"""Names that are not copied. Byte code is copied, because it stays valid for all files
but the mutated one.
"""
TIMEOUT = 120
"""Seconds for the tests of a mutant. A bug that makes them hang counts as found."""
SUITE_PASSED_OPTION = "--suite-passed"
"""The suite has just passed, so the tests are not run without a mutant."""
SHARE_OPTION = "--share="
"""`--share=I/N` runs every Nth mutant, starting at number I."""
QUICK_TESTS = "not (long or torch or mlx or vllm or clients)"
"""A pytest marker expression: the other tests are slow and find none of these bugs."""


class Mutant(NamedTuple):
    """A bug to plant.

    bug: a description, followed by the servers that had the bug, in parentheses.
    file: a path relative to src/dragoman.
    old: the text to replace; it occurs in the file exactly once.
    new: the replacement.
    tests: files, directories or pytest node ids; at least one of the tests must fail.
    """

    bug: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


CHAT = "tests/laws/test_chat.py"
COMPLETIONS = "tests/laws/test_completions.py"
GOLDEN = "tests/golden"
TRAPS = "tests/dialects/test_traps.py"
CLIENTS = "tests/dialects/test_clients.py"
BODY = "tests/dialects/test_body.py"
READER = "tests/dialects/test_chat_reader.py"
PARAMETERS = "tests/dialects/test_all_parameters.py"
RESPONSES = "tests/laws/test_responses.py"
STREAMS = "tests/dialects/responses"
UPSTREAM = "tests/engines/upstream"
FUZZ = "tests/dialects/test_fuzz.py"
PARSERS = "tests/parsers"
SERVING = "tests/serving"
LLAMACPP = "tests/engines/llamacpp"
REMOTE = "tests/engines/remote"
SIMULATOR = "tests/engines/simulator"
RECORDING = "tests/recording"
DIRECT = "tests/serving/test_direct_delivery.py"
SCHEMAS = "tests/pipeline/test_unenforced_schemas.py"
NESTED = "tests/dialects/test_nested_fields.py"
NAMES = "tests/serving/test_field_names.py"
WARNINGS = "tests/serving/test_warnings.py"
UNMATCHED = "tests/serving/test_unmatched_results.py"

MUTANTS = (
    Mutant(
        "sequences keep their KV blocks after their front end has died (vLLM's API servers)",
        "engines/remote/server.py",
        "        for id in ids:\n            self._hosted.engine.abort(id)\n",
        "",
        (REMOTE,),
    ),
    Mutant(
        "streams hang forever after the engine process has died (vLLM's front ends)",
        "engines/remote/client.py",
        "        self._client.lose_connection(self)\n",
        "",
        (REMOTE,),
    ),
    Mutant(
        "only the front end that loaded an adapter knows it (vLLM's API servers)",
        "engines/remote/server.py",
        "        self._server.broadcast_state()\n        self._send(CallResult(",
        "        self._send(CallResult(",
        (REMOTE,),
    ),
    Mutant(
        "schema keywords that no mask enforces are silently dropped (ours, vLLM's)",
        "pipeline/sampling.py",
        "        warnings.append(relaxation.text)",
        "        pass",
        (SCHEMAS,),
    ),
    Mutant(
        "a string's `format` is silently dropped where arguments are written one by one (ours)",
        "parsers/tool_parameters.py",
        '        list_unenforced(schema, "type", "pattern", "minLength", "maxLength", '
        "*_NO_TEXT_KEYWORDS),",
        "        (),",
        (SCHEMAS,),
    ),
    Mutant(
        "unknown fields below the top level are silently ignored (all servers)",
        "dialects/parameter_table.py",
        "(*unknown, *nested)[:MAX_UNKNOWN]",
        "unknown",
        (NESTED,),
    ),
    Mutant(
        "a prefix that the response must continue is treated as a finished turn (ours)",
        "dialects/chat/reader.py",
        "            param = param or flag",
        "            pass",
        (NESTED,),
    ),
    Mutant(
        "an error names a field that the client did not send (ours)",
        "serving/generate.py",
        "        error.is_translated = True\n",
        "        pass\n",
        (NAMES,),
    ),
    Mutant(
        "the results of a batch lose their warnings (ours)",
        "serving/internal_client.py",
        'WARNINGS_HEADER: "body"',
        'WARNINGS_HEADER: "none"',
        (WARNINGS,),
    ),
    Mutant(
        "a tool result without a matching call is accepted (ours, vLLM's)",
        "pipeline/admission.py",
        "part.answers_call and part.call_id not in call_ids",
        "part.answers_call and not part.call_id",
        (UNMATCHED,),
    ),
    Mutant(
        "an engine that was paused once counts as full forever (ours, for an hour)",
        "pipeline/prompt_run.py",
        "        except QueueFull:",
        "        except DragomanError:",
        ("tests/engines/rollout/test_rollout.py",),
    ),
    # Assignment of tokens to events.
    Mutant(
        "delimiter tokens are listed as content tokens (the joined logprobs are longer than the "
        "content)",
        "parsers/base.py",
        "        pending = self._pending_tokens if call else map(_as_markup, "
        "self._pending_tokens)\n",
        "        pending = self._pending_tokens\n",
        ("tests/parsers/test_think.py",),
    ),
    Mutant(
        "the last reasoning token counts as content (ours: reasoning_tokens is one short)",
        "parsers/base.py",
        "        released = -1 if drop or not size else self.released\n",
        "        released = -1\n",
        ("tests/parsers/test_think.py",),
    ),
    Mutant(
        "a token that a stop string truncates is listed with its whole text",
        "dialects/logprobs.py",
        "        if own.startswith(text):\n",
        "        if False:\n",
        ("tests/dialects/test_content_tokens.py",),
    ),
    Mutant(
        "OpenAI's logprobs include reasoning, delimiters and the end token (as vLLM's do)",
        "dialects/chat/writer.py",
        "        if self._lists_all_tokens:\n            listed = [",
        "        if True:\n            listed = [",
        ("tests/dialects/test_traps.py",),
    ),
    Mutant(
        'the content of a response with only tool calls is "" in the stream, but null in the '
        "object",
        "dialects/chat/writer.py",
        'b\',"content":""\' if self._is_vllm else b""',
        """b',"content":""'""",
        (CHAT,),
    ),
    Mutant(
        "finished choices are counted as requests (rates above 100 %)",
        "pipeline/metrics.py",
        "                if not self._open_choices:\n",
        "                if True:\n",
        ("tests/serving/test_metrics.py",),
    ),
    Mutant(
        "the simulator's reply to the same ids and seed depends on the dialect",
        "engines/simulator/reply_generator.py",
        "            enabled = draw < self._options.reasoning\n",
        "            enabled = rng.random() < self._options.reasoning\n",
        ("tests/engines/simulator/test_content.py",),
    ),
    # Malformed tool calls.
    Mutant(
        "a tool call inside unterminated reasoning is lost",
        "parsers/think.py",
        "            if marker in self._calls:\n",
        "            if False:\n",
        ("tests/parsers/test_broken_calls.py",),
    ),
    Mutant(
        "malformed arguments swallow all later calls",
        "parsers/delimited_calls.py",
        "        if mark_offset < 0:\n",
        "        if True:\n",
        ("tests/parsers/test_broken_calls.py",),
    ),
    Mutant(
        "a truncated function name is accepted as a call of a function with a shorter name",
        "parsers/delimited_calls.py",
        "not self._call.has_begun and reason is FinishReason.STOP:",
        "not self._call.has_begun:",
        ("tests/parsers/test_broken_calls.py",),
    ),
    # Settings.
    Mutant(
        "an option that the engine does not support is silently ignored (all servers with one "
        "list of options)",
        "launch/models.py",
        "    _warn_unsupported_names(settings, find_changed_settings(settings), *kinds)\n",
        "",
        ("tests/launch/test_engine_support.py",),
    ),
    # Browsers.
    Mutant(
        "any web page can send requests to a server on its visitor's machine (CSRF)",
        "serving/auth.py",
        "        if access is not Access.PUBLIC:\n",
        "        if access is Access.ADMIN:\n",
        ("tests/hardening/test_browsers.py",),
    ),
    Mutant(
        "an error on a path that two vendors share always has one vendor's format",
        "serving/endpoint.py",
        "        envelope.resolve(headers),\n",
        "        envelope,\n",
        ("tests/serving/test_routes.py",),
    ),
    Mutant(
        "a 404 below a dialect's path has another dialect's format",
        "serving/app.py",
        '            path = path.rpartition("/")[0]\n',
        "            return BY_CLIENT\n",
        ("tests/serving/test_routes.py",),
    ),
    Mutant(
        "a body without a content type is accepted as JSON: browsers send a Blob without a "
        "preflight",
        "serving/endpoint.py",
        'media_type = self.headers.get("content-type", "")\n',
        'media_type = self.headers.get("content-type", "application/json")\n',
        ("tests/hardening/test_browsers.py",),
    ),
    Mutant(
        "an image URL on another site can flush the cache: browsers send no Origin with it",
        "serving/cors.py",
        "        if origins or not sites or all(site in _OWN_SITES",
        "        if True or all(site in _OWN_SITES",
        ("tests/hardening/test_browsers.py",),
    ),
    Mutant(
        "a deeply nested body of an admin route causes a 500",
        "serving/routes/admin.py",
        "        check_text(data)\n",
        "",
        ("tests/hardening/test_admin_bodies.py",),
    ),
    Mutant(
        "any local user can connect to the socket file (uvicorn)",
        "launch/listener.py",
        "    umask = os.umask(0o777 & ~mode)\n",
        "    umask = os.umask(0)\n",
        ("tests/hardening/test_socket_file.py",),
    ),
    Mutant(
        "an upgrade request that is not a WebSocket handshake is never answered (uvicorn)",
        "http/connection.py",
        "                check_websocket(head)\n",
        "                pass\n",
        ("tests/hardening/test_websockets.py",),
    ),
    Mutant(
        "incomplete WebSocket messages do not count against the memory budget (uvicorn)",
        "launch/websocket.py",
        "        if self._count is not None and not self._count(pending):\n",
        "        if False:\n",
        ("tests/hardening/test_websockets.py",),
    ),
    Mutant(
        "an incomplete WebSocket message has no timeout",
        "launch/websocket.py",
        "        elif self._deadline is None:\n            self._begin_deadline()\n",
        "",
        ("tests/hardening/test_websockets.py",),
    ),
    Mutant(
        "a body may arrive one byte at a time forever",
        "http/connection.py",
        "        elif self._received_bytes >= limits.body_rate * limits.body:\n",
        "        elif self._received_bytes:\n",
        ("tests/hardening/test_connections.py",),
    ),
    Mutant(
        "the number of connections is unlimited",
        "http/connection.py",
        "        if not self._context.admit(self._address):\n",
        "        if not self._context.admit(self._address) and not self._address:\n",
        ("tests/hardening/test_connections.py",),
    ),
    Mutant(
        "a disconnect goes unnoticed while pipelined data is unread",
        "http/connection.py",
        "            self._set_deadline(self._timeouts.peek)\n\n    def _resume_reading",
        "\n    def _resume_reading",
        ("tests/hardening/test_connections.py",),
    ),
    Mutant(
        "a request target whose host differs from the Host header is accepted (RFC 9112, 3.2.2)",
        "http/head.py",
        "        if any(host != authority for host in hosts):\n",
        "        if False:\n",
        ("tests/hardening/test_connections.py",),
    ),
    # HTTP.
    Mutant(
        "a client that sends its headers byte by byte holds a connection forever (uvicorn, "
        "Slowloris)",
        "http/connection.py",
        "            if data and self._deadline is not self._timeouts.head:\n",
        "            if data:\n",
        ("tests/hardening/test_slow_clients.py",),
    ),
    Mutant(
        "data after an oversized chunk is parsed as another request (smuggling, such as "
        "CVE-2019-16786)",
        "http/head.py",
        '        if line != b"\\r\\n":\n            raise BadRequest(400, "One of the body',
        '        if False:\n            raise BadRequest(400, "One of the body',
        ("tests/hardening/test_smuggling.py",),
    ),
    Mutant(
        "a truncated response looks complete to an HTTP/1.0 client",
        "http/exchange.py",
        "connection.abort(hard=isinstance(self._framing, CloseDelimitedFraming))",
        "connection.abort(hard=False)",
        ("tests/http/test_connection.py",),
    ),
    Mutant(
        "an application that continues after its response writes into the next response",
        "http/exchange.py",
        "        self._is_complete, self._disconnect_callback = True, None\n        "
        "self._detach()\n",
        "        self._disconnect_callback = None\n",
        ("tests/http/test_connection.py",),
    ),
    Mutant(
        "an error response is lost because the connection closes while the client is still sending",
        "http/connection.py",
        "        self.transport.write_eof()\n",
        "        self._close()\n",
        ("tests/hardening/test_smuggling.py",),
    ),
    # Grammars.
    Mutant(
        "a response that the grammar closed at the token limit looks complete",
        "pipeline/prompt_run.py",
        "if reason is FinishReason.STOP and (choice.was_closed or ended.was_closed):",
        "if False:",
        ("tests/serving/test_closing.py",),
    ),
    Mutant(
        "a response that an engine in another process closed at the token limit looks complete",
        "pipeline/prompt_run.py",
        "(choice.was_closed or ended.was_closed)",
        "choice.was_closed",
        (REMOTE,),
    ),
    Mutant(
        "max_tokens truncates JSON that should be closed: the previous ending is assumed to fit "
        "always",
        "constraints/ending.py",
        "if candidate and len(candidate) <= left and _is_complete_after(state, candidate):",
        "if candidate:",
        ("tests/constraints/test_ending.py",),
    ),
    Mutant(
        "a tool call has undeclared arguments (llguidance and others that follow JSON Schema "
        "literally)",
        "constraints/lark.py",
        "closed_schema = close_schema(schema)",
        "closed_schema = schema",
        ("tests/constraints/test_strict_schema.py",),
    ),
    Mutant(
        "allOf schemas reject every object because each branch is closed",
        "constraints/lark.py",
        '"oneOf" in part or combines_schemas(part)',
        '"oneOf" in part',
        ("tests/constraints/test_strict_schema.py",),
    ),
    Mutant(
        "a 212-byte schema exhausts memory: multipleOf compiles to that many states (llguidance)",
        "constraints/schema.py",
        "        if max(_count_last_digit_units(multiple), _count_last_digit_units(common)) > "
        "MAX_MULTIPLE:\n",
        "        if False:\n",
        ("tests/constraints/test_bounded.py",),
    ),
    Mutant(
        "a grammar of unbounded cost is compiled in the server process (vLLM CVE-2025-48944)",
        "constraints/lark.py",
        "is_cheap = not self._costly and",
        "is_cheap =",
        ("tests/constraints/test_bounded.py",),
    ),
    Mutant(
        "a schema with combined subschemas counts as cheap because each keyword is cheap",
        "constraints/schema.py",
        "    if combines_schemas(part):\n",
        "    if False:\n",
        ("tests/constraints/test_bounded.py",),
    ),
    Mutant(
        "a grammar that exceeded the compile limits is compiled again",
        "constraints/bounded.py",
        "            self._rejected[digest] = message\n",
        "",
        ("tests/constraints/test_bounded.py",),
    ),
    # Worker processes.
    Mutant(
        "a grammar is compiled to the end after the client has disconnected",
        "workers/pool.py",
        "            attempt.cancel()\n            raise",
        "            raise",
        ("tests/workers/test_pool.py",),
    ),
    Mutant(
        "a worker call has no CPU time limit, and the wall-clock limit is much longer",
        "workers/child.py",
        "        _limit_time(setup.seconds)\n",
        "",
        ("tests/workers/test_pool.py",),
    ),
    Mutant(
        "a worker call has no memory limit",
        "workers/child.py",
        "        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n",
        "",
        ("tests/workers/test_pool.py",),
    ),
    Mutant(
        "the server's API keys are in the environment of the process that renders clients' "
        "templates",
        "workers/pool.py",
        ' if not name.startswith("DRAGOMAN_")',
        "",
        ("tests/workers/test_pool.py",),
    ),
    Mutant(
        "a 41-byte template produces 10 GB: `indent` charges its width once instead of per line "
        "(ours)",
        "prompts/sandbox.py",
        "lines * (len(width)",
        "(len(width)",
        ("tests/prompts/test_template.py",),
    ),
    # llama.cpp.
    Mutant(
        "tokens within characters that llama.cpp's stream omits are not requested again "
        "(llama.cpp)",
        "engines/llamacpp/completion_state.py",
        "self._schedule_completion(_NextCompletion(missing + len(tokens)))",
        "pass",
        (LLAMACPP,),
    ),
    Mutant(
        "a slot's cached prefix is reused for another owner's prompt",
        "engines/llamacpp/engine.py",
        "if not self._caching or slot_salt != salt:",
        "if not self._caching:",
        (LLAMACPP,),
    ),
    Mutant(
        "a token from llama.cpp that the grammar forbids is accepted",
        "engines/llamacpp/completion_state.py",
        "if token != self._current.forced and not token_filter.is_allowed(token, self.output):",
        "if False:",
        (LLAMACPP,),
    ),
    Mutant(
        "a slot's cached prefix is reused for a prompt with other images",
        "engines/llamacpp/engine.py",
        "    if not images:\n        return tokens\n",
        "    return tokens\n",
        (LLAMACPP,),
    ),
    Mutant(
        "control token names in user text beside an image become control tokens in llama.cpp",
        "engines/llamacpp/vision.py",
        "if await client.tokenize(candidate) == ids:",
        "if True:",
        (LLAMACPP,),
    ),
    # Hung engines.
    Mutant(
        "an engine with a hung step stays unready forever",
        "engines/batching/engine.py",
        "running=running, failed=has_failed)",
        "running=running)",
        ("tests/engines/batching/test_hanging.py",),
    ),
    # Media.
    Mutant(
        "prompts with different images share cached blocks",
        "engines/batching/blocks.py",
        'return blake2b(array("q", tokens).tobytes() + image_key,',
        'return blake2b(array("q", tokens).tobytes(),',
        ("tests/engines/batching",),
    ),
    Mutant(
        "one public address hides a private address of the same host (SSRF: vLLM CVE-2025-6242)",
        "serving/fetch.py",
        "not all(map(self._is_allowed, resolved))",
        "not any(map(self._is_allowed, resolved))",
        ("tests/hardening/test_ssrf.py",),
    ),
    Mutant(
        "a host name is resolved again for the connection (DNS rebinding)",
        "serving/fetch.py",
        "parsed.copy_with(host=str(resolved[0]), fragment=None)",
        "parsed.copy_with(fragment=None)",
        ("tests/hardening/test_ssrf.py",),
    ),
    Mutant(
        "a small file with a huge image is decoded (vLLM CVE-2026-22773)",
        "core/images.py",
        "if info.width * info.height > MAX_PIXELS:",
        "if info.width > MAX_PIXELS:",
        ("tests/core/test_image_info.py",),
    ),
    # The simulator and the server.
    Mutant(
        "a signal that arrives before the server listens is ignored",
        "launch/server.py",
        "        signal.signal(signal_number, server.handle_exit)\n",
        "        signal.signal(signal_number, signal.SIG_IGN)\n",
        ("tests/cli/test_cli.py",),
    ),
    Mutant(
        "the queue limit counts only requests, so that the queue holds hours of work",
        "pipeline/request_queue.py",
        "        excess_tokens = self.waiting_tokens + tokens - self._max_tokens if "
        "self.waiting_tokens else 0\n",
        "        excess_tokens = 0\n",
        ("tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "a rejection waits behind requests with paced starts (ours: p99 of 88 ms)",
        "serving/generate.py",
        "        model.queue.check_capacity(terms.queue_share)\n",
        "        if (turn := context.service.generation.start_limiter.acquire()):\n            "
        "await turn\n",
        ("tests/hardening/test_overload.py",),
    ),
    Mutant(
        "clients wait forever for an engine that failed without ending its streams",
        "pipeline/prompt_run.py",
        "            self._failure = error\n            self._interrupt()\n",
        "            self._failure = error\n",
        ("tests/hardening/test_dying_engines.py",),
    ),
    Mutant(
        "the error for a script that does not fit a schema does not name the field",
        "engines/script/validate_reply.py",
        'cannot be returned as requested: {error}.", param=param)',
        'cannot be returned as requested: {error}.")',
        ("tests/engines/test_every_engine.py",),
    ),
    Mutant(
        "an upstream's traceback is forwarded to the client",
        "engines/upstream/errors.py",
        '        message = _SERVER_ERRORS.get(status, "")\n',
        "",
        ("tests/engines/upstream/test_errors.py",),
    ),
    Mutant(
        "a plug-in's token count of -2 is passed on",
        "core/event_grammar.py",
        "        if type(count) is not int or count < 0:\n",
        "        if type(count) is not int:\n",
        ("tests/laws/test_core.py",),
    ),
    Mutant(
        "a prompt that will be truncated is first rendered whole, at any length",
        "pipeline/admission.py",
        "        if not isinstance(prompt, tuple):\n            check_countable(",
        "        if False:\n            check_countable(",
        ("tests/hardening/test_big_prompts.py",),
    ),
    Mutant(
        "one key fills the queue, and all others are rejected (ours: 2 of 21 requests served)",
        "pipeline/request_queue.py",
        "            if greedy is None or others[greedy][unit] / greedy.weight <= own_load[unit - "
        "1]:\n",
        "            if greedy is None or unit:\n",
        ("tests/pipeline/test_request_queue.py", "tests/hardening/test_fairness.py"),
    ),
    Mutant(
        "a key of weight 2 gets the share of weight 1",
        "pipeline/request_queue.py",
        "        self.served += tokens / self.weight\n",
        "        self.served += tokens\n",
        ("tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "a rate limit admits a fraction of a request too many because of rounding",
        "tenants/counters.py",
        "            retry_after = -(-missing // demand.limit)\n",
        "            retry_after = missing // demand.limit\n",
        ("tests/tenants/test_counters.py",),
    ),
    Mutant(
        "a request that the token limit rejects still counts against the request limit",
        "serving/tenancy.py",
        "                self.add(tenant, {REQUESTS: -1})\n",
        "",
        ("tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "a cancelled request never releases its concurrency slot",
        "serving/tenancy.py",
        "tenancy.add(tenant, {CONCURRENCY: -1, ",
        "tenancy.add(tenant, {",
        ("tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "a batch of counts is added twice if the response to it was lost",
        "tenants/shared.py",
        "            redo = ()\n",
        "            pass\n",
        ("tests/tenants/test_shared.py",),
    ),
    Mutant(
        "the concurrency slots of a killed process are never released",
        "tenants/shared.py",
        "if id not in live]",
        "if False]",
        ("tests/tenants/test_shared.py",),
    ),
    Mutant(
        "the usage of another process is overwritten instead of added to",
        "serving/usage.py",
        "            merged: HourUsage = {} if record is None else _decode(record)\n",
        "            merged: HourUsage = {}\n",
        ("tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "a key can use a forbidden model by its name",
        "pipeline/models.py",
        "            slot = None  # The error must not reveal models that the API key may not "
        "use.\n",
        "            pass\n",
        ("tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "an upstream starts a new trace",
        "serving/call_observer.py",
        "            CURRENT_SPAN.set(self._span_context)\n",
        "            pass\n",
        ("tests/telemetry/test_traces.py",),
    ),
    Mutant(
        "FIFO order: other keys wait behind all requests of a greedy one",
        "pipeline/request_queue.py",
        "    return is_background, owner.served, arrival\n",
        "    return is_background, 0, arrival\n",
        ("tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "a key that was idle is served exclusively until it has caught up with the others",
        "pipeline/request_queue.py",
        "            owner.served = max(owner.served, min(present, default=0))\n",
        "            pass\n",
        ("tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "all callers share one queue: keys do not get fair shares of the engine",
        "serving/tenancy.py",
        "        return QueueShare(owner, 1.0 if tenant is None else tenant.weight)\n",
        "        return ONE_QUEUE\n",
        ("tests/hardening/test_fairness.py",),
    ),
    Mutant(
        "a plug-in or upstream gets unlimited concurrent requests (ours: --max-num-seqs ignored)",
        "pipeline/request_queue.py",
        "        self._concurrency = slots if limits_concurrency else None\n",
        "        self._concurrency = None\n",
        ("tests/pipeline/test_request_queue.py", "tests/hardening/test_fairness.py"),
    ),
    Mutant(
        "each body has a size limit, but not all of them together (vLLM CVE-2025-48956)",
        "serving/body.py",
        "        if size > self._reserved and used_by_others and used_by_others + size > "
        "budget.limit:\n",
        "        if used_by_others < 0:\n",
        ("tests/hardening/test_body_sizes.py",),
    ),
    Mutant(
        "tokenizing a megabyte blocks all other requests: the library holds the GIL",
        "prompts/tokenizer.py",
        "        if len(text) > MAX_UNSHARED_CHARS:\n",
        "        if len(text) < 0:\n",
        ("tests/hardening/test_big_prompts.py",),
    ),
    Mutant(
        "a server that is shutting down accepts new requests and then aborts them",
        "pipeline/models.py",
        "        if self.is_closed:\n",
        "        if not self._slots:\n",
        ("tests/hardening/test_stopping.py",),
    ),
    Mutant(
        "a server that gets a stop signal closes its listener at once (uvicorn)",
        "launch/server.py",
        "        while not self.force_exit:\n",
        "        while False:\n",
        ("tests/hardening/test_stopping.py",),
    ),
    Mutant(
        "a closed port stays open in the kernel: new connections wait instead of being refused",
        "launch/port_faults.py",
        "                    listener.close()\n                else:\n",
        "                    self._listener = listener\n                else:\n",
        ("tests/launch/test_port_faults.py",),
    ),
    Mutant(
        "closing one port of a process aborts the streams of all ports",
        "launch/port_faults.py",
        'if transport.get_extra_info("sockname")[1] != self.port:',
        "if connection is None:",
        ("tests/launch/test_port_faults.py",),
    ),
    Mutant(
        "a server that is shutting down answers all queued WebSocket frames before it closes the "
        "connection",
        "serving/routes/responses/websocket.py",
        "while not self._is_finishing and (data",
        "while (data",
        ("tests/serving/responses/test_websocket.py",),
    ),
    Mutant(
        "a context edit is applied although it saves less than `clear_at_least`",
        "pipeline/prompt_encoding.py",
        "if saved_tokens >= least_saved:",
        "if saved_tokens > 0:",
        ("tests/pipeline/test_context_edits.py",),
    ),
    Mutant(
        "tool results that are excluded from clearing are cleared",
        "pipeline/prompt_encoding.py",
        "if names.get(id) not in edit.exclude}",
        "}",
        ("tests/pipeline/test_context_edits.py",),
    ),
    Mutant(
        "the stream does not report the applied edits, but the object does",
        "dialects/anthropic/writer.py",
        "                self._applied_edits = event.edited\n",
        "",
        ("tests/laws/test_anthropic.py",),
    ),
    Mutant(
        "a llama.cpp slot counts as holding a prompt that was aborted before it was sent",
        "engines/llamacpp/engine.py",
        "sequence.keys if sequence.has_begun else ()",
        "sequence.keys",
        (LLAMACPP,),
    ),
    Mutant(
        "two instances of a process publish their events on the same port",
        "launch/instances.py",
        "        ranks += instance_settings.data_parallel_size\n",
        "",
        ("tests/launch/test_instances.py",),
    ),
    Mutant(
        "the data parallel rank that a router requests is ignored",
        "engines/simulator/rank.py",
        "            return ranks[requested]\n",
        "",
        (f"{SIMULATOR}/test_steering.py",),
    ),
    Mutant(
        "every HTTP method that a client invents creates a metrics series",
        "serving/http_metrics.py",
        '        method = method if method in _METHODS else "other"\n',
        "",
        ("tests/serving/test_metrics.py",),
    ),
    Mutant(
        "a late driver delays all later steps, so that times drift (a sleep per token)",
        "engines/simulator/engine_core.py",
        "        return StepOutcome(flight.ends, flight.begins",
        "        return StepOutcome(now, flight.begins",
        (f"{SIMULATOR}/test_defects.py",),
    ),
    Mutant(
        "an error message in the request log quotes the prompt",
        "serving/request_log.py",
        "type(error).__name__",
        "str(error)",
        (f"{SERVING}/test_request_log.py",),
    ),
    Mutant(
        "a request keeps its slot after its client has disconnected (xPyD-sim)",
        "engines/simulator/engine.py",
        "        self._rank_of.pop(id).abort(live, self._now())\n",
        "        self._rank_of.pop(id)\n",
        ("tests/engines/simulator/test_content.py",),
    ),
    Mutant(
        "when one of two equal blocks is evicted, routers are told that both are",
        "engines/simulator/kv_events.py",
        "                    if not self._copies[block_hash]:\n                        del "
        "self._copies[block_hash]\n",
        "                    if True:\n                        self._copies.pop(block_hash, "
        "None)\n",
        ("tests/engines/simulator/test_kv_events.py",),
    ),
    Mutant(
        "blocks that no instance fetches are held forever",
        "engines/simulator/disaggregation.py",
        "        self._call_at(at + self._context.lease_seconds, self._expire)\n",
        "",
        ("tests/engines/simulator/test_transfers.py",),
    ),
    Mutant(
        "any sender can free the blocks that a prefill holds",
        "engines/simulator/kv_events.py",
        "if hmac.compare_digest(notice.seal.encode(), expected.encode()):",
        "if expected:",
        ("tests/engines/simulator/test_transfers.py",),
    ),
    # Loading and unloading models.
    Mutant(
        "a model is unloaded while it generates",
        "pipeline/lifecycle.py",
        "await self._wait_until(lambda: not self._n_users)",
        "self._n_users = 0",
        ("tests/pipeline/test_models.py",),
    ),
    Mutant(
        "an engine that fails to start is restarted forever without a backoff",
        "pipeline/lifecycle.py",
        "self.retry_at = now + min(MAX_BACKOFF, MIN_BACKOFF * 2**self._n_failures)",
        "self.retry_at = now",
        ("tests/pipeline/test_models.py",),
    ),
    # Embeddings, and fields that are passed through.
    Mutant(
        "base64 is ignored: vectors have a quarter of their dimensions (litellm#42426)",
        "dialects/embeddings.py",
        'body.encoding_format == "base64",',
        "False,",
        ("tests/dialects/embeddings",),
    ),
    Mutant(
        "a shortened vector is not normalized again",
        "engines/arrays.py",
        "length = np.sqrt(doubles @ doubles)",
        "length = np.linalg.norm(vector.astype(np.float64))",
        ("tests/engines/encoder",),
    ),
    Mutant(
        "a call with one text waits for an earlier call with a thousand texts",
        "engines/arrays.py",
        "                self._calls.append(call)",
        "                self._calls.appendleft(call)",
        ("tests/engines/arrays",),
    ),
    Mutant(
        "a caller sees another caller's prompt",
        "pipeline/prompt_encoding.py",
        "self._prompts.get((owner, model), ())",
        "next(iter(self._prompts.values()), ())",
        ("tests/pipeline/test_recent_prompts.py",),
    ),
    Mutant(
        "a parser loses kv_transfer_params",
        "parsers/base.py",
        "msgspec.structs.replace(event, tokens=(*pending, *tokens)) if pending else event",
        "msgspec.structs.replace(event, kv_transfer_params=None, tokens=(*pending, *tokens))",
        ("tests/serving/test_kv_transfer.py",),
    ),
    # Offline simulation and recordings.
    Mutant(
        "fetched blocks are held forever",
        "engines/simulator/disaggregation.py",
        "if sequence is not None:",
        "if sequence is not None and entry is not None:",
        (f"{SIMULATOR}/test_disaggregation.py",),
    ),
    Mutant(
        "a fetched prompt waits behind one that waits for its blocks: deadlock",
        "engines/simulator/scheduler.py",
        "if self._ready_to_resume and not self._resume_fetched(step, loras):",
        "if not self._waiting and not self._resume_fetched(step, loras):",
        (f"{SIMULATOR}/test_disaggregation.py",),
    ),
    Mutant(
        "more adapters than max_loras run at once",
        "engines/simulator/scheduler.py",
        "len(loras) >= self.config.max_loras",
        "len(loras) > self.config.max_loras",
        (f"{SIMULATOR}/test_scheduler.py",),
    ),
    Mutant(
        "a freed block without contents is evicted after cached ones",
        "engines/simulator/blocks.py",
        "free.move_to_end(block, last=False)",
        "free.move_to_end(block)",
        (f"{SIMULATOR}/test_blocks.py",),
    ),
    Mutant(
        "sleeping between the chunks makes a replayed stream drift (llm-d-inference-sim)",
        "recording.py",
        "delay = started_at + offset / self._time_scale - asyncio.get_running_loop().time()",
        "delay = offset / self._time_scale",
        (RECORDING,),
    ),
    Mutant(
        "API keys are written into recordings",
        "recording.py",
        "return [(name, value) for name, value in raw if name.lower() in RECORDED_REQUEST_HEADERS]",
        "return [(name, value) for name, value in raw]",
        (RECORDING,),
    ),
    Mutant(
        "the held-out error of a fit is computed over the requests of the fit",
        "simulation/calibrate.py",
        "held_out = [timing for timing in measured if timing.id not in excluded]",
        "held_out = [timing for timing in measured if timing.id in excluded]",
        ("tests/simulation/test_accuracy.py::test_fit_ignores_held_out_requests",),
    ),
    # The upstream engine.
    Mutant(
        "a stream that breaks off counts as a short response (guidellm, LangChain, litellm)",
        "engines/upstream/chunk_reader.py",
        "if not self.has_started or not all(choice.is_finished for choice in self._choices):",
        "if not self.has_started:",
        (UPSTREAM,),
    ),
    Mutant(
        "a request fails on an idle connection that the upstream has closed",
        "engines/upstream/engine.py",
        "if index is None and isinstance(last_error, ConnectionClosed):",
        "if index is None and not last_error:",
        (f"{UPSTREAM}/test_engine.py",),
    ),
    Mutant(
        "a truncated body counts as complete",
        "http_client/connection.py",
        "if response is not None and self._framing is BodyFraming.CLOSE and exc is None:",
        "if response is not None and exc is None:",
        ("tests/http_client/test_responses.py",),
    ),
    Mutant(
        "bytes after a response are parsed as the next response",
        "http_client/connection.py",
        "        if not is_exact:\n",
        "        if False:\n",
        ("tests/http_client/test_responses.py",),
    ),
    Mutant(
        "interleaved tool calls are emitted in the order of their deltas",
        "engines/upstream/chunk_reader.py",
        "if len(self._queue) == 1 or not head.name or not head.is_complete:",
        "if len(self._queue) == 1:",
        (UPSTREAM,),
    ),
    Mutant(
        "an upstream's error about our API key is forwarded to clients, including the key",
        "engines/upstream/errors.py",
        "if status in (401, 402, 403, 407) or 300 <= status < 400:",
        "if 300 <= status < 400:",
        (UPSTREAM,),
    ),
    # The chat writer.
    Mutant(
        "the stream does not start with role chunks: choices appear as their text arrives "
        "(LightLLM, vLLM)",
        "dialects/chat/writer.py",
        'return b"" if self._awaits_prompt else self._render_roles(None)',
        'return b""',
        (CHAT,),
    ),
    Mutant(
        "the stream lacks the logprobs that the object has (xPyD-sim)",
        "dialects/chat/writer.py",
        'self._render_logprobs(scored) if scored else b"null"',
        'b"null"',
        (CHAT,),
    ),
    Mutant(
        "trailing tokens have no logprobs in the object",
        "dialects/chat/writer.py",
        "return [*listed, *((False, token) for token in choice.trailing_tokens)]",
        "return listed",
        (CHAT,),
    ),
    Mutant(
        "tokens that released no text are lost",
        "dialects/chat/writer.py",
        "        tokens, state.pending_tokens = state.pending_tokens, []",
        "        tokens, state.pending_tokens = state.pending_tokens[-1:], []",
        (CHAT,),
    ),
    Mutant(
        "a refusal's tokens are listed as content",
        "dialects/chat/writer.py",
        "content_tokens = [token for refusal, token in tokens if not refusal]",
        "content_tokens = [token for _, token in tokens]",
        (CHAT,),
    ),
    Mutant(
        'finish_reason stays "stop" after a tool call in the stream',
        "dialects/chat/writer.py",
        "reason = self._render_reason(event.reason, self._get_state(event.choice).calls > 0)",
        "reason = self._render_reason(event.reason, False)",
        (CHAT,),
    ),
    Mutant(
        "finish_reason is tool_calls in the object although the length limit cut the call off "
        "(vLLM)",
        "dialects/chat/writer.py",
        "reason = self._render_reason(choice.reason, choice.has_tool_calls) + "
        "self._render_stop(choice.stop)",
        "reason = (b'\"tool_calls\"' if choice.has_tool_calls else "
        "self._render_reason(choice.reason, False)) + self._render_stop(choice.stop)",  # noqa: E501
        (CHAT,),
    ),
    Mutant(
        "finish_reason is tool_calls although the length limit cut the call off (vllm#53269)",
        "dialects/chat/writer.py",
        "if reason is not FinishReason.STOP or not has_calls or self._options.is_named_choice:",
        "if not has_calls or self._options.is_named_choice:",
        (TRAPS, GOLDEN),
    ),
    Mutant(
        "finish_reason is tool_calls for a named function (vllm#25054)",
        "dialects/chat/writer.py",
        "if reason is not FinishReason.STOP or not has_calls or self._options.is_named_choice:",
        "if reason is not FinishReason.STOP or not has_calls:",
        (TRAPS, GOLDEN),
    ),
    Mutant(
        "all parallel tool calls have index 0 (litellm#33678, vercel/ai#14277)",
        "dialects/chat/writer.py",
        "if is_legacy else render_call_start(event, state.calls - 1)",
        "if is_legacy else render_call_start(event, 0)",
        (CHAT,),
    ),
    Mutant(
        "arguments are attached to the previous tool call",
        "dialects/chat/writer.py",
        "else render_call_arguments(event.arguments, state.calls - 1, state.is_custom)",
        "else render_call_arguments(event.arguments, max(0, state.calls - 2), state.is_custom)",
        (CHAT,),
    ),
    Mutant(
        "later deltas repeat the name field (lmstudio-bug-tracker#649)",
        "dialects/chat/writer.py",
        'return b\'"tool_calls":[{"index":%d,"%s":{"%s":%s}}]\' % (index, kind, field, '
        "encode_string(text))",
        'return b\'"tool_calls":[{"index":%d,"%s":{"name":"","%s":%s}}]\' % (index, kind, field, '
        "encode_string(text))",
        (CHAT,),
    ),
    Mutant(
        "every message has an empty list of tool calls (vllm#53255)",
        "dialects/chat/writer.py",
        "if calls and not legacy:",
        "if not legacy:",
        (CHAT,),
    ),
    Mutant(
        "the stream has one name for reasoning, and the object has two (vllm#42664)",
        "dialects/chat/writer.py",
        "fields = [render_reasoning(names, encode_string(text))] if text else []",
        "fields = [render_reasoning(names[:1], encode_string(text))] if text else []",
        (CHAT,),
    ),
    Mutant(
        "hidden reasoning appears in the object",
        "dialects/chat/writer.py",
        "if names and (reasoning or profile is Profile.VLLM):\n        "
        "fields.append(render_reasoning(names,",
        "if reasoning or profile is Profile.VLLM:\n        fields.append(render_reasoning(names "
        'or ("reasoning",),',
        (CHAT,),
    ),
    # Envelopes.
    Mutant(
        "the stream has a usage chunk that was not requested (LangChain.js doubles the tokens: "
        "litellm#28735)",
        "dialects/envelope.py",
        '        if not self._options.include_usage:\n            return b""\n',
        "",
        (CHAT,),
    ),
    Mutant(
        "usage counts events instead of tokens (xPyD-sim)",
        "dialects/envelope.py",
        "self._completion += len(tokens)",
        "self._completion += 1",
        (CHAT,),
    ),
    Mutant(
        'chunks before the last one lack `"usage": null`',
        "dialects/envelope.py",
        "null_usage = options.include_usage and options.profile is Profile.OPENAI",
        "null_usage = False",
        (TRAPS, GOLDEN),
    ),
    Mutant(
        "[DONE] follows an error in the stream",
        "dialects/envelope.py",
        'return b"data: %s\\n\\n" % render_openai_error(error, self._options.profile)',
        'return b"data: %s\\n\\n" % render_openai_error(error, self._options.profile) + DONE',
        (CLIENTS, GOLDEN),
    ),
    Mutant(
        "an aborted response looks complete",
        "dialects/envelope.py",
        "return b'\"length\"'",
        "return b'\"stop\"'",
        (GOLDEN,),
    ),
    Mutant(
        "U+2028 in the text breaks clients that split lines",
        "dialects/json_encoding.py",
        "return data if data.isascii() else escape_line_breaks(data)",
        "return data",
        (CHAT,),
    ),
    Mutant(
        "a logprob of minus infinity becomes null",
        "dialects/json_encoding.py",
        "return value if value is not None and math.isfinite(value) else UNKNOWN_LOGPROB",
        "return UNKNOWN_LOGPROB if value is None else value",
        (CHAT,),
    ),
    Mutant(
        "error bodies lack `param`",
        "dialects/errors.py",
        "class OpenAIErrorDetail(Struct, frozen=True):",
        "class OpenAIErrorDetail(Struct, frozen=True, omit_defaults=True, rename={'param': "
        "'parameter'}):",
        (GOLDEN, "tests/dialects/test_errors.py"),
    ),
    # The Completions writer.
    Mutant(
        "an echoed prompt goes to the choices of the first prompt",
        "dialects/completions.py",
        "choices = range(event.prompt * self._choices_per_prompt, (event.prompt + 1) * "
        "self._choices_per_prompt)",
        "choices = range(self._choices_per_prompt)",
        (COMPLETIONS,),
    ),
    Mutant(
        "text offsets restart in every chunk",
        "dialects/completions.py",
        "logprobs = self._render_logprobs(state.offsets, prompt, scored)",
        "logprobs = self._render_logprobs(self._create_offsets(), prompt, scored)",
        (COMPLETIONS,),
    ),
    Mutant(
        "the first token of an echoed prompt has a logprob",
        "dialects/logprobs.py",
        "self._build_row(token, offset) if rows else LogprobRow(offset, self._get_name(token), "
        "None, None)",
        "self._build_row(token, offset)",
        (CLIENTS,),
    ),
    Mutant(
        "the sampled token is not among its alternatives (lm-eval's is_greedy)",
        "dialects/logprobs.py",
        "for alternative in (token, *best) if self._sampled_first else (*best, token):",
        "for alternative in best or (token,):",
        (COMPLETIONS,),
    ),
    Mutant(
        "the response has more alternatives than requested",
        "dialects/logprobs.py",
        "for alternative in token.top[:top]\n        ]",
        "for alternative in token.top\n        ]",
        (CLIENTS, GOLDEN),
    ),
    # The readers.
    Mutant(
        "a deeply nested body is accepted",
        "dialects/body.py",
        "> MAX_DEPTH and _is_too_deep(data):",
        "> MAX_DEPTH and not data:",
        (BODY,),
    ),
    Mutant(
        "invalid UTF-8 is accepted in parts of the body that are not decoded",
        "dialects/body.py",
        "if not data.isascii():",
        "if not data:",
        (BODY, FUZZ),
    ),
    Mutant(
        "an error echoes a client's value at any length (vLLM's 23.6 MB of errors)",
        "dialects/body.py",
        'return repr(value) if len(value) <= MAX_ECHO else repr(value[:MAX_ECHO]) + "..."',
        "return repr(value)",
        (BODY,),
    ),
    Mutant(
        "unsupported fields are silently ignored",
        "dialects/parameter_table.py",
        "raise Unsupported(f\"'{name}' is not supported here: {row.note}.\", param=name)",
        "pass",
        (PARAMETERS,),
    ),
    Mutant(
        "a custom tool's regex is shown to the model but not enforced (ours, seen with the OpenAI "
        "SDK)",
        "parsers/tool_parameters.py",
        'if tool.syntax == "regex" and tool.definition is not None:',
        "if tool.definition is None:",
        ("tests/serving/test_embedded.py",),
    ),
    Mutant(
        "a text file is rejected if the engine does not accept files (vLLM; ours, seen with "
        "Anthropic's Files)",
        "serving/media.py",
        "replacements[file] = _decode_text(resolved.get(file, file)) or file",
        "replacements[file] = file",
        ("tests/serving/test_media.py",),
    ),
    Mutant(
        "Anthropic's clients get OpenAI's format on a path that both share (ours, seen with "
        "Anthropic's Files)",
        "dialects/anthropic/batches.py",
        'return "anthropic-version" in headers',
        "return False",
        ("tests/serving/test_anthropic_files.py",),
    ),
    Mutant(
        "file: URLs are accepted (LightLLM)",
        "dialects/body.py",
        'if scheme in ("http", "https"):',
        'if scheme in ("http", "https", "file"):',
        (READER,),
    ),
    Mutant(
        "tool_choice can force an undeclared function",
        "dialects/chat/messages.py",
        "if not any(tool.name == name and isinstance(tool, kind) for tool in tools):",
        "if not tools:",
        (READER,),
    ),
    Mutant(
        "one hosted tool causes the whole request to be rejected (llama.cpp#20156)",
        "dialects/chat/messages.py",
        'warnings.append(f"{path}: tools of type {abbreviate(hosted)} cannot be run here; it was '
        'left out")',
        "raise missing_parameter(path)",
        (TRAPS,),
    ),
    Mutant(
        "max_tokens overrides max_completion_tokens",
        "dialects/chat/reader.py",
        "max_tokens = body.max_tokens if body.max_completion_tokens is None else "
        "body.max_completion_tokens",
        "max_tokens = body.max_completion_tokens if body.max_tokens is None else body.max_tokens",
        (READER,),
    ),
    Mutant(
        "-1 is used as a token limit",
        "dialects/chat/reader.py",
        "None if max_tokens == -1 else max_tokens, max_tokens_name",
        "max_tokens, max_tokens_name",
        (READER,),
    ),
    Mutant(
        "only one field name of replayed reasoning is read",
        "dialects/chat/messages.py",
        "message.reasoning or message.reasoning_content or ",
        "message.reasoning or ",
        (TRAPS,),
    ),
    # Parsers.
    Mutant(
        "a delimiter that is split over two deltas leaks into the reasoning (no buffering)",
        "parsers/think.py",
        "ReasoningDelta, len(self._buffer) - "
        "self._end_patterns.pending_lengths[self._search_state]",
        "ReasoningDelta, len(self._buffer)",
        (PARSERS,),
    ),
    Mutant(
        "text that is still buffered at the end is dropped (LightLLM)",
        "parsers/think.py",
        "self._emit_buffered(ReasoningDelta if in_reasoning else TextDelta, len(self._buffer))",
        "self._drop(len(self._buffer))",
        (f"{PARSERS}/test_laws.py",),
    ),
    Mutant(
        "delimiter tokens are lost",
        "parsers/base.py",
        "self._pending_tokens.extend(self._buffer.pop(n, drop=True)[1])",
        "self._buffer.pop(n, drop=True)",
        (f"{PARSERS}/test_laws.py",),
    ),
    Mutant(
        "a malformed call is dropped instead of returned as text (LightLLM: 400 Failed to parse "
        "fc)",
        "parsers/call_parser.py",
        "elif call.is_undeclared or status is not ReadStatus.MORE:\n            "
        "self._emit_buffered(TextDelta, n)",
        "elif call.is_undeclared or status is not ReadStatus.MORE:\n            self._drop(n)",
        (PARSERS,),
    ),
    Mutant(
        "a partial start delimiter of a call leaks into the text (several parsers of vLLM)",
        "parsers/delimited_calls.py",
        "self._emit_buffered(TextDelta, len(self._buffer) - "
        "start_patterns.pending_lengths[self._search_state])",
        "self._emit_buffered(TextDelta, len(self._buffer))",
        (PARSERS,),
    ),
    Mutant(
        "every argument between tags is a string, whatever the schema says",
        "parsers/xml_tags.py",
        "self._types = self._parameters.find_types(key)\n",
        'self._types = ("string",)\n',
        (PARSERS,),
    ),
    Mutant(
        "a parameter that DeepSeek marks as a string stays a string against the schema (ours)",
        "parsers/xml_tags.py",
        'if (is_text and (not self._types or "string" in self._types)) or (',
        "if is_text or (",
        (PARSERS,),
    ),
    Mutant(
        "an object of all arguments is parsed as a single argument (ours)",
        "parsers/xml_tags.py",
        "is_spliced = key in self._syntax.spliced_keys and bool(declared) and key not in declared",
        "is_spliced = False",
        (PARSERS,),
    ),
    Mutant(
        "control tokens that are only parts of a marker never reach the parser (ours: five "
        "families)",
        "pipeline/served_model.py",
        "for text, id in special.items() if any(text in marker for marker in markers)",
        "for text, id in special.items() if text in markers",
        ("tests/pipeline/test_marker_tokens.py",),
    ),
    Mutant(
        "keywords beside an argument's `anyOf` are silently dropped (ours)",
        "parsers/tool_parameters.py",
        "            else:\n                self.unenforced[key] = None\n        return merged",
        "        return merged",
        (SCHEMAS,),
    ),
    Mutant(
        "enum values that other keywords forbid are forced (ours)",
        "parsers/tool_parameters.py",
        "if all(check(value, limit) for check, limit in checks)]",
        "]",
        ("tests/constraints/test_families.py",),
    ),
    Mutant(
        "Kimi's call ids are replaced, so that it does not recognize them in the next turn",
        "parsers/json_calls.py",
        'name, id = prefix.removeprefix("functions."), raw',
        'name, id = prefix.removeprefix("functions."), None',
        (PARSERS,),
    ),
    Mutant(
        "Python's True in arguments is copied into the JSON",
        "parsers/pythonic.py",
        '{"True": "true", "False": "false", "None": "null"}',
        '{"True": "True", "False": "False", "None": "None"}',
        (PARSERS,),
    ),
    # Responses.
    Mutant(
        "sequence_number starts at 1 (llama.cpp#24957)",
        "dialects/responses/writer.py",
        "sequence, self._sequence = self._sequence, self._sequence + 1",
        "sequence = self._sequence = self._sequence + 1",
        (RESPONSES,),
    ),
    Mutant(
        "output_text.done is empty (ogx#5309)",
        "dialects/responses/item_writers.py",
        "(self.part_location, encode_string(text), logprobs)",
        '(self.part_location, encode_string(""), logprobs)',
        (RESPONSES,),
    ),
    Mutant(
        "deltas arrive for a content part that was never added (vllm#45742)",
        "dialects/responses/item_writers.py",
        'render_text_part("", b"[]")))]',
        'render_text_part("", b"[]")))][1:]',
        (RESPONSES,),
    ),
    Mutant(
        "a truncated response has the status completed",
        "dialects/responses/writer.py",
        "return COMPLETED if reason is FinishReason.STOP else INCOMPLETE",
        "return COMPLETED",
        (RESPONSES,),
    ),
    Mutant(
        "cache_write_tokens is always 0",
        "dialects/responses/item_writers.py",
        "usage.prompt, usage.cached or 0, usage.written or 0,",
        "usage.prompt, usage.cached or 0, 0,",
        ("tests/serving/test_counting.py",),
    ),
    Mutant(
        "items in the object have other ids than in the stream (litellm#37852, vllm#38227)",
        "dialects/responses/writer.py",
        "self._item_writers.create_complete(len(items), part)",
        "self._item_writers.create_complete(i + 1, part)",
        (RESPONSES,),
    ),
    Mutant(
        "a namespaced tool call loses its namespace (vllm#46737)",
        "dialects/responses/item_writers.py",
        'self._names.get(name) or ToolName(name, name, "")',
        'ToolName(name, name, "")',
        (STREAMS,),
    ),
    Mutant(
        "a keepalive is an SSE comment (openai/codex#31539)",
        "dialects/responses/writer.py",
        "return self._render_start() or self._render_in_progress()",
        'return b": keepalive\\n\\n"',
        (STREAMS,),
    ),
    Mutant(
        "an unfinished call gets a done event when the response fails: agents would execute it",
        "dialects/responses/writer.py",
        "start_events = self._render_start()\n",
        "start_events = self._render_start() + self._close_item(INCOMPLETE)\n",
        (STREAMS,),
    ),
    Mutant(
        "tokens before the first text have no logprobs in the stream",
        "dialects/responses/writer.py",
        "tokens, self._early_tokens = (*self._early_tokens, *tokens), []",
        "self._early_tokens = []",
        (RESPONSES,),
    ),
    Mutant(
        "a refusal in the input is stored as its text, which is empty",
        "dialects/responses/input_items.py",
        '(part.refusal if part.type == "refusal" else part.text)',
        "part.text",
        (STREAMS,),
    ),
    # The pipeline and the serving path.
    Mutant(
        "choices of several prompts are interleaved by choice",
        "pipeline/run.py",
        "choice=index * first_started.choices + event.choice",
        "choice=event.choice * len(self._started) + index",
        ("tests/pipeline/test_merge.py",),
    ),
    Mutant(
        "errors before the first token arrive in a stream with status 200",
        "serving/streaming.py",
        "        send, run = self._send, self._run\n",
        "        send, run = self._send, self._run\n        await self._send_headers()\n",
        (f"{SERVING}/test_answers.py",),
    ),
    # Stored responses.
    Mutant(
        "a response is acknowledged before it is stored (vllm-mlx loses turns)",
        "serving/store_access.py",
        "            await persist(builder.build())\n            yield batch[-1:]\n",
        "            yield batch[-1:]\n            await persist(builder.build())\n",
        ("tests/serving/responses/test_stored.py",),
    ),
    Mutant(
        "a response deleted in the middle of a conversation is silently skipped",
        "serving/routes/responses/history.py",
        "if not chain.is_complete:",
        "if False:",
        ("tests/serving/responses/test_continuing.py",),
    ),
    Mutant(
        "a resumed stream repeats the last event that the client has received",
        "serving/routes/responses/background.py",
        "event.number > starting_after",
        "event.number >= starting_after",
        ("tests/serving/responses/test_background.py",),
    ),
    Mutant(
        "responses of a dead process stay in_progress forever",
        "serving/routes/responses/background.py",
        "        await self.finalize_abandoned()\n        self._watcher",
        "        self._watcher",
        ("tests/serving/responses/test_background.py",),
    ),
    Mutant(
        "the engine keeps generating after the client has disconnected (LightLLM's middleware)",
        "serving/streaming.py",
        "        on_disconnect(self._abort)\n",
        "",
        ("tests/serving/test_disconnect.py",),
    ),
    Mutant(
        "every cancellation counts as a client disconnect, so that a shutdown does not end the "
        "request",
        "serving/streaming.py",
        "            if not self._is_cancelled or self._task is None or self._task.uncancel():\n  "
        "              raise\n",  # noqa: E501
        "            pass\n",
        ("tests/serving/test_disconnect.py",),
    ),
    Mutant(
        "an engine failure ends the stream as if it were complete",
        "serving/streaming.py",
        "await self._write(self._framing.render_error(error), more_body=False)",
        "await self._write(self._framing.end, more_body=False)",
        (f"{SERVING}/test_answers.py",),
    ),
    # Replay of sampled tokens.
    Mutant(
        "a history is tokenized again, and its cached prefix ends where the sampled tokens differ",
        "prompts/tokenizer.py",
        "return matching_ids.popleft() if matching_ids else None",
        "return None",
        ("tests/serving/responses/test_agents.py",),
    ),
    Mutant(
        "sampled ids are reused across control tokens, even those that a user wrote",
        "prompts/tokenizer.py",
        "                if id in control_ids:\n                    pieces.append([])\n",
        "                if False:\n                    pieces.append([])\n",
        ("tests/prompts/test_token_replay.py",),
    ),
    Mutant(
        "if `*` is allowed, any page can call admin routes",
        "serving/cors.py",
        '        if "*" in self._allowed and not by_name:\n',
        '        if "*" in self._allowed:\n',
        ("tests/serving/test_cors.py",),
    ),
    Mutant(
        "a burst of requests delays the tokens of all others until every request is read",
        "serving/service.py",
        "        if self._available and not self._waiters:",
        "        if True:",
        ("tests/serving/test_pacing.py",),
    ),
    # The WebSocket.
    Mutant(
        "a page of any site can use the server over a WebSocket",
        "serving/routes/responses/websocket.py",
        "            self._policy.check_origin(http.headers, self.access)\n",
        "",
        ("tests/serving/responses/test_websocket.py",),
    ),
    Mutant(
        "the connection keeps its history after a failed continuation",
        "serving/routes/responses/websocket.py",
        "        elif self._history is not None and self._history.id == previous:\n            "
        "self._history = None\n",
        "",
        ("tests/serving/responses/test_websocket.py",),
    ),
    # Encryption and signatures.
    Mutant(
        "sealed reasoning can be opened by any client (one key for all owners)",
        "serving/crypto.py",
        'info = f"dragoman 1 {purpose}\\n{self.owner}".encode()',
        'info = f"dragoman 1 {purpose}".encode()',
        (f"{SERVING}/test_crypto.py",),
    ),
    Mutant(
        "an invalid signature of reasoning is accepted",
        "dialects/anthropic/content_blocks.py",
        'is_signed = key is not None and seal != "" and key.verify_signature(thinking, seal)',
        "is_signed = True",
        ("tests/dialects/anthropic", f"{SERVING}/test_crypto.py"),
    ),
    # The store.
    Mutant(
        "a failed commit keeps the changes that precede the failure",
        "store/sqlite.py",
        'connection.execute("ROLLBACK TO job")',
        "pass",
        ("tests/store/test_kit.py",),
    ),
    Mutant(
        "a write is acknowledged although the disk is full",
        "store/sqlite.py",
        "job.error = StoreUnavailable(failure.message)",
        "pass",
        ("tests/store/test_sqlite.py",),
    ),
    Mutant(
        "any client that knows an id reads the chain of another key (Open WebUI CVE-2026-45349)",
        "store/sql.py",
        "ON r.owner = $1 AND r.kind = $2 AND r.id = hop.parent",
        "ON r.kind = $2 AND r.id = hop.parent",
        ("tests/store/test_kit.py",),
    ),
    Mutant(
        "reading a record does not protect it from eviction",
        "store/sql.py",
        "self._touches[record.position] = now",
        "pass",
        ("tests/store/test_kit.py", "tests/store/test_state_machine.py"),
    ),
    Mutant(
        "a reused block is offloaded under its old hash",
        "engines/batching/offload.py",
        "if find(block_hash) == block:",
        "if find(block_hash) == block or True:",
        ("tests/engines/batching/test_offload.py",),
    ),
    Mutant(
        "the digest of a cache file is not checked",
        "engines/batching/offload.py",
        "if digest != _compute_digest(block_hash, contents):",
        "if not contents:",
        ("tests/engines/batching/test_offload.py",),
    ),
    Mutant(
        "adapters share cached blocks",
        "engines/batching/blocks.py",
        'key=adapter.to_bytes(8, "big")',
        'key=b""',
        ("tests/engines/batching/test_blocks.py",),
    ),
    Mutant(
        "two responses run in one conversation at once",
        "serving/routes/responses/turn.py",
        "conversation_lock = conversation_locks.acquire(owner, responses_call.conversation)",
        "conversation_lock = None",
        ("tests/serving/responses/test_conversations.py",),
    ),
    # Background work, control of engines, and further dialects.
    Mutant(
        "a batch repeats all of its requests after a restart",
        "serving/batch_job.py",
        "if line.custom_id not in done_ids:",
        "if True:",
        ("tests/serving/test_batches.py",),
    ),
    Mutant(
        "a batch fails its requests when the engine is full",
        "serving/jobs.py",
        "_OVERLOADED_STATUSES = frozenset({429, 503, 529})",
        "_OVERLOADED_STATUSES = frozenset({429})",
        ("tests/serving/test_batches.py",),
    ),
    Mutant(
        "batches run before interactive requests",
        "serving/generate.py",
        "request.priority + BACKGROUND_PRIORITY_OFFSET if caller.is_background",
        "request.priority if caller.is_background",
        ("tests/serving/test_batches.py",),
    ),
    Mutant(
        "a thread continues without the turn that was deleted in its middle",
        "serving/routes/messages.py",
        "if chain is None or not chain.is_complete:",
        "if chain is None:",
        ("tests/serving/test_threads.py",),
    ),
    Mutant(
        "running sequences continue with the KV cache of the old weights, so that samples match "
        "no policy",
        "engines/batching/worker.py",
        "        self.scheduler.restart_all()\n        self.scheduler.disable_offload()\n",
        "        self.scheduler.disable_offload()\n",
        ("tests/engines/batching/test_control.py",),
    ),
    Mutant(
        "a trainer's path may be outside the directory that the operator configured",
        "serving/routes/admin.py",
        "    if not location.is_relative_to(Path(root).resolve()):\n",
        "    if not location.is_absolute():\n",
        ("tests/serving/test_weights.py", "tests/serving/test_adapters.py"),
    ),
    Mutant(
        "a bad word is sampled if masks are packed for a device",
        "engines/batching/sampler.py",
        "        np.bitwise_and.at(packed, forbidden >> 3, ~(1 << (forbidden & "
        "7)).astype(np.uint8))\n",
        "",
        ("tests/engines/batching/test_sampler.py",),
    ),
    Mutant(
        "a response names only the weights that it started with",
        "engines/batching/worker.py",
        "                if sequence.version != self.version:\n",
        "                if sequence.version is None:\n",
        ("tests/engines/batching/test_control.py",),
    ),
    Mutant(
        "SGLang's clients expect cumulative text, but get only the new text",
        "dialects/sglang.py",
        "                state.text += text\n",
        "                state.text = text\n",
        ("tests/laws/test_sglang.py",),
    ),
    Mutant(
        "TGI's last token is sent before its finish reason is known, and an event without a token "
        "ends the stream",
        "dialects/tgi/writer.py",
        "        reached_limit = limit is not None and self._count >= limit\n",
        "        reached_limit = limit is not None and self._count > limit\n",
        ("tests/dialects/tgi",),
    ),
    Mutant(
        "each of several TGI tokens in one delivery has the text of all of them",
        "dialects/logprobs.py",
        "        self._text = self._text[len(data) :]\n",
        "",
        ("tests/dialects/tgi", "tests/laws/test_tgi.py"),
    ),
    Mutant(
        "Ollama's clients get a tool call twice because a finished call stays open",
        "dialects/ollama/writer.py",
        "        call, self._call = self._call, None\n",
        "        call = self._call\n",
        ("tests/laws/test_ollama.py",),
    ),
    Mutant(
        "Ollama's clients, which ignore done_reason, execute a call with truncated arguments",
        "dialects/ollama/writer.py",
        "    if is_cut_off and not _is_object(arguments):\n",
        "    if is_cut_off and not arguments:\n",
        ("tests/laws/test_ollama.py",),
    ),
    Mutant(
        "keep_alive of one request applies to all later loads of the model",
        "pipeline/lifecycle.py",
        "        self._ttl = self.spec.ttl\n",
        "",
        ("tests/serving/test_ollama.py",),
    ),
    Mutant(
        "SGLang's clients get TGI's format",
        "dialects/tgi/reader.py",
        "        return False\n    return True\n",
        "        return True\n    return True\n",
        ("tests/dialects/tgi", "tests/serving/test_tgi.py"),
    ),
    Mutant(
        "an executor that tokenizes a prompt again is accepted",
        "engines/rollout.py",
        "        if candidate.prompt_token_ids not in (None, call.prompt):\n",
        "        if False:\n",
        ("tests/engines/rollout",),
    ),
    Mutant(
        "weights are replaced during a call, so that its tokens match neither policy",
        "engines/rollout.py",
        "            if self._control is None or not self._control.is_paused:\n",
        "            if False:\n",
        ("tests/engines/rollout",),
    ),
    Mutant(
        "a misspelled member of structured_outputs is silently ignored",
        "dialects/fields.py",
        "    if outputs is not None and not constraints and outputs.close_at_limit is None:\n",
        "    if False:\n",
        ("tests/dialects/test_chat_reader.py",),
    ),
    Mutant(
        "a rejection that the engine reports late becomes a server error",
        "pipeline/prompt_run.py",
        "                self._failure = error\n",
        "                self._failure = EngineError(error.message)\n",
        ("tests/pipeline/test_prompt_run.py",),
    ),
    # Direct delivery and caches of prompts.
    Mutant(
        "tokens overtake those that are buffered for a slow reader",
        "http/exchange.py",
        "self._framing is not None and not connection.is_write_paused",
        "self._framing is not None",
        ("tests/http/test_direct_write.py",),
    ),
    Mutant(
        "a token is written before the headers",
        "http/exchange.py",
        "connection is not None and self._framing is not None and not connection",
        "connection is not None and not connection",
        ("tests/http/test_direct_write.py",),
    ),
    Mutant(
        "headers without an immediate body are never sent",
        "http/exchange.py",
        "        self._context.loop.call_soon(self._write_head)\n",
        "",
        ("tests/http/test_direct_write.py",),
    ),
    Mutant(
        "a directly delivered response never ends if its last choice ends at a stop string",
        "pipeline/prompt_run.py",
        "        if not self._n_unfinished or self._failure is not None or self._direct_failure "
        "is not None:",
        "        if self._failure is not None or self._direct_failure is not None:",
        (DIRECT,),
    ),
    Mutant(
        "an error of one response's pipeline during direct delivery is lost",
        "pipeline/prompt_run.py",
        "            self._direct_failure = error\n",
        "            del error\n",
        (DIRECT,),
    ),
    Mutant(
        "the stored response lacks the tokens that were delivered directly",
        "serving/store_access.py",
        "    if run.direct is not None:",
        "    if False:",
        (DIRECT,),
    ),
    Mutant(
        "simulated front-end time is added to the server's own (ours)",
        "engines/simulator/engine.py",
        "arrived_at=now if request.arrival_time is None else",
        "arrived_at=now if request.id else",
        ("tests/engines/simulator/test_arrival.py",),
    ),
    Mutant(
        "uvloop spins until a step is due (ours)",
        "engines/simulator/rank.py",
        "_TOLERANCE = 0.000502",
        "_TOLERANCE = 0.000002",
        ("tests/engines/simulator/test_timer_queue.py",),
    ),
    Mutant(
        "owners share cached token ids of prompts",
        "prompts/tokenizer.py",
        "        key = (owner, is_first, text)",
        '        key = ("", is_first, text)',
        ("tests/prompts/test_tokenizer.py",),
    ),
    Mutant(
        "a piece within a prompt gets the cached token ids of one that begins a prompt",
        "prompts/tokenizer.py",
        "        key = (owner, is_first, text)",
        "        key = (owner, False, text)",
        ("tests/prompts/test_tokenizer.py",),
    ),
    Mutant(
        "Prometheus gets other metric names than the dashboard uses",
        "serving/routes/metrics.py",
        '            options["escaping"] = ALLOWUTF8',
        "            pass",
        ("tests/serving/test_metrics.py",),
    ),
    Mutant(
        "the generation prompt counts as part of the conversation before it",
        "prompts/template.py",
        "last.elif_ or last.else_ or len(reads) != 1",
        "last.elif_ or len(reads) != 1",
        ("tests/prompts/test_render.py",),
    ),
)


def main(arguments: list[str]) -> int:
    _check_up_to_date()
    patterns = [argument for argument in arguments if not argument.startswith("--")]
    share = next(
        (arg.removeprefix(SHARE_OPTION) for arg in arguments if arg.startswith(SHARE_OPTION)), "0/1"
    )
    first, step = map(int, share.split("/"))
    candidates = list(enumerate(MUTANTS))[first::step]
    selected = [(i, mutant) for i, mutant in candidates if _is_selected(i, mutant, patterns)]
    tests = sorted({test for _, mutant in selected for test in mutant.tests})
    n_threads = os.cpu_count() or 1
    n_missed = 0
    # Each run has its own copy of the tree, so parallel runs do not interfere.
    with ThreadPoolExecutor(n_threads) as pool:
        if SUITE_PASSED_OPTION not in arguments and (
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
                f"{i:2} {verdict} {seconds:4.0f} s  {mutant.bug}  <- {', '.join(failed)}",
                flush=True,
            )
    print(f"{len(selected) - n_missed} of {len(selected)} caught")
    return 1 if n_missed else 0


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
    path = tree / "src/dragoman" / mutant.file
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
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "HYPOTHESIS_PROFILE": "mutants"}
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
    if match := re.search(r"^ERROR ([^\s:]+)(?: - .*)?$", done.stdout, re.MULTILINE):
        # No test ran: the copy lacks something that a module imports, or the mutant is
        # not valid Python.
        raise SystemExit(f"{match.group(1)} could not be collected:\n{done.stdout}")
    return list(_find_failed_tests(done.stdout)) or (
        [done.stdout + done.stderr] if done.returncode else []
    )


def _find_failed_tests(output: str) -> Iterator[str]:
    for match in re.finditer(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE):
        yield match.group(1).split("::")[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
