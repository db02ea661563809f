"""Rebuild real bugs of comparable servers, one at a time, and see that the tests notice: `python tests/mutants.py`.

Each row changes one place of a copy of the tree and runs the tests named in it; the text to change must be there
exactly once, or the row is out of date and this fails. Exit status 1 if a bug went unnoticed. Not collected by pytest.

    python tests/mutants.py             all
    python tests/mutants.py chat 17     those whose file or description has "chat" in it, and number 17
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
LEFT_OUT = shutil.ignore_patterns(".hypothesis", ".pytest_cache", "node_modules")
"""Byte code is copied too: it is that of all files but the one that is changed."""
TIMEOUT = 120
"""Seconds. A bug that keeps the tests from ending is noticed too."""
PASSED = "--suite-passed"
"""The suite has just passed: it is not run again without any bug."""
SHARE = "--share="
"""`--share=I/N` tries every Nth row, from row I."""
QUICK = "not (long or torch or mlx or vllm or clients)"
"""The others find no bug that is planted here, and take their time."""


class Mutant(NamedTuple):
    """bug: what it was, and whose. file: below src/dragoman. tests: those that are to notice it."""

    bug: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


CHAT, COMPLETIONS, GOLDEN = "tests/laws/test_chat.py", "tests/laws/test_completions.py", "tests/golden"
TRAPS, CLIENTS, BODY = "tests/dialects/test_traps.py", "tests/dialects/test_clients.py", "tests/dialects/test_body.py"
READER, PARAMETERS = "tests/dialects/test_chat_reader.py", "tests/dialects/test_all_parameters.py"
RESPONSES, STREAMS = "tests/laws/test_responses.py", "tests/dialects/responses"
UPSTREAM = "tests/engines/upstream"
FUZZ, PARSERS, SERVING = "tests/dialects/test_fuzz.py", "tests/parsers", "tests/serving"
LLAMACPP, REMOTE = "tests/engines/llamacpp", "tests/engines/remote"
SIMULATOR, RECORDING = "tests/engines/simulator", "tests/recording"
DIRECT = "tests/serving/test_direct_delivery.py"
SCHEMAS, NESTED = "tests/pipeline/test_unenforced_schemas.py", "tests/dialects/test_nested_fields.py"
NAMES, WARNINGS, UNMATCHED = (
    "tests/serving/test_field_names.py",
    "tests/serving/test_warnings.py",
    "tests/serving/test_unmatched_results.py",
)

MUTANTS = (
    Mutant(
        "the sequences of a front end that died keep their KV blocks (vLLM's API servers)",
        "engines/remote/server.py",
        "        for id in ids:\n            self._hosted.engine.abort(id)\n",
        "",
        (REMOTE,),
    ),
    Mutant(
        "the streams of an engine process that died wait for ever (vLLM's front ends)",
        "engines/remote/client.py",
        "        self._client.lose_connection(self)\n",
        "",
        (REMOTE,),
    ),
    Mutant(
        "an adapter is known to the front end alone that loaded it (vLLM's API servers)",
        "engines/remote/server.py",
        "        self._server.broadcast_state()\n        self._send(CallResult(",
        "        self._send(CallResult(",
        (REMOTE,),
    ),
    Mutant(
        "keywords of a schema that no mask enforces are dropped in silence (ours, vLLM's)",
        "pipeline/sampling.py",
        "        warnings.append(relaxation.text)",
        "        pass",
        (SCHEMAS,),
    ),
    Mutant(
        "a string's format is dropped in silence where arguments are written one by one (ours)",
        "parsers/tool_parameters.py",
        '        list_unenforced(schema, "type", "pattern", "minLength", "maxLength", *_NO_TEXT_KEYWORDS),',
        "        (),",
        (SCHEMAS,),
    ),
    Mutant(
        "unknown fields below the top level are ignored in silence (everyone's)",
        "dialects/parameter_table.py",
        "(*unknown, *nested)[:MAX_UNKNOWN]",
        "unknown",
        (NESTED,),
    ),
    Mutant(
        "a prefix that the answer has to continue is taken for a finished turn (ours)",
        "dialects/chat/reader.py",
        "            param = param or flag",
        "            pass",
        (NESTED,),
    ),
    Mutant(
        "an error names a field that the client has not sent (ours)",
        "serving/generate.py",
        "        error.is_translated = True\n",
        "        pass\n",
        (NAMES,),
    ),
    Mutant(
        "the lines of a batch lose their warnings (ours)",
        "serving/internal_client.py",
        'WARNINGS_HEADER: "body"',
        'WARNINGS_HEADER: "none"',
        (WARNINGS,),
    ),
    Mutant(
        "a tool's output that answers no call is taken as if there had been one (ours, vLLM's)",
        "pipeline/admission.py",
        "part.answers_call and part.call_id not in call_ids",
        "part.answers_call and not part.call_id",
        (UNMATCHED,),
    ),
    Mutant(
        "an engine that was paused once counts as full for ever (ours, for an hour)",
        "pipeline/prompt_run.py",
        "        except QueueFull:",
        "        except DragomanError:",
        ("tests/engines/rollout/test_rollout.py",),
    ),
    # Tokens and what they are part of.
    Mutant(
        "tokens of marks are listed among the content's (logprobs join to more than the content)",
        "parsers/base.py",
        "        pending = self._pending_tokens if call else map(_as_markup, self._pending_tokens)\n",
        "        pending = self._pending_tokens\n",
        ("tests/parsers/test_think.py",),
    ),
    Mutant(
        "the last token of a thought is one of the answer (ours: reasoning_tokens one short)",
        "parsers/base.py",
        "        released = -1 if drop or not size else self.released\n",
        "        released = -1\n",
        ("tests/parsers/test_think.py",),
    ),
    Mutant(
        "a stop string's token is listed whole although its end was cut",
        "dialects/logprobs.py",
        "        if own.startswith(text):\n",
        "        if False:\n",
        ("tests/dialects/test_content_tokens.py",),
    ),
    Mutant(
        "OpenAI's logprobs list thought, marks and end token (as vLLM's do)",
        "dialects/chat/writer.py",
        "        if self._lists_all_tokens:\n            listed = [",
        "        if True:\n            listed = [",
        ("tests/dialects/test_traps.py",),
    ),
    Mutant(
        "an answer of calls alone folds to an empty content, whole it is null",
        "dialects/chat/writer.py",
        'b\',"content":""\' if self._is_vllm else b""',
        """b',"content":""'""",
        (CHAT,),
    ),
    Mutant(
        "choices are counted where requests are (rates above 100 %)",
        "pipeline/metrics.py",
        "                if not self._open_choices:\n",
        "                if True:\n",
        ("tests/serving/test_metrics.py",),
    ),
    Mutant(
        "the simulator answers the same ids and seed otherwise in another dialect",
        "engines/simulator/reply_generator.py",
        "            enabled = draw < self._options.reasoning\n",
        "            enabled = rng.random() < self._options.reasoning\n",
        ("tests/engines/simulator/test_content.py",),
    ),
    # Calls that models get wrong.
    Mutant(
        "a call inside a thought that was not ended is lost",
        "parsers/think.py",
        "            if marker in self._calls:\n",
        "            if False:\n",
        ("tests/parsers/test_broken_calls.py",),
    ),
    Mutant(
        "broken arguments swallow the calls behind them, however they break",
        "parsers/delimited_calls.py",
        "        if mark_offset < 0:\n",
        "        if True:\n",
        ("tests/parsers/test_broken_calls.py",),
    ),
    Mutant(
        "the name of a call that was cut off is taken for a shorter one",
        "parsers/delimited_calls.py",
        "not self._call.has_begun and reason is FinishReason.STOP:",
        "not self._call.has_begun:",
        ("tests/parsers/test_broken_calls.py",),
    ),
    # Settings.
    Mutant(
        "an option that the engine does not know is ignored in silence (all servers with one list of options)",
        "launch/models.py",
        "    _warn_unsupported_names(settings, find_changed_settings(settings), *kinds)\n",
        "",
        ("tests/launch/test_engine_support.py",),
    ),
    # Browsers.
    Mutant(
        "any page of the web sends requests to a server on its reader's machine (CSRF)",
        "serving/auth.py",
        "        if access is not Access.PUBLIC:\n",
        "        if access is Access.ADMIN:\n",
        ("tests/hardening/test_browsers.py",),
    ),
    Mutant(
        "an error on a path that two vendors have is always in one vendor's format",
        "serving/endpoint.py",
        "        envelope.resolve(headers),\n",
        "        envelope,\n",
        ("tests/serving/test_routes.py",),
    ),
    Mutant(
        "a 404 below a dialect's path is in another dialect's format",
        "serving/app.py",
        '            path = path.rpartition("/")[0]\n',
        "            return BY_CLIENT\n",
        ("tests/serving/test_routes.py",),
    ),
    Mutant(
        "a body without a type is JSON: a browser sends a Blob without asking first",
        "serving/endpoint.py",
        'media_type = self.headers.get("content-type", "")\n',
        'media_type = self.headers.get("content-type", "application/json")\n',
        ("tests/hardening/test_browsers.py",),
    ),
    Mutant(
        "an image's address on another site flushes the cache: browsers send no Origin then",
        "serving/cors.py",
        "        if origins or not sites or all(site in _OWN_SITES",
        "        if True or all(site in _OWN_SITES",
        ("tests/hardening/test_browsers.py",),
    ),
    Mutant(
        "a deeply nested body of an administrator's route is a 500",
        "serving/routes/admin.py",
        "        check_text(data)\n",
        "",
        ("tests/hardening/test_admin_bodies.py",),
    ),
    Mutant(
        "any user of the machine can connect to the socket file (uvicorn)",
        "launch/listener.py",
        "    umask = os.umask(0o777 & ~mode)\n",
        "    umask = os.umask(0)\n",
        ("tests/hardening/test_socket_file.py",),
    ),
    Mutant(
        "an upgrade that is no WebSocket handshake is never answered (uvicorn)",
        "http/connection.py",
        "                check_websocket(head)\n",
        "                pass\n",
        ("tests/hardening/test_websockets.py",),
    ),
    Mutant(
        "what has come of a WebSocket's message is in no budget until it is whole (uvicorn)",
        "launch/websocket.py",
        "        if self._count is not None and not self._count(pending):\n",
        "        if False:\n",
        ("tests/hardening/test_websockets.py",),
    ),
    Mutant(
        "a message that has begun on a WebSocket is waited for without end",
        "launch/websocket.py",
        "        elif self._deadline is None:\n            self._begin_deadline()\n",
        "",
        ("tests/hardening/test_websockets.py",),
    ),
    Mutant(
        "a body may come a byte at a time for ever",
        "http/connection.py",
        "        elif self._received_bytes >= limits.body_rate * limits.body:\n",
        "        elif self._received_bytes:\n",
        ("tests/hardening/test_connections.py",),
    ),
    Mutant(
        "connections are taken without number",
        "http/connection.py",
        "        if not self._context.admit(self._address):\n",
        "        if not self._context.admit(self._address) and not self._address:\n",
        ("tests/hardening/test_connections.py",),
    ),
    Mutant(
        "who leaves is not seen to leave behind what it has pipelined",
        "http/connection.py",
        "            self._set_deadline(self._timeouts.peek)\n\n    def _resume_reading",
        "\n    def _resume_reading",
        ("tests/hardening/test_connections.py",),
    ),
    Mutant(
        "a target that names another host than the Host header is served (RFC 9112, 3.2.2)",
        "http/head.py",
        "        if any(host != authority for host in hosts):\n",
        "        if False:\n",
        ("tests/hardening/test_connections.py",),
    ),
    # HTTP.
    Mutant(
        "a client holds a connection for ever by sending its headers a byte at a time (uvicorn, and Slowloris)",
        "http/connection.py",
        "            if data and self._deadline is not self._timeouts.head:\n",
        "            if data:\n",
        ("tests/hardening/test_slow_clients.py",),
    ),
    Mutant(
        "what follows a chunk that is longer than it says is another request (smuggling, CVE-2019-16786 and its like)",
        "http/head.py",
        '        if line != b"\\r\\n":\n            raise BadRequest(400, "One of the body',
        '        if False:\n            raise BadRequest(400, "One of the body',
        ("tests/hardening/test_smuggling.py",),
    ),
    Mutant(
        "an answer that broke off looks whole to a client of HTTP/1.0",
        "http/exchange.py",
        "connection.abort(hard=isinstance(self._framing, CloseDelimitedFraming))",
        "connection.abort(hard=False)",
        ("tests/http/test_connection.py",),
    ),
    Mutant(
        "an application that goes on after its response writes into the next one",
        "http/exchange.py",
        "        self._is_complete, self._disconnect_callback = True, None\n        self._detach()\n",
        "        self._disconnect_callback = None\n",
        ("tests/http/test_connection.py",),
    ),
    Mutant(
        "a refusal is lost, because the client was still sending when it was closed",
        "http/connection.py",
        "        self.transport.write_eof()\n",
        "        self._close()\n",
        ("tests/hardening/test_smuggling.py",),
    ),
    # Grammars.
    Mutant(
        "an answer that was closed at its limit looks complete",
        "pipeline/prompt_run.py",
        "if reason is FinishReason.STOP and (choice.was_closed or ended.was_closed):",
        "if False:",
        ("tests/serving/test_closing.py",),
    ),
    Mutant(
        "the same where the engine is in another process",
        "pipeline/prompt_run.py",
        "(choice.was_closed or ended.was_closed)",
        "choice.was_closed",
        (REMOTE,),
    ),
    Mutant(
        "JSON is cut by max_tokens although it was to be closed: the first ending is taken for one that always fits",
        "constraints/ending.py",
        "if candidate and len(candidate) <= left and _is_complete_after(state, candidate):",
        "if candidate:",
        ("tests/constraints/test_ending.py",),
    ),
    Mutant(
        "a tool is called with arguments that it does not take (llguidance, and who takes JSON Schema by its word)",
        "constraints/lark.py",
        "closed_schema = close_schema(schema)",
        "closed_schema = schema",
        ("tests/constraints/test_strict_schema.py",),
    ),
    Mutant(
        "objects that have to fit two schemas can fit neither, because each is closed",
        "constraints/lark.py",
        '"oneOf" in part or combines_schemas(part)',
        '"oneOf" in part',
        ("tests/constraints/test_strict_schema.py",),
    ),
    Mutant(
        "a schema of 212 bytes takes all memory: multipleOf is compiled to as many states (llguidance)",
        "constraints/schema.py",
        "        if max(_count_last_digit_units(multiple), _count_last_digit_units(common)) > MAX_MULTIPLE:\n",
        "        if False:\n",
        ("tests/constraints/test_bounded.py",),
    ),
    Mutant(
        "a grammar that may take any time is compiled in the server itself (vLLM CVE-2025-48944)",
        "constraints/lark.py",
        "is_cheap = not self._costly and",
        "is_cheap =",
        ("tests/constraints/test_bounded.py",),
    ),
    Mutant(
        "what a schema merges is taken for cheap, because each of its keywords is",
        "constraints/schema.py",
        "    if combines_schemas(part):\n",
        "    if False:\n",
        ("tests/constraints/test_bounded.py",),
    ),
    Mutant(
        "a grammar that was too costly costs as much when it comes again",
        "constraints/bounded.py",
        "            self._rejected[digest] = message\n",
        "",
        ("tests/constraints/test_bounded.py",),
    ),
    # Worker processes.
    Mutant(
        "a grammar is compiled to its end for a client that has left",
        "workers/pool.py",
        "            attempt.cancel()\n            raise",
        "            raise",
        ("tests/workers/test_pool.py",),
    ),
    Mutant(
        "a call has no limit of CPU time, and the clock's is far away",
        "workers/child.py",
        "        _limit_time(setup.seconds)\n",
        "",
        ("tests/workers/test_pool.py",),
    ),
    Mutant(
        "a call has no limit of memory",
        "workers/child.py",
        "        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n",
        "",
        ("tests/workers/test_pool.py",),
    ),
    Mutant(
        "the keys of the server are in the environment of the process that runs others' templates",
        "workers/pool.py",
        ' if not name.startswith("DRAGOMAN_")',
        "",
        ("tests/workers/test_pool.py",),
    ),
    Mutant(
        "41 bytes of a template make 10 GB: indent pays for its width, and not for each line (ours)",
        "prompts/sandbox.py",
        "lines * (len(width)",
        "(len(width)",
        ("tests/prompts/test_template.py",),
    ),
    # llama.cpp.
    Mutant(
        "llama.cpp's stream leaves out tokens within characters, and nobody asks for them (its own defect)",
        "engines/llamacpp/completion_state.py",
        "self._schedule_completion(_NextCompletion(missing + len(tokens)))",
        "pass",
        (LLAMACPP,),
    ),
    Mutant(
        "a slot's beginning is used for another owner's prompt",
        "engines/llamacpp/engine.py",
        "if not self._caching or slot_salt != salt:",
        "if not self._caching:",
        (LLAMACPP,),
    ),
    Mutant(
        "a token that the grammar forbids is said when llama.cpp says it",
        "engines/llamacpp/completion_state.py",
        "if token != self._current.forced and not token_filter.is_allowed(token, self.output):",
        "if False:",
        (LLAMACPP,),
    ),
    Mutant(
        "a slot's beginning is used for a prompt with other images",
        "engines/llamacpp/engine.py",
        "    if not images:\n        return tokens\n",
        "    return tokens\n",
        (LLAMACPP,),
    ),
    Mutant(
        "names of control tokens that a user wrote beside an image are control tokens to llama.cpp",
        "engines/llamacpp/vision.py",
        "if await client.tokenize(candidate) == ids:",
        "if True:",
        (LLAMACPP,),
    ),
    # Engines that hang.
    Mutant(
        "a step that never ends leaves its engine unready for ever",
        "engines/batching/engine.py",
        "running=running, failed=has_failed)",
        "running=running)",
        ("tests/engines/batching/test_hanging.py",),
    ),
    # Media.
    Mutant(
        "prompts whose images differ share what was computed of one",
        "engines/batching/blocks.py",
        'return blake2b(array("q", tokens).tobytes() + image_key,',
        'return blake2b(array("q", tokens).tobytes(),',
        ("tests/engines/batching",),
    ),
    Mutant(
        "one public address hides a private one of the same name (SSRF: vLLM CVE-2025-6242)",
        "serving/fetch.py",
        "not all(map(self._is_allowed, resolved))",
        "not any(map(self._is_allowed, resolved))",
        ("tests/hardening/test_ssrf.py",),
    ),
    Mutant(
        "a name is resolved again to be connected to (DNS rebinding)",
        "serving/fetch.py",
        "parsed.copy_with(host=str(resolved[0]), fragment=None)",
        "parsed.copy_with(fragment=None)",
        ("tests/hardening/test_ssrf.py",),
    ),
    Mutant(
        "a small file of a huge image is decoded (vLLM CVE-2026-22773)",
        "core/images.py",
        "if info.width * info.height > MAX_PIXELS:",
        "if info.width > MAX_PIXELS:",
        ("tests/core/test_image_info.py",),
    ),
    # The simulator, serving.
    Mutant(
        "who asks a server to stop before it listens is not heard",
        "launch/server.py",
        "        signal.signal(signal_number, server.handle_exit)\n",
        "        signal.signal(signal_number, signal.SIG_IGN)\n",
        ("tests/cli/test_cli.py",),
    ),
    Mutant(
        "a queue is bounded by requests alone, and holds hours of work",
        "pipeline/request_queue.py",
        "        excess_tokens = self.waiting_tokens + tokens - self._max_tokens if self.waiting_tokens else 0\n",
        "        excess_tokens = 0\n",
        ("tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "a refusal waits behind requests whose start is paced (ours: p99 of 88 ms)",
        "serving/generate.py",
        "        model.queue.check_capacity(terms.queue_share)\n",
        "        if (turn := context.service.generation.start_limiter.acquire()):\n            await turn\n",
        ("tests/hardening/test_overload.py",),
    ),
    Mutant(
        "clients of an engine that has failed and ends nothing wait for ever",
        "pipeline/prompt_run.py",
        "            self._failure = error\n            self._interrupt()\n",
        "            self._failure = error\n",
        ("tests/hardening/test_dying_engines.py",),
    ),
    Mutant(
        "a script that does not fit a schema is refused without the field's name",
        "engines/script/validate_reply.py",
        'cannot be returned as requested: {error}.", param=param)',
        'cannot be returned as requested: {error}.")',
        ("tests/engines/test_every_engine.py",),
    ),
    Mutant(
        "an upstream's traceback is told to the client",
        "engines/upstream/errors.py",
        '        message = _SERVER_ERRORS.get(status, "")\n',
        "",
        ("tests/engines/upstream/test_errors.py",),
    ),
    Mutant(
        "a plug-in's count of -2 tokens is passed on",
        "core/event_grammar.py",
        "        if type(count) is not int or count < 0:\n",
        "        if type(count) is not int:\n",
        ("tests/laws/test_core.py",),
    ),
    Mutant(
        "a prompt that is to be truncated is rendered whole, however long it is",
        "pipeline/admission.py",
        "        if not isinstance(prompt, tuple):\n            check_countable(",
        "        if False:\n            check_countable(",
        ("tests/hardening/test_big_prompts.py",),
    ),
    Mutant(
        "one key fills the queue, and everybody else is refused (ours: 2 of 21 requests served)",
        "pipeline/request_queue.py",
        "            if greedy is None or others[greedy][unit] / greedy.weight <= own_load[unit - 1]:\n",
        "            if greedy is None or unit:\n",
        ("tests/pipeline/test_request_queue.py", "tests/hardening/test_fairness.py"),
    ),
    Mutant(
        "a key of weight 2 is served as one of weight 1",
        "pipeline/request_queue.py",
        "        self.served += tokens / self.weight\n",
        "        self.served += tokens\n",
        ("tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "a limit admits a fraction of a request too many: the bucket is rounded",
        "tenants/counters.py",
        "            retry_after = -(-missing // demand.limit)\n",
        "            retry_after = missing // demand.limit\n",
        ("tests/tenants/test_counters.py",),
    ),
    Mutant(
        "a request that the limit of tokens rejects has used up one of its requests",
        "serving/tenancy.py",
        "                self.add(tenant, {REQUESTS: -1})\n",
        "",
        ("tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "a place of a cancelled request is never given back",
        "serving/tenancy.py",
        "tenancy.add(tenant, {CONCURRENCY: -1, ",
        "tenancy.add(tenant, {",
        ("tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "a response that was lost is counted twice among processes",
        "tenants/shared.py",
        "            redo = ()\n",
        "            pass\n",
        ("tests/tenants/test_shared.py",),
    ),
    Mutant(
        "the places of a killed process are lost for ever",
        "tenants/shared.py",
        "if id not in live]",
        "if False]",
        ("tests/tenants/test_shared.py",),
    ),
    Mutant(
        "usage of another process is overwritten instead of added to",
        "serving/usage.py",
        "            merged: HourUsage = {} if record is None else _decode(record)\n",
        "            merged: HourUsage = {}\n",
        ("tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "a key may use a model that it is not permitted, by its name",
        "pipeline/models.py",
        "            slot = None  # The error must not reveal models that the API key may not use.\n",
        "            pass\n",
        ("tests/serving/test_tenancy.py",),
    ),
    Mutant(
        "an upstream begins a trace of its own",
        "serving/call_observer.py",
        "            CURRENT_SPAN.set(self._span_context)\n",
        "            pass\n",
        ("tests/telemetry/test_traces.py",),
    ),
    Mutant(
        "first come, first served: another key waits behind all that a greedy one has sent",
        "pipeline/request_queue.py",
        "    return is_background, owner.served, arrival\n",
        "    return is_background, 0, arrival\n",
        ("tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "who comes back after a pause is served alone until all others' service is made up for",
        "pipeline/request_queue.py",
        "            owner.served = max(owner.served, min(present, default=0))\n",
        "            pass\n",
        ("tests/pipeline/test_request_queue.py",),
    ),
    Mutant(
        "keys share the queue and not the engine: all callers are one owner",
        "serving/tenancy.py",
        "        return QueueShare(owner, 1.0 if tenant is None else tenant.weight)\n",
        "        return ONE_QUEUE\n",
        ("tests/hardening/test_fairness.py",),
    ),
    Mutant(
        "a plug-in or an upstream is passed any number of requests at once (ours: --max-num-seqs ignored)",
        "pipeline/request_queue.py",
        "        self._concurrency = slots if limits_concurrency else None\n",
        "        self._concurrency = None\n",
        ("tests/pipeline/test_request_queue.py", "tests/hardening/test_fairness.py"),
    ),
    Mutant(
        "each body is bounded, and all of them together are not (vLLM CVE-2025-48956)",
        "serving/body.py",
        "        if size > self._reserved and used_by_others and used_by_others + size > budget.limit:\n",
        "        if used_by_others < 0:\n",
        ("tests/hardening/test_body_sizes.py",),
    ),
    Mutant(
        "everybody waits while a megabyte is tokenised: the library holds the interpreter",
        "prompts/tokenizer.py",
        "        if len(text) > MAX_UNSHARED_CHARS:\n",
        "        if len(text) < 0:\n",
        ("tests/hardening/test_big_prompts.py",),
    ),
    Mutant(
        "a server that is stopping takes new work, which is then cut",
        "pipeline/models.py",
        "        if self.is_closed:\n",
        "        if not self._slots:\n",
        ("tests/hardening/test_stopping.py",),
    ),
    Mutant(
        "a server that is told to stop closes its door at once (uvicorn)",
        "launch/server.py",
        "        while not self.force_exit:\n",
        "        while False:\n",
        ("tests/hardening/test_stopping.py",),
    ),
    Mutant(
        "a port that is closed goes on in the kernel's queue: whoever connects waits instead of being refused",
        "launch/port_faults.py",
        "                    listener.close()\n                else:\n",
        "                    self._listener = listener\n                else:\n",
        ("tests/launch/test_port_faults.py",),
    ),
    Mutant(
        "closing one port of a process cuts the streams of all of them",
        "launch/port_faults.py",
        'if transport.get_extra_info("sockname")[1] != self.port:',
        "if connection is None:",
        ("tests/launch/test_port_faults.py",),
    ),
    Mutant(
        "a server that stops answers all frames that wait before it closes their connection",
        "serving/routes/responses/websocket.py",
        "while not self._is_finishing and (data",
        "while (data",
        ("tests/serving/responses/test_websocket.py",),
    ),
    Mutant(
        "what an edit saves is counted though less than `clear_at_least` is saved",
        "pipeline/prompt_encoding.py",
        "if saved_tokens >= least_saved:",
        "if saved_tokens > 0:",
        ("tests/pipeline/test_context_edits.py",),
    ),
    Mutant(
        "results of tools that are excluded from clearing are cleared",
        "pipeline/prompt_encoding.py",
        "if names.get(id) not in edit.exclude}",
        "}",
        ("tests/pipeline/test_context_edits.py",),
    ),
    Mutant(
        "a stream does not tell which edits were made, and the whole answer does",
        "dialects/anthropic/writer.py",
        "                self._applied_edits = event.edited\n",
        "",
        ("tests/laws/test_anthropic.py",),
    ),
    Mutant(
        "a slot of llama.cpp counts as holding a prompt that was taken back before it was asked",
        "engines/llamacpp/engine.py",
        "sequence.keys if sequence.has_begun else ()",
        "sequence.keys",
        (LLAMACPP,),
    ),
    Mutant(
        "two instances of a process publish their events on one port",
        "launch/instances.py",
        "        ranks += instance_settings.data_parallel_size\n",
        "",
        ("tests/launch/test_instances.py",),
    ),
    Mutant(
        "the rank that a router names is not asked",
        "engines/simulator/rank.py",
        "            return ranks[requested]\n",
        "",
        (f"{SIMULATOR}/test_steering.py",),
    ),
    Mutant(
        "a client makes a series of metrics for every method that it invents",
        "serving/http_metrics.py",
        '        method = method if method in _METHODS else "other"\n',
        "",
        ("tests/serving/test_metrics.py",),
    ),
    Mutant(
        "a driver that is late shifts all that follows: times drift (sleeping per token)",
        "engines/simulator/engine_core.py",
        "        return StepOutcome(flight.ends, flight.begins",
        "        return StepOutcome(now, flight.begins",
        (f"{SIMULATOR}/test_defects.py",),
    ),
    Mutant(
        "a request log quotes what was asked, in an error's message",
        "serving/request_log.py",
        "type(error).__name__",
        "str(error)",
        (f"{SERVING}/test_request_log.py",),
    ),
    Mutant(
        "a closed client keeps its slot (xPyD-sim)",
        "engines/simulator/engine.py",
        "        self._rank_of.pop(id).abort(live, self._now())\n",
        "        self._rank_of.pop(id)\n",
        ("tests/engines/simulator/test_content.py",),
    ),
    Mutant(
        "of two blocks with the same contents one is taken, and routers believe that both are",
        "engines/simulator/kv_events.py",
        "                    if not self._copies[block_hash]:\n                        del self._copies[block_hash]\n",
        "                    if True:\n                        self._copies.pop(block_hash, None)\n",
        ("tests/engines/simulator/test_kv_events.py",),
    ),
    Mutant(
        "blocks that nobody fetches stay held for ever",
        "engines/simulator/disaggregation.py",
        "        self._call_at(at + self._context.lease_seconds, self._expire)\n",
        "",
        ("tests/engines/simulator/test_transfers.py",),
    ),
    Mutant(
        "anyone may free what a prefill keeps",
        "engines/simulator/kv_events.py",
        "if hmac.compare_digest(notice.seal.encode(), expected.encode()):",
        "if expected:",
        ("tests/engines/simulator/test_transfers.py",),
    ),
    # Models that come and go.
    Mutant(
        "a model is let go while it answers",
        "pipeline/lifecycle.py",
        "await self._wait_until(lambda: not self._n_users)",
        "self._n_users = 0",
        ("tests/pipeline/test_models.py",),
    ),
    Mutant(
        "an engine that cannot be started is tried again at once, for ever",
        "pipeline/lifecycle.py",
        "self.retry_at = now + min(MAX_BACKOFF, MIN_BACKOFF * 2**self._n_failures)",
        "self.retry_at = now",
        ("tests/pipeline/test_models.py",),
    ),
    # Embeddings, and what passes through.
    Mutant(
        "base64 is ignored: vectors of a quarter of their dimensions (litellm#42426)",
        "dialects/embeddings.py",
        'body.encoding_format == "base64",',
        "False,",
        ("tests/dialects/embeddings",),
    ),
    Mutant(
        "a shortened vector is not normalised again",
        "engines/arrays.py",
        "length = np.sqrt(doubles @ doubles)",
        "length = np.linalg.norm(vector.astype(np.float64))",
        ("tests/engines/encoder",),
    ),
    Mutant(
        "a call with a thousand texts keeps one with a single text waiting",
        "engines/arrays.py",
        "                self._calls.append(call)",
        "                self._calls.appendleft(call)",
        ("tests/engines/arrays",),
    ),
    Mutant(
        "a caller is shown what another one has sent",
        "pipeline/prompt_encoding.py",
        "self._prompts.get((owner, model), ())",
        "next(iter(self._prompts.values()), ())",
        ("tests/pipeline/test_recent_prompts.py",),
    ),
    Mutant(
        "kv_transfer_params are lost behind a parser",
        "parsers/base.py",
        "msgspec.structs.replace(event, tokens=(*pending, *tokens)) if pending else event",
        "msgspec.structs.replace(event, kv_transfer_params=None, tokens=(*pending, *tokens))",
        ("tests/serving/test_kv_transfer.py",),
    ),
    # The simulator offline, and recordings.
    Mutant(
        "blocks that were fetched stay held for ever",
        "engines/simulator/disaggregation.py",
        "if sequence is not None:",
        "if sequence is not None and entry is not None:",
        (f"{SIMULATOR}/test_disaggregation.py",),
    ),
    Mutant(
        "a prompt that was fetched waits behind one that waits for its blocks: both wait for ever",
        "engines/simulator/scheduler.py",
        "if self._ready_to_resume and not self._resume_fetched(step, loras):",
        "if not self._waiting and not self._resume_fetched(step, loras):",
        (f"{SIMULATOR}/test_disaggregation.py",),
    ),
    Mutant(
        "more adapters run at once than max_loras",
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
        "sleeping from piece to piece: the stream drifts (llm-d-inference-sim)",
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
        "the requests that judge a fit are among those that it has seen",
        "simulation/calibrate.py",
        "held_out = [timing for timing in measured if timing.id not in excluded]",
        "held_out = [timing for timing in measured if timing.id in excluded]",
        ("tests/simulation/test_accuracy.py::test_the_fit_does_not_see_how_the_others_fared",),
    ),
    # The upstream engine.
    Mutant(
        "a stream that breaks off counts as a short answer (guidellm, LangChain, litellm)",
        "engines/upstream/chunk_reader.py",
        "if not self.has_started or not all(choice.is_finished for choice in self._choices):",
        "if not self.has_started:",
        (UPSTREAM,),
    ),
    Mutant(
        "a connection that an upstream closed while it was idle fails the next request",
        "engines/upstream/engine.py",
        "if index is None and isinstance(last_error, ConnectionClosed):",
        "if index is None and not last_error:",
        (f"{UPSTREAM}/test_engine.py",),
    ),
    Mutant(
        "a body that the connection cuts off counts as whole",
        "http_client/connection.py",
        "if response is not None and self._framing is BodyFraming.CLOSE and exc is None:",
        "if response is not None and exc is None:",
        ("tests/http_client/test_responses.py",),
    ),
    Mutant(
        "what follows a response is taken for the next one",
        "http_client/connection.py",
        "        if not is_exact:\n",
        "        if False:\n",
        ("tests/http_client/test_responses.py",),
    ),
    Mutant(
        "interleaved calls are said in the order in which their pieces come",
        "engines/upstream/chunk_reader.py",
        "if len(self._queue) == 1 or not head.is_complete:",
        "if len(self._queue) == 1:",
        (UPSTREAM,),
    ),
    Mutant(
        "the upstream's refusal of our key is shown to clients, key and all",
        "engines/upstream/errors.py",
        "if status in (401, 402, 403, 407) or 300 <= status < 400:",
        "if 300 <= status < 400:",
        (UPSTREAM,),
    ),
    # The chat writer.
    Mutant(
        "no role chunks at the start: choices appear as their texts come (LightLLM, vLLM)",
        "dialects/chat/writer.py",
        'return b"" if self._awaits_prompt else self._render_roles(None)',
        'return b""',
        (CHAT,),
    ),
    Mutant(
        "the stream has no logprobs although the object has (xPyD-sim)",
        "dialects/chat/writer.py",
        'self._render_logprobs(scored) if scored else b"null"',
        'b"null"',
        (CHAT,),
    ),
    Mutant(
        "the tail's tokens have no logprobs in the object",
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
        "finish_reason stays stop after a tool call, in the stream",
        "dialects/chat/writer.py",
        "reason = self._render_reason(event.reason, self._get_state(event.choice).calls > 0)",
        "reason = self._render_reason(event.reason, False)",
        (CHAT,),
    ),
    Mutant(
        "tool_calls also when cut by length, in the object alone (vLLM)",
        "dialects/chat/writer.py",
        "reason = self._render_reason(choice.reason, choice.has_tool_calls) + self._render_stop(choice.stop)",
        "reason = (b'\"tool_calls\"' if choice.has_tool_calls else self._render_reason(choice.reason, False)) + self._render_stop(choice.stop)",  # noqa: E501
        (CHAT,),
    ),
    Mutant(
        "tool_calls also when cut by length, everywhere (vllm#53269)",
        "dialects/chat/writer.py",
        "if reason is not FinishReason.STOP or not has_calls or self._options.is_named_choice:",
        "if not has_calls or self._options.is_named_choice:",
        (TRAPS, GOLDEN),
    ),
    Mutant(
        "a named function finishes as tool_calls (vllm#25054)",
        "dialects/chat/writer.py",
        "if reason is not FinishReason.STOP or not has_calls or self._options.is_named_choice:",
        "if reason is not FinishReason.STOP or not has_calls:",
        (TRAPS, GOLDEN),
    ),
    Mutant(
        "all parallel calls are number 0 (litellm#33678, vercel/ai#14277)",
        "dialects/chat/writer.py",
        "if is_legacy else render_call_start(event, state.calls - 1)",
        "if is_legacy else render_call_start(event, 0)",
        (CHAT,),
    ),
    Mutant(
        "arguments go to the call before",
        "dialects/chat/writer.py",
        "else render_call_arguments(event.arguments, state.calls - 1, state.is_custom)",
        "else render_call_arguments(event.arguments, max(0, state.calls - 2), state.is_custom)",
        (CHAT,),
    ),
    Mutant(
        "the name is repeated in later deltas (lmstudio-bug-tracker#649)",
        "dialects/chat/writer.py",
        'return b\'"tool_calls":[{"index":%d,"%s":{"%s":%s}}]\' % (index, kind, field, encode_string(text))',
        'return b\'"tool_calls":[{"index":%d,"%s":{"name":"","%s":%s}}]\' % (index, kind, field, encode_string(text))',
        (CHAT,),
    ),
    Mutant(
        "an empty list of calls in every message (vllm#53255)",
        "dialects/chat/writer.py",
        "if calls and not legacy:",
        "if not legacy:",
        (CHAT,),
    ),
    Mutant(
        "reasoning under one name in the stream and under two in the object (vllm#42664)",
        "dialects/chat/writer.py",
        "fields = [render_reasoning(names, encode_string(text))] if text else []",
        "fields = [render_reasoning(names[:1], encode_string(text))] if text else []",
        (CHAT,),
    ),
    Mutant(
        "hidden reasoning shows in the object",
        "dialects/chat/writer.py",
        "if names and (reasoning or profile is Profile.VLLM):\n        fields.append(render_reasoning(names,",
        'if reasoning or profile is Profile.VLLM:\n        fields.append(render_reasoning(names or ("reasoning",),',
        (CHAT,),
    ),
    # What surrounds the choices.
    Mutant(
        "a usage chunk that nobody asked for (LangChain.js doubles the tokens: litellm#28735)",
        "dialects/envelope.py",
        '        if not self._options.include_usage:\n            return b""\n',
        "",
        (CHAT,),
    ),
    Mutant(
        "usage counts events, not tokens (xPyD-sim)",
        "dialects/envelope.py",
        "self._completion += len(tokens)",
        "self._completion += 1",
        (CHAT,),
    ),
    Mutant(
        "no usage: null on the chunks before the last",
        "dialects/envelope.py",
        "null_usage = options.include_usage and options.profile is Profile.OPENAI",
        "null_usage = False",
        (TRAPS, GOLDEN),
    ),
    Mutant(
        "[DONE] after a hidden error",
        "dialects/envelope.py",
        'return b"data: %s\\n\\n" % render_openai_error(error, self._options.profile)',
        'return b"data: %s\\n\\n" % render_openai_error(error, self._options.profile) + DONE',
        (CLIENTS, GOLDEN),
    ),
    Mutant(
        "an abort looks like a complete answer",
        "dialects/envelope.py",
        "return b'\"length\"'",
        "return b'\"stop\"'",
        (GOLDEN,),
    ),
    Mutant(
        "text with U+2028 breaks clients that read lines",
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
        "error bodies without param",
        "dialects/errors.py",
        "class OpenAIErrorDetail(Struct, frozen=True):",
        "class OpenAIErrorDetail(Struct, frozen=True, omit_defaults=True, rename={'param': 'parameter'}):",
        (GOLDEN, "tests/dialects/test_errors.py"),
    ),
    # The Completions writer.
    Mutant(
        "an echo goes to the choices of the first prompt",
        "dialects/completions.py",
        "choices = range(event.prompt * self._choices_per_prompt, (event.prompt + 1) * self._choices_per_prompt)",
        "choices = range(self._choices_per_prompt)",
        (COMPLETIONS,),
    ),
    Mutant(
        "offsets begin anew in every chunk",
        "dialects/completions.py",
        "logprobs = self._render_logprobs(state.offsets, prompt, scored)",
        "logprobs = self._render_logprobs(self._create_offsets(), prompt, scored)",
        (COMPLETIONS,),
    ),
    Mutant(
        "the echoed prompt's first token has a logprob",
        "dialects/logprobs.py",
        "self._build_row(token, offset) if rows else LogprobRow(offset, self._get_name(token), None, None)",
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
        "more alternatives than were asked for",
        "dialects/logprobs.py",
        "for alternative in token.top[:top]\n        ]",
        "for alternative in token.top\n        ]",
        (CLIENTS, GOLDEN),
    ),
    # The readers.
    Mutant(
        "a body of nothing but brackets",
        "dialects/body.py",
        "> MAX_DEPTH and _is_too_deep(data):",
        "> MAX_DEPTH and not data:",
        (BODY,),
    ),
    Mutant(
        "bytes that are no UTF-8 pass where nobody looks",
        "dialects/body.py",
        "if not data.isascii():",
        "if not data:",
        (BODY, FUZZ),
    ),
    Mutant(
        "a client's value is echoed at any length (vLLM's 23.6 MB of errors)",
        "dialects/body.py",
        'return repr(value) if len(value) <= MAX_ECHO else repr(value[:MAX_ECHO]) + "..."',
        "return repr(value)",
        (BODY,),
    ),
    Mutant(
        "unsupported fields are ignored in silence",
        "dialects/parameter_table.py",
        "raise Unsupported(f\"'{name}' is not supported here: {row.note}.\", param=name)",
        "pass",
        (PARAMETERS,),
    ),
    Mutant(
        "the regex of a custom tool is told to the model and not enforced (ours, seen with the OpenAI SDK)",
        "parsers/tool_parameters.py",
        'if tool.syntax == "regex" and tool.definition is not None:',
        "if tool.definition is None:",
        ("tests/serving/test_embedded.py",),
    ),
    Mutant(
        "a text file is refused where the engine reads no files (vLLM; ours, seen with Anthropic's Files)",
        "serving/media.py",
        "replacements[file] = _decode_text(resolved.get(file, file)) or file",
        "replacements[file] = file",
        ("tests/serving/test_media.py",),
    ),
    Mutant(
        "on a path of two vendors Anthropic's clients are answered as OpenAI's (ours, seen with Anthropic's Files)",
        "dialects/anthropic/batches.py",
        'return "anthropic-version" in headers',
        "return False",
        ("tests/serving/test_anthropic_files.py",),
    ),
    Mutant(
        "file: URLs are taken (LightLLM)",
        "dialects/body.py",
        'if scheme in ("http", "https"):',
        'if scheme in ("http", "https", "file"):',
        (READER,),
    ),
    Mutant(
        "a function that was never declared can be forced",
        "dialects/chat/messages.py",
        "if not any(tool.name == name and isinstance(tool, kind) for tool in tools):",
        "if not tools:",
        (READER,),
    ),
    Mutant(
        "one hosted tool refuses the whole request (llama.cpp#20156)",
        "dialects/chat/messages.py",
        'warnings.append(f"{path}: tools of type {abbreviate(hosted)} cannot be run here; it was left out")',
        "raise missing_parameter(path)",
        (TRAPS,),
    ),
    Mutant(
        "max_completion_tokens is overruled by the old name",
        "dialects/chat/reader.py",
        "max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens",
        "max_tokens = body.max_completion_tokens if body.max_tokens is None else body.max_tokens",
        (READER,),
    ),
    Mutant(
        "-1 is a length like any other",
        "dialects/chat/reader.py",
        "None if max_tokens == -1 else max_tokens, max_tokens_name",
        "max_tokens, max_tokens_name",
        (READER,),
    ),
    Mutant(
        "only one name of replayed reasoning is read",
        "dialects/chat/messages.py",
        "message.reasoning or message.reasoning_content or ",
        "message.reasoning or ",
        (TRAPS,),
    ),
    # Parsers.
    Mutant(
        "a mark that is split over two deltas leaks into the reasoning (no hold-back)",
        "parsers/think.py",
        "ReasoningDelta, len(self._buffer) - self._end_patterns.pending_lengths[self._search_state]",
        "ReasoningDelta, len(self._buffer)",
        (PARSERS,),
    ),
    Mutant(
        "text that is held at the end is dropped (LightLLM)",
        "parsers/think.py",
        "self._emit_buffered(ReasoningDelta if in_reasoning else TextDelta, len(self._buffer))",
        "self._drop(len(self._buffer))",
        (f"{PARSERS}/test_laws.py",),
    ),
    Mutant(
        "the tokens of marks are lost",
        "parsers/base.py",
        "self._pending_tokens.extend(self._buffer.pop(n, drop=True)[1])",
        "self._buffer.pop(n, drop=True)",
        (f"{PARSERS}/test_laws.py",),
    ),
    Mutant(
        "a malformed call is swallowed (LightLLM: 400 Failed to parse fc)",
        "parsers/call_parser.py",
        "elif call.is_undeclared or status is not ReadStatus.MORE:\n            self._emit_buffered(TextDelta, n)",
        "elif call.is_undeclared or status is not ReadStatus.MORE:\n            self._drop(n)",
        (PARSERS,),
    ),
    Mutant(
        "half a mark of a call leaks into the text (several parsers of vLLM)",
        "parsers/delimited_calls.py",
        "self._emit_buffered(TextDelta, len(self._buffer) - start_patterns.pending_lengths[self._search_state])",
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
        "a parameter that DeepSeek marks as a string stays one against the schema (ours)",
        "parsers/xml_tags.py",
        'if (is_text and (not self._types or "string" in self._types)) or (',
        "if is_text or (",
        (PARSERS,),
    ),
    Mutant(
        "the object of all arguments is taken for one of them (ours)",
        "parsers/xml_tags.py",
        "is_spliced = key in self._syntax.spliced_keys and bool(declared) and key not in declared",
        "is_spliced = False",
        (PARSERS,),
    ),
    Mutant(
        "control tokens that share a marker never reach the parser (ours: five families)",
        "pipeline/served_model.py",
        "for text, id in special.items() if any(text in marker for marker in markers)",
        "for text, id in special.items() if text in markers",
        ("tests/pipeline/test_marker_tokens.py",),
    ),
    Mutant(
        "keywords beside the alternatives of an argument are dropped in silence (ours)",
        "parsers/tool_parameters.py",
        "            else:\n                self.unenforced[key] = None\n        return merged",
        "        return merged",
        (SCHEMAS,),
    ),
    Mutant(
        "values of an enum that other keywords forbid are forced (ours)",
        "parsers/tool_parameters.py",
        "if all(check(value, limit) for check, limit in checks)]",
        "]",
        ("tests/constraints/test_families.py",),
    ),
    Mutant(
        "the ids that Kimi gives its calls are replaced, and its next turn does not know them",
        "parsers/json_calls.py",
        'name, id = prefix.removeprefix("functions."), raw',
        'name, id = prefix.removeprefix("functions."), None',
        (PARSERS,),
    ),
    Mutant(
        "Python's True in the arguments is no JSON",
        "parsers/pythonic.py",
        '{"True": "true", "False": "false", "None": "null"}',
        '{"True": "True", "False": "False", "None": "None"}',
        (PARSERS,),
    ),
    # Responses.
    Mutant(
        "sequence_number begins at 1 (llama.cpp#24957)",
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
        "a part is filled that was never announced (vllm#45742)",
        "dialects/responses/item_writers.py",
        'render_text_part("", b"[]")))]',
        'render_text_part("", b"[]")))][1:]',
        (RESPONSES,),
    ),
    Mutant(
        "an answer that was cut off says completed",
        "dialects/responses/writer.py",
        "return COMPLETED if reason is FinishReason.STOP else INCOMPLETE",
        "return COMPLETED",
        (RESPONSES,),
    ),
    Mutant(
        "cache_write_tokens is 0, whatever was written",
        "dialects/responses/item_writers.py",
        "usage.prompt, usage.cached or 0, usage.written or 0,",
        "usage.prompt, usage.cached or 0, 0,",
        ("tests/serving/test_counting.py",),
    ),
    Mutant(
        "items have other ids in the whole than in the stream (litellm#37852, vllm#38227)",
        "dialects/responses/writer.py",
        "self._item_writers.create_complete(len(items), part)",
        "self._item_writers.create_complete(i + 1, part)",
        (RESPONSES,),
    ),
    Mutant(
        "a namespaced call comes back flattened (vllm#46737)",
        "dialects/responses/item_writers.py",
        'self._names.get(name) or ToolName(name, name, "")',
        'ToolName(name, name, "")',
        (STREAMS,),
    ),
    Mutant(
        "a comment for a keepalive (openai/codex#31539)",
        "dialects/responses/writer.py",
        "return self._render_start() or self._render_in_progress()",
        'return b": keepalive\\n\\n"',
        (STREAMS,),
    ),
    Mutant(
        "a call that was not finished is done when the answer fails: agents would run it",
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
        "what a store keeps of a refusal in the input is its text, which is empty",
        "dialects/responses/input_items.py",
        '(part.refusal if part.type == "refusal" else part.text)',
        "part.text",
        (STREAMS,),
    ),
    # The pipeline and the serving path.
    Mutant(
        "choices of several prompts are numbered choice by choice",
        "pipeline/run.py",
        "choice=index * first_started.choices + event.choice",
        "choice=event.choice * len(self._started) + index",
        ("tests/pipeline/test_merge.py",),
    ),
    Mutant(
        "errors before the first token arrive inside a 200 stream",
        "serving/streaming.py",
        "        send, run = self._send, self._run\n",
        "        send, run = self._send, self._run\n        await self._send_headers()\n",
        (f"{SERVING}/test_answers.py",),
    ),
    # What is stored.
    Mutant(
        "a response is acknowledged before it is stored (vllm-mlx loses turns)",
        "serving/store_access.py",
        "            await persist(builder.build())\n            yield batch[-1:]\n",
        "            yield batch[-1:]\n            await persist(builder.build())\n",
        ("tests/serving/responses/test_stored.py",),
    ),
    Mutant(
        "what was deleted in the middle of a conversation is left out of it in silence",
        "serving/routes/responses/history.py",
        "if not chain.is_complete:",
        "if False:",
        ("tests/serving/responses/test_continuing.py",),
    ),
    Mutant(
        "a stream that is resumed begins with the event that the client has already",
        "serving/routes/responses/background.py",
        "event.number > starting_after",
        "event.number >= starting_after",
        ("tests/serving/responses/test_background.py",),
    ),
    Mutant(
        "what a dead process left behind is in progress for ever",
        "serving/routes/responses/background.py",
        "        await self.finalize_abandoned()\n        self._watcher",
        "        self._watcher",
        ("tests/serving/responses/test_background.py",),
    ),
    Mutant(
        "the engine keeps running after the client left (LightLLM's middleware)",
        "serving/streaming.py",
        "        on_disconnect(self._abort)\n",
        "",
        ("tests/serving/test_disconnect.py",),
    ),
    Mutant(
        "whatever cancels a request is taken for its client's leaving, and a server that stops does not end it",
        "serving/streaming.py",
        "            if not self._is_cancelled or self._task is None or self._task.uncancel():\n                raise\n",  # noqa: E501
        "            pass\n",
        ("tests/serving/test_disconnect.py",),
    ),
    Mutant(
        "an engine's failure in mid-stream ends the stream as if it were complete",
        "serving/streaming.py",
        "await self._write(self._framing.render_error(error), more_body=False)",
        "await self._write(self._framing.end, more_body=False)",
        (f"{SERVING}/test_answers.py",),
    ),
    # Replay of sampled tokens.
    Mutant(
        "a chain is tokenised afresh, and the cached prefix ends at the first token that was chosen otherwise",
        "prompts/tokenizer.py",
        "return matching_ids.popleft() if matching_ids else None",
        "return None",
        ("tests/serving/responses/test_agents.py",),
    ),
    Mutant(
        "sampled ids are taken as they are, control tokens that a user wrote included",
        "prompts/tokenizer.py",
        "                if id in control_ids:\n                    pieces.append([])\n",
        "                if False:\n                    pieces.append([])\n",
        ("tests/prompts/test_token_replay.py",),
    ),
    Mutant(
        "with `*` allowed, any page may order what administrators may",
        "serving/cors.py",
        '        if "*" in self._allowed and not by_name:\n',
        '        if "*" in self._allowed:\n',
        ("tests/serving/test_cors.py",),
    ),
    Mutant(
        "a burst of requests keeps everybody else's tokens waiting until all of it is read",
        "serving/service.py",
        "        if self._available and not self._waiters:",
        "        if True:",
        ("tests/serving/test_pacing.py",),
    ),
    # The WebSocket.
    Mutant(
        "a page of any site may use the server of whoever reads it, by a WebSocket",
        "serving/routes/responses/websocket.py",
        "            self._policy.check_origin(http.headers, self.access)\n",
        "",
        ("tests/serving/responses/test_websocket.py",),
    ),
    Mutant(
        "a failed continuation stays the connection's memory",
        "serving/routes/responses/websocket.py",
        "        elif self._history is not None and self._history.id == previous:\n            self._history = None\n",
        "",
        ("tests/serving/responses/test_websocket.py",),
    ),
    # What is sealed and signed.
    Mutant(
        "a sealed thought is opened for whoever brings it (one key for all owners)",
        "serving/crypto.py",
        'info = f"dragoman 1 {purpose}\\n{self.owner}".encode()',
        'info = f"dragoman 1 {purpose}".encode()',
        (f"{SERVING}/test_crypto.py",),
    ),
    Mutant(
        "an invalid signature of a thought is believed",
        "dialects/anthropic/content_blocks.py",
        'is_signed = key is not None and seal != "" and key.verify_signature(thinking, seal)',
        "is_signed = True",
        ("tests/dialects/anthropic", f"{SERVING}/test_crypto.py"),
    ),
    # The store.
    Mutant(
        "a failed commit leaves the changes made before it",
        "store/sqlite.py",
        'connection.execute("ROLLBACK TO job")',
        "pass",
        ("tests/store/test_kit.py",),
    ),
    Mutant(
        "acknowledged although the disk was full",
        "store/sqlite.py",
        "job.error = StoreUnavailable(failure.message)",
        "pass",
        ("tests/store/test_sqlite.py",),
    ),
    Mutant(
        "whoever knows an id reads the chain of another key (Open WebUI CVE-2026-45349)",
        "store/sql.py",
        "ON r.owner = $1 AND r.kind = $2 AND r.id = hop.parent",
        "ON r.kind = $2 AND r.id = hop.parent",
        ("tests/store/test_kit.py",),
    ),
    Mutant(
        "reading is no use: what is read most goes first",
        "store/sql.py",
        "self._touches[record.position] = now",
        "pass",
        ("tests/store/test_kit.py", "tests/store/test_state_machine.py"),
    ),
    Mutant(
        "a block that was taken for something else is kept under its old name",
        "engines/batching/offload.py",
        "if find(block_hash) == block:",
        "if find(block_hash) == block or True:",
        ("tests/engines/batching/test_offload.py",),
    ),
    Mutant(
        "what a file holds is not looked at",
        "engines/batching/offload.py",
        "if digest != _compute_digest(block_hash, contents):",
        "if not contents:",
        ("tests/engines/batching/test_offload.py",),
    ),
    Mutant(
        "what one adapter computed is found by another",
        "engines/batching/blocks.py",
        'key=adapter.to_bytes(8, "big")',
        'key=b""',
        ("tests/engines/batching/test_blocks.py",),
    ),
    Mutant(
        "two responses at once run in one conversation",
        "serving/routes/responses/turn.py",
        "conversation_lock = conversation_locks.acquire(owner, responses_call.conversation)",
        "conversation_lock = None",
        ("tests/serving/responses/test_conversations.py",),
    ),
    # Work that no client waits for.
    Mutant(
        "after a restart a batch does all of its requests again",
        "serving/batch_job.py",
        "if line.custom_id not in done_ids:",
        "if True:",
        ("tests/serving/test_batches.py",),
    ),
    Mutant(
        "a batch that finds the engine full fails its requests",
        "serving/jobs.py",
        "_OVERLOADED_STATUSES = frozenset({429, 503, 529})",
        "_OVERLOADED_STATUSES = frozenset({429})",
        ("tests/serving/test_batches.py",),
    ),
    Mutant(
        "a batch takes the engine from those who wait",
        "serving/generate.py",
        "request.priority + BACKGROUND_PRIORITY_OFFSET if caller.is_background",
        "request.priority if caller.is_background",
        ("tests/serving/test_batches.py",),
    ),
    Mutant(
        "a thread goes on without the turn that was deleted from its middle",
        "serving/routes/messages.py",
        "if chain is None or not chain.is_complete:",
        "if chain is None:",
        ("tests/serving/test_threads.py",),
    ),
    Mutant(
        "what runs goes on with keys and values of the old weights, and what is sampled is nobody's policy",
        "engines/batching/worker.py",
        "        self.scheduler.restart_all()\n        self.scheduler.disable_offload()\n",
        "        self.scheduler.disable_offload()\n",
        ("tests/engines/batching/test_control.py",),
    ),
    Mutant(
        "a trainer's path leaves the directory that the operator named",
        "serving/routes/admin.py",
        "    if not location.is_relative_to(Path(root).resolve()):\n",
        "    if not location.is_absolute():\n",
        ("tests/serving/test_weights.py", "tests/serving/test_adapters.py"),
    ),
    Mutant(
        "a bad word is sampled where masks are packed for a device",
        "engines/batching/sampler.py",
        "        np.bitwise_and.at(packed, forbidden >> 3, ~(1 << (forbidden & 7)).astype(np.uint8))\n",
        "",
        ("tests/engines/batching/test_sampler.py",),
    ),
    Mutant(
        "an answer names only the weights that it began with",
        "engines/batching/worker.py",
        "                if sequence.version != self.version:\n",
        "                if sequence.version is None:\n",
        ("tests/engines/batching/test_control.py",),
    ),
    Mutant(
        "SGLang's clients cut each event where the last one ended, and are sent only what is new",
        "dialects/sglang.py",
        "                state.text += text\n",
        "                state.text = text\n",
        ("tests/laws/test_sglang.py",),
    ),
    Mutant(
        "TGI's clients get the last token before its end is known, and an event without a token for the end",
        "dialects/tgi/writer.py",
        "        reached_limit = limit is not None and self._count >= limit\n",
        "        reached_limit = limit is not None and self._count > limit\n",
        ("tests/dialects/tgi",),
    ),
    Mutant(
        "of TGI's tokens that come at once each says the text of all of them",
        "dialects/logprobs.py",
        "        self._text = self._text[len(data) :]\n",
        "",
        ("tests/dialects/tgi", "tests/laws/test_tgi.py"),
    ),
    Mutant(
        "Ollama's clients get a tool call twice, or never: what is open is not closed before the next begins",
        "dialects/ollama/writer.py",
        "        call, self._call = self._call, None\n",
        "        call = self._call\n",
        ("tests/laws/test_ollama.py",),
    ),
    Mutant(
        "Ollama's clients, which do not look at done_reason, run a call with half of its arguments",
        "dialects/ollama/writer.py",
        "    if is_cut_off and not _is_object(arguments):\n",
        "    if is_cut_off and not arguments:\n",
        ("tests/laws/test_ollama.py",),
    ),
    Mutant(
        "keep_alive of one request holds for all later loads of the model",
        "pipeline/lifecycle.py",
        "        self._ttl = self.spec.ttl\n",
        "",
        ("tests/serving/test_ollama.py",),
    ),
    Mutant(
        "SGLang's clients are answered as TGI's",
        "dialects/tgi/reader.py",
        "        return False\n    return True\n",
        "        return True\n    return True\n",
        ("tests/dialects/tgi", "tests/serving/test_tgi.py"),
    ),
    Mutant(
        "an executor tokenises a prompt again, and is believed",
        "engines/rollout.py",
        "        if candidate.prompt_token_ids not in (None, call.prompt):\n",
        "        if False:\n",
        ("tests/engines/rollout",),
    ),
    Mutant(
        "weights are replaced under a call that runs, and its tokens are of neither policy",
        "engines/rollout.py",
        "            if self._control is None or not self._control.is_paused:\n",
        "            if False:\n",
        ("tests/engines/rollout",),
    ),
    Mutant(
        "a structured_outputs whose member is misspelt binds nothing, in silence",
        "dialects/fields.py",
        "    if outputs is not None and not constraints and outputs.close_at_limit is None:\n",
        "    if False:\n",
        ("tests/dialects/test_chat_reader.py",),
    ),
    Mutant(
        "what an engine refuses late is an error of the server",
        "pipeline/prompt_run.py",
        "                self._failure = error\n",
        "                self._failure = EngineError(error.message)\n",
        ("tests/pipeline/test_prompt_run.py",),
    ),
    # Tokens that are written from the engine's delivery, and prompts that are prepared faster.
    Mutant(
        "tokens overtake those that wait for a slow reader",
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
        "headers that no body follows at once are never sent",
        "http/exchange.py",
        "        self._context.loop.call_soon(self._write_head)\n",
        "",
        ("tests/http/test_direct_write.py",),
    ),
    Mutant(
        "a response whose last choice ends at a stop string in the delivery is never ended",
        "pipeline/prompt_run.py",
        "        if not self._n_unfinished or self._failure is not None or self._direct_failure is not None:",
        "        if self._failure is not None or self._direct_failure is not None:",
        (DIRECT,),
    ),
    Mutant(
        "a fault of one response's pipeline in the delivery is lost",
        "pipeline/prompt_run.py",
        "            self._direct_failure = error\n",
        "            del error\n",
        (DIRECT,),
    ),
    Mutant(
        "what is stored lacks the tokens that were written from the delivery",
        "serving/store_access.py",
        "    if run.direct is not None:",
        "    if False:",
        (DIRECT,),
    ),
    Mutant(
        "a simulated front end comes on top of the server's own (ours)",
        "engines/simulator/engine.py",
        "arrived_at=now if request.arrival_time is None else",
        "arrived_at=now if request.id else",
        ("tests/engines/simulator/test_arrival.py",),
    ),
    Mutant(
        "uvloop spins until a step's time has come (ours)",
        "engines/simulator/rank.py",
        "_TOLERANCE = 0.000502",
        "_TOLERANCE = 0.000002",
        ("tests/engines/simulator/test_timer_queue.py",),
    ),
    Mutant(
        "one owner's prompts are in the cache of another",
        "prompts/tokenizer.py",
        "        key = (owner, is_first, text)",
        '        key = ("", is_first, text)',
        ("tests/prompts/test_tokenizer.py",),
    ),
    Mutant(
        "a piece within a prompt gets the ids of one that begins it",
        "prompts/tokenizer.py",
        "        key = (owner, is_first, text)",
        "        key = (owner, False, text)",
        ("tests/prompts/test_tokenizer.py",),
    ),
    Mutant(
        "a Prometheus gets other names than those of the dashboard",
        "serving/routes/metrics.py",
        '            options["escaping"] = ALLOWUTF8',
        "            pass",
        ("tests/serving/test_metrics.py",),
    ),
    Mutant(
        "the generation prompt is taken for what precedes it",
        "prompts/template.py",
        "last.elif_ or last.else_ or len(reads) != 1",
        "last.elif_ or len(reads) != 1",
        ("tests/prompts/test_render.py",),
    ),
)


def main(arguments: list[str]) -> int:
    _check_up_to_date()
    wanted = [argument for argument in arguments if not argument.startswith("--")]
    share = next((argument.removeprefix(SHARE) for argument in arguments if argument.startswith(SHARE)), "0/1")
    first, every = map(int, share.split("/"))
    shared = list(enumerate(MUTANTS))[first::every]
    chosen = [(i, mutant) for i, mutant in shared if _is_wanted(i, mutant, wanted)]
    tests = sorted({test for _, mutant in chosen for test in mutant.tests})
    count, missed = os.cpu_count() or 1, 0
    # Each has a tree of its own, so that they do not meet.
    with ThreadPoolExecutor(count) as pool:
        if PASSED not in arguments and (
            failed := [name for names in pool.map(_unspoilt, _shares(tests, count)) for name in names]
        ):
            print(f"the tests fail without any mutant: {', '.join(failed)}")
            return 1
        for (i, mutant), (failed, seconds) in zip(chosen, pool.map(_tried, (each for _, each in chosen)), strict=True):
            missed += not failed
            word = "CAUGHT" if failed else "MISSED"
            print(f"{i:2} {word} {seconds:4.0f} s  {mutant.bug}  <- {', '.join(failed)}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


def _shares(tests: list[str], count: int) -> list[tuple[str, ...]]:
    """About the same number of files of tests in each; none twice."""
    shares: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    files = {test: 1 + len(list((ROOT / test).rglob("test_*.py"))) for test in tests}
    for test in sorted(tests, key=lambda test: -files[test]):
        if not any(test.startswith(f"{other}/") for other in tests):
            least = sizes.index(min(sizes))
            shares[least].append(test)
            sizes[least] += files[test]
    return [tuple(share) for share in shares if share]


def _unspoilt(tests: tuple[str, ...]) -> list[str]:
    """Those that fail without any bug of ours."""
    with _copy() as tree:
        return _failures(tree, tests, 10 * TIMEOUT)


def _tried(mutant: Mutant) -> tuple[list[str], float]:
    """The tests that found it, and the seconds that this took."""
    before = time.monotonic()
    with _copy() as tree:
        _apply(tree, mutant)
        failed = _failures(tree, mutant.tests)
    return failed, time.monotonic() - before


def _check_up_to_date() -> None:
    """Before the long run, and for all rows: a row that changes nothing would prove nothing."""
    for mutant in MUTANTS:
        _changed(ROOT, mutant)


def _changed(tree: Path, mutant: Mutant) -> tuple[Path, str]:
    """The file of the bug, and what is to stand in it."""
    path = tree / "src/dragoman" / mutant.file
    text = path.read_text()
    if (found := text.count(mutant.old)) != 1:
        raise SystemExit(f"out of date: {mutant.bug!r}: its text is {found} times in {mutant.file}, expected once")
    return path, text.replace(mutant.old, mutant.new)


def _is_wanted(number: int, mutant: Mutant, wanted: list[str]) -> bool:
    text = f"{mutant.file} {mutant.bug}"
    return not wanted or any(word == str(number) if word.isdigit() else word in text for word in wanted)


@contextmanager
def _copy() -> Generator[Path]:
    """A copy of the tree in a directory of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="dragoman-mutant-") as directory:
        tree = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=LEFT_OUT)
            else:
                shutil.copy(source, tree / name)
        yield tree


def _apply(tree: Path, mutant: Mutant) -> None:
    path, text = _changed(tree, mutant)
    path.write_text(text)


def _failures(tree: Path, tests: tuple[str, ...], timeout: float = TIMEOUT) -> list[str]:
    """Names of the tests that failed. Tests that could not even be collected end the whole run."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "HYPOTHESIS_PROFILE": "mutants"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", QUICK, "-p", "no:cacheprovider", "--tb=no", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return ["no end"]
    if found := re.search(r"^ERROR ([^\s:]+)(?: - .*)?$", done.stdout, re.MULTILINE):
        # Then no test has noticed anything: the copy lacks what a module imports, or the bug is no Python.
        raise SystemExit(f"{found.group(1)} could not be collected:\n{done.stdout}")
    return list(_names(done.stdout)) or ([done.stdout + done.stderr] if done.returncode else [])


def _names(output: str) -> Iterator[str]:
    for found in re.finditer(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE):
        yield found.group(1).split("::")[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
