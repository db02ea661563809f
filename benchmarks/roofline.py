"""How near the roofline comes to public measurements of vLLM, and the fit of its
constants to them.

    python -m benchmarks.roofline            errors of `dragoman profile`'s predictions
    python -m benchmarks.roofline --fit      fit the constants to all rows, and print them
    python -m benchmarks.roofline --held-out errors of fits that did not see the model
    python -m benchmarks.roofline --write    the tables of docs/plan.md

Run in the repository's root. Rows and their sources are in
`packages/dragoman-sim/tests/data/public-runs`. A fit takes a few minutes: it simulates
all rows with one set of constants, fits the constants to the steps of these
simulations, and repeats that, since other constants make other steps.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman_check.load.logs.json_lines_log import read_log
from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.latency import LatencyModel, TokenCost
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.lab.gpus import Gpu, load_gpus
from dragoman_sim.lab.model_shape import Dtype, ModelShape, load_model_shape, read_model_shape
from dragoman_sim.lab.replay import replay
from dragoman_sim.lab.replay_result import ReplayResult
from dragoman_sim.lab.roofline import (
    FITTED,
    Constants,
    Parallelism,
    predict_latency,
    predict_profile,
)

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "packages/dragoman-sim/tests/data"
PAGE = ROOT / "docs/plan.md"
ERRORS = ROOT / "packages/dragoman-sim/src/dragoman_sim/lab/prediction_errors.yaml"
Vector = NDArray[np.float64]
Metric = Literal["e2e", "ttft", "tpot", "duration"]

ARCHITECTURES: Mapping[str, str] = {"h100-sxm": "hopper", "h200-sxm": "hopper"}
"""Devices that share their constants; others have their own."""
BLOCK = 16
SHAREGPT_DEVIATIONS = (1.2, 1.0)
"""Standard deviations of ShareGPT's prompt and output lengths, relative to the means,
which alone are published.
"""


class Row(Struct, frozen=True):
    """A measured run.

    load: `decode` (a constant rate that the server keeps up with), `saturated` (all
        requests at once), `few streams`, or `log` (every request's times are known).
    skipped: first requests that are not compared, since they fill the prefix cache.
    measured: seconds.
    """

    name: str
    load: str
    gpu_name: str
    gpu: Gpu
    shape: ModelShape
    parallelism: Parallelism
    config: SimulatedSchedulerConfig
    workload: Sequence[WorkloadRequest]
    skipped: int
    measured: Mapping[Metric, float]

    @property
    def kind(self) -> str:
        return "mixture of experts" if self.shape.experts else "dense"

    @property
    def architecture(self) -> str:
        return ARCHITECTURES.get(self.gpu_name, self.gpu_name)


def load_rows() -> list[Row]:
    """Load the public rows and the logs of single devices."""
    configs = json.loads((DATA / "public-runs/models.json").read_bytes())
    # The table takes a tenth of a second to read.
    gpus = load_gpus()
    rows = [_read_decode_row(row, configs, gpus) for row in _read_lines("decode")]
    rows += [_read_saturated_row(row, configs, gpus) for row in _read_lines("saturated")]
    rows.append(_read_log_row("rtx4090", 256, gpus))
    rows.append(_read_log_row("rtxpro6000", 128, gpus))
    return rows


def _read_lines(name: str) -> list[dict[str, Any]]:
    with (DATA / f"public-runs/{name}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _read_decode_row(
    row: Mapping[str, Any], configs: Mapping[str, Any], gpus: Mapping[str, Gpu]
) -> Row:
    measured = row["measured_ms"]
    in_flight = row["rate"] * measured["e2e_mean"] / 1e3
    shape = read_model_shape(configs[row["model"]], row["model"])
    limits = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
    return _build_row(
        row,
        gpus,
        str(row["id"]),
        "decode",
        shape,
        {name: row[name] for name in limits},
        _build_cycled_workload(row, int(220 + 3 * in_flight)),
        100 + int(in_flight),
        {
            "e2e": measured["e2e_mean"] / 1e3,
            "ttft": measured["ttft_mean"] / 1e3,
            "tpot": measured["itl_mean"] / 1e3,
        },
    )


def _read_saturated_row(
    row: Mapping[str, Any], configs: Mapping[str, Any], gpus: Mapping[str, Gpu]
) -> Row:
    measured = row["measured"]
    dtype: Dtype | None = row["dtype"] if row["dtype"] in ("fp8", "int4") else None
    limit = row["max_concurrency"]
    return _build_row(
        row,
        gpus,
        row["row"],
        "few streams" if limit else "saturated",
        read_model_shape(configs[row["model"]], row["model"], dtype),
        {},
        _build_burst(row, int(limit) if limit else None),
        0,
        {
            "duration": measured["duration_s"],
            "ttft": measured["mean_ttft_ms"] / 1e3,
            "tpot": measured["mean_tpot_ms"] / 1e3,
        },
    )


def _read_log_row(gpu: str, max_num_seqs: int, gpus: Mapping[str, Gpu]) -> Row:
    name = f"{gpu}-llama-3.1-8b"
    with (DATA / f"measured-runs/{name}.jsonl").open(encoding="utf-8") as lines:
        workload, timings = read_log(lines)
    settings = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048}
    shape = load_model_shape("meta-llama/Llama-3.1-8B")
    run = {"gpu": gpu, "tp": 1}
    return _build_row(run, gpus, name, "log", shape, settings, workload, 0, _summarize(timings))


def _build_row(
    row: Mapping[str, Any],
    gpus: Mapping[str, Gpu],
    name: str,
    load: str,
    shape: ModelShape,
    settings: Mapping[str, Any],
    workload: Sequence[WorkloadRequest],
    skipped: int,
    measured: Mapping[Metric, float],
) -> Row:
    gpu = gpus[row["gpu"]]
    expert = bool(row.get("expert_parallel")) and bool(shape.experts)
    parallelism = Parallelism(row["tp"], expert=expert)
    profile = predict_profile(gpu, shape, parallelism, name=name, settings=settings)
    return Row(
        name,
        load,
        row["gpu"],
        gpu,
        shape,
        parallelism,
        profile.engine,
        workload,
        skipped,
        measured,
    )


def _build_cycled_workload(row: Mapping[str, Any], count: int) -> list[WorkloadRequest]:
    """Ten groups of ten prompts, which share a system prompt, in turns at a constant
    rate.
    """
    blocks = row["prompt_tokens"] // BLOCK
    shared = row["system_tokens"] // BLOCK
    requests: list[WorkloadRequest] = []
    for number in range(count):
        prompt = number % 100
        hashes = [f"system {prompt // 10} {block}" for block in range(shared)]
        hashes += [f"prompt {prompt} {block}" for block in range(shared, blocks)]
        requests.append(
            WorkloadRequest(
                id=str(number),
                arrival_s=number / row["rate"],
                input_tokens=row["prompt_tokens"],
                output_tokens=row["output_tokens"],
                block_hashes=tuple(hashes),
            )
        )
    return requests


def _build_burst(row: Mapping[str, Any], concurrency: int | None) -> list[WorkloadRequest]:
    """All requests at once, or the next when one of `concurrency` streams ends."""
    count = row["requests"]
    prompts = _draw_lengths(row, "prompt_tokens", 0)
    outputs = _draw_lengths(row, "output_tokens", 1)
    return [
        WorkloadRequest(
            id=str(number),
            arrival_s=0.0,
            input_tokens=prompts[number],
            output_tokens=outputs[number],
            after=str(number - concurrency) if concurrency and number >= concurrency else None,
        )
        for number in range(count)
    ]


def _draw_lengths(row: Mapping[str, Any], name: str, seed: int) -> list[int]:
    """Draw log-normal lengths with the published mean; all are equal if they were."""
    mean = float(row[name])
    if row["lengths"] == "fixed":
        return [max(1, round(mean))] * row["requests"]
    sigma = math.sqrt(math.log(1 + SHAREGPT_DEVIATIONS[seed] ** 2))
    count = int(row["requests"])
    lengths: Vector = np.random.default_rng(seed).lognormal(0.0, sigma, count)
    for _ in range(20):
        lengths = np.minimum(np.maximum(lengths * (mean / float(lengths.mean())), 4.0), 1024.0)
    return [round(length) for length in lengths.tolist()]


def _summarize(timings: Sequence[Timing]) -> dict[Metric, float]:
    tpots = [timing.tpot for timing in timings if timing.tpot]
    return {
        "e2e": float(np.mean([timing.latency for timing in timings])),
        "ttft": float(np.mean([timing.ttft for timing in timings])),
        "tpot": float(np.mean(tpots)) if tpots else 0.0,
        "duration": max(timing.last_token_s for timing in timings)
        - min(timing.arrival_s for timing in timings),
    }


def simulate(row: Row, gpu: Gpu, constants: Constants) -> ReplayResult:
    latency = predict_latency(gpu, row.shape, row.parallelism, constants)
    core = EngineCore(SimulatedScheduler(row.config), latency.compute_seconds)
    return replay(row.workload, [core], frontend_seconds=constants.frontend_seconds)


def compare(row: Row, result: ReplayResult) -> dict[Metric, float]:
    """Return the relative errors; 0.1 is 10 % too slow."""
    simulated = _summarize(result.timings[row.skipped :])
    return {name: simulated[name] / seconds - 1 for name, seconds in row.measured.items()}


class StepWeights:
    """How often each step of a simulation counts in each mean, so that the means for
    other constants need no other simulation.
    """

    def __init__(self, row: Row, result: ReplayResult) -> None:
        steps = result.steps[0]
        self._begins = np.array(steps.begins)
        self._ends = np.array(steps.ends)
        self._tokens = np.array(steps.tokens, dtype=np.float64)
        self._context = np.array(steps.context, dtype=np.float64)
        self._pairs = np.array(steps.prefill_pairs, dtype=np.float64)
        self._sequences = np.array(steps.sequences, dtype=np.float64)
        timings = result.timings[row.skipped :]
        first = np.array([timing.first_token_s for timing in timings])
        last = np.array([timing.last_token_s for timing in timings])
        arrival = np.array([timing.arrival_s for timing in timings])
        gaps = np.array([timing.output_tokens - 1 for timing in timings])
        each = np.full(len(timings), 1 / len(timings))
        waiting = self._cover(arrival, first, each)
        some = gaps > 0
        self._weights: dict[Metric, Vector] = {
            "ttft": waiting,
            "e2e": waiting + self._cover(first, last, each),
            "tpot": self._cover(first[some], last[some], 1 / gaps[some] / some.sum()),
            "duration": np.ones(len(self._begins)),
        }

    def _cover(self, begins: Vector, ends: Vector, weights: Vector) -> Vector:
        """Return for each step the weighted number of windows that contain it."""
        lengths = self._ends - self._begins
        last = len(lengths) - 1
        first_steps = np.clip(np.searchsorted(self._ends, begins, "right"), 0, last)
        last_steps = np.clip(np.searchsorted(self._ends, ends - 1e-12, "left"), 0, last)
        changes = np.zeros(len(lengths) + 1)
        np.add.at(changes, first_steps, weights)
        np.add.at(changes, last_steps + 1, -weights)
        covered = np.cumsum(changes)[:-1]
        before = (begins - self._begins[first_steps]) / lengths[first_steps]
        np.add.at(covered, first_steps, -weights * np.clip(before, 0, 1))
        after = (self._ends[last_steps] - ends) / lengths[last_steps]
        np.add.at(covered, last_steps, -weights * np.clip(after, 0, 1))
        return covered

    def predict(self, latency: LatencyModel, frontend: float, metric: Metric) -> float:
        seconds = (
            latency.base
            + _integrate(latency.per_token, self._tokens)
            + _integrate(latency.per_expert_token, self._tokens)
            + latency.per_context_token * self._context
            + latency.per_prefill_pair * self._pairs
            + latency.per_sequence * self._sequences
            + (self._pairs > 0)
            * (latency.mixed_base + latency.per_mixed_sequence * self._sequences)
        )
        total = float(self._weights[metric] @ seconds)
        return total + frontend if metric in ("ttft", "e2e") else total


def _integrate(curve: Sequence[TokenCost], tokens: Vector) -> Vector:
    if not curve:
        return np.zeros(len(tokens))
    knots = np.array([cost.beyond for cost in curve] + [2**17], dtype=np.float64)
    seconds = np.diff(knots) * [cost.seconds for cost in curve]
    return np.interp(tokens, knots, np.concatenate([[0.0], np.cumsum(seconds)]))


DEVICE_FIELDS: Mapping[str, tuple[float, float]] = {
    "bandwidth_efficiency": (0.85, 0.08),
    "kv_efficiency": (0.7, 0.5),
    "compute_efficiency": (0.5, 0.5),
    "layer_seconds": (30e-6, 0.5),
}
"""Expected values of each device's constants, and how far the fit may leave them: the
standard deviation of the logarithm.
"""
NVLINK_FIELDS: Mapping[str, tuple[float, float]] = {
    "link_latency": (8e-6, 0.5),
    "collective_efficiency": (0.8, 0.3),
}
"""The same for all devices with NVLink together."""
COMMON_FIELDS: Mapping[str, tuple[float, float]] = {
    "host_seconds": (0.5e-3, 0.5),
    "moe_layer_seconds": (60e-6, 1.0),
    "mixed_layer_seconds": (60e-6, 0.5),
    "mixed_sequence_seconds": (0.2e-6, 1.0),
    "sequence_seconds": (10e-6, 1.0),
    "frontend_seconds": (5e-3, 0.5),
    "overlap": (3.0, 0.3),
    "link_growth": (0.7, 0.5),
    "grouped_efficiency": (0.6, 0.3),
    "attention_efficiency": (0.8, 0.3),
    "sink_cost": (2.0, 0.5),
}
METRIC_WEIGHTS: Mapping[str, Mapping[Metric, float]] = {
    "log": {"e2e": 8, "tpot": 6, "ttft": 3},
    "decode": {"e2e": 3, "tpot": 0.3, "ttft": 0.5},
    "saturated": {"duration": 2, "tpot": 0.7, "ttft": 0.5},
    "few streams": {"duration": 1, "tpot": 2, "ttft": 0.3},
}
"""Weights of the errors in a fit. A client's inter-token latency counts little: it
leaves out chunks of several tokens.
"""
TYPICAL_ERROR = 0.1
"""Errors above it count less than their square: a few rows contradict all others."""
ROUNDS = 4
"""Simulations of all rows in a fit."""


class Fit:
    """Constants fitted to rows: Levenberg-Marquardt steps on the logarithms of all
    constants, for the sum of Cauchy losses and of the squared distances from what is
    expected.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        expected: dict[str, tuple[float, float]] = {
            f"{architecture}.{name}": value
            for architecture in sorted({row.architecture for row in rows})
            for name, value in DEVICE_FIELDS.items()
        }
        expected |= {f"nvlink.{name}": value for name, value in NVLINK_FIELDS.items()}
        expected |= {f"all.{name}": value for name, value in COMMON_FIELDS.items()}
        self.names = list(expected)
        self._expected = np.log([value for value, _ in expected.values()])
        self._deviations = np.array([deviation for _, deviation in expected.values()])
        self.values = self._expected.copy()
        # Repetitions of one setup count less than other setups.
        setups = Counter(self._describe_setup(row) for row in rows)
        self._targets: list[tuple[Row, Metric, float]] = [
            (row, metric, weight * setups[self._describe_setup(row)] ** -0.3)
            for row in rows
            for metric, weight in METRIC_WEIGHTS[row.load].items()
        ]
        self._steps: list[StepWeights] = []

    def run(self, rounds: int = ROUNDS) -> None:
        for _ in range(rounds):
            self._steps = [
                StepWeights(row, simulate(row, self.build_gpu(row), self.build_constants()))
                for row in self._rows
            ]
            self._improve()

    def build_constants(self) -> Constants:
        return replace(FITTED, **self._read_scope("all"))

    def build_gpu(self, row: Row) -> Gpu:
        own = self._read_scope(row.architecture)
        if row.gpu.link_bandwidth > 100e9:
            own |= self._read_scope("nvlink")
        return replace(row.gpu, **own)

    def _read_scope(self, scope: str) -> dict[str, float]:
        return {
            name.partition(".")[2]: math.exp(value)
            for name, value in zip(self.names, self.values, strict=True)
            if name.startswith(f"{scope}.")
        }

    def _improve(self) -> None:
        damping = 1e-2
        cost = self._compute_cost()
        for _ in range(8):
            errors, weights = self._compute_errors()
            weights = 100 * weights / (1 + (errors / TYPICAL_ERROR) ** 2)
            jacobian = np.empty((len(errors), len(self.names)))
            start = self.values
            for column in range(len(self.names)):
                self.values = start.copy()
                self.values[column] += 0.02
                jacobian[:, column] = (self._compute_errors()[0] - errors) / 0.02
            precision = self._deviations**-2
            normal = jacobian.T @ (weights[:, None] * jacobian) + np.diag(precision)
            gradient = jacobian.T @ (weights * errors) + (start - self._expected) * precision
            for _ in range(6):
                damped = normal + damping * np.diag(np.diag(normal))
                self.values = start - np.clip(np.linalg.solve(damped, gradient), -0.5, 0.5)
                if (found := self._compute_cost()) < cost:
                    damping /= 3
                    break
                damping *= 4
            else:
                self.values = start
                return
            gain = cost - found
            cost = found
            if gain < 0.05:
                return

    def _compute_cost(self) -> float:
        errors, weights = self._compute_errors()
        losses = 100 * weights * TYPICAL_ERROR**2 * np.log1p((errors / TYPICAL_ERROR) ** 2)
        distances = (self.values - self._expected) / self._deviations
        return float(losses.sum() + (distances**2).sum())

    def _compute_errors(self) -> tuple[Vector, Vector]:
        constants = self.build_constants()
        latencies = {
            id(row): predict_latency(self.build_gpu(row), row.shape, row.parallelism, constants)
            for row in self._rows
        }
        steps = {id(row): weights for row, weights in zip(self._rows, self._steps, strict=True)}
        errors = [
            math.log(
                max(
                    steps[id(row)].predict(latencies[id(row)], constants.frontend_seconds, metric),
                    1e-6,
                )
                / row.measured[metric]
            )
            for row, metric, _ in self._targets
        ]
        return np.array(errors), np.array([weight for *_, weight in self._targets])

    def _describe_setup(self, row: Row) -> tuple[str, str, str, int]:
        return row.load, row.shape.name, row.gpu_name, row.parallelism.tensor


Errors = list[tuple[Row, dict[Metric, float]]]


def predict_rows(rows: Iterable[Row], fit: Fit | None = None) -> Errors:
    """Return the errors of the constants in the package, or of a fit."""
    errors: Errors = []
    for row in rows:
        gpu = row.gpu if fit is None else _complete_gpu(fit, row)
        constants = FITTED if fit is None else fit.build_constants()
        errors.append((row, compare(row, simulate(row, gpu, constants))))
    return errors


def predict_held_out(rows: Sequence[Row], folds: int) -> Errors:
    """Errors on each model's rows of a fit to the rows of other models."""
    models = sorted({row.shape.name for row in rows if row.load != "log"})
    errors: Errors = []
    for fold in range(folds):
        left_out = set(models[fold::folds])
        fit = Fit([row for row in rows if row.shape.name not in left_out or row.load == "log"])
        fit.run(rounds=2)
        held_out = [row for row in rows if row.shape.name in left_out and row.load != "log"]
        errors += predict_rows(held_out, fit)
    return errors


def _complete_gpu(fit: Fit, row: Row) -> Gpu:
    """A device that the other models were not measured on has the expected constants."""
    if any(name.startswith(f"{row.architecture}.") for name in fit.names):
        return fit.build_gpu(row)
    return replace(row.gpu, **{name: value for name, (value, _) in DEVICE_FIELDS.items()})


LOADS: Mapping[str, tuple[Metric, ...]] = {
    "decode": ("e2e", "ttft", "tpot"),
    "saturated": ("duration", "ttft", "tpot"),
    "few streams": ("tpot",),
}


def build_table(errors: Errors) -> list[str]:
    """Build the Markdown table: median absolute error, bias and worst, in per cent."""
    groups: dict[tuple[str, str, str], list[dict[Metric, float]]] = defaultdict(list)
    for row, found in errors:
        if row.load in LOADS:
            groups[row.load, row.kind, "all"].append(found)
            groups[row.load, row.kind, row.gpu_name].append(found)
    lines = ["| load | model | GPU | rows | metric | median | bias |", "| --- " * 7 + "|"]
    for (load, kind, gpu), found in sorted(groups.items()):
        for metric in LOADS[load]:
            values = np.array([errors[metric] for errors in found])
            lines.append(
                f"| {load} | {kind} | {gpu} | {len(values)} | {metric} | "
                f"{100 * np.median(np.abs(values)):.1f} | {100 * np.median(values):+.1f} |"
            )
    return lines


class Published(Struct, frozen=True):
    """What the authors of another simulator, or of a comparison, publish for a row.

    predicted: seconds.
    """

    simulator: str
    id: str
    predicted: Mapping[Metric, float]


def load_published() -> list[Published]:
    columns: Mapping[Metric, str] = {"e2e": "e2e_mean", "ttft": "ttft_mean", "tpot": "itl_mean"}
    with (DATA / "public-runs/predictions.csv").open(encoding="utf-8") as lines:
        return [
            Published(
                line["simulator"],
                line["id"],
                {metric: float(line[column]) / 1e3 for metric, column in columns.items()},
            )
            for line in csv.DictReader(lines)
        ]


SIMULATORS: Mapping[str, str] = {
    "blis-evolved": "BLIS, trained on this cluster",
    "aiconfigurator": "AIConfigurator",
    "blis-roofline": "BLIS, roofline",
    "llm-optimizer": "LLM-Optimizer",
    "vidur": "Vidur",
}


def build_comparison(fitted: Errors, held_out: Errors, published: Sequence[Published]) -> list[str]:
    """Build the Markdown table of other simulators' errors and of ours on exactly the
    rows that they predict: for each metric median absolute error and bias, in per cent.
    """
    metrics = LOADS["decode"]
    rows = {row.name: row for row, _ in fitted if row.load == "decode"}
    ours = (
        ("our fit", {row.name: errors for row, errors in fitted}),
        ("our held-out fit", {row.name: errors for row, errors in held_out}),
    )
    lines = ["| model | rows | predicted by | e2e | ttft | tpot |", "| --- " * 6 + "|"]
    for kind, simulator in product(("dense", "mixture of experts"), SIMULATORS):
        chosen = [
            each for each in published if (each.simulator, rows[each.id].kind) == (simulator, kind)
        ]
        if not chosen:
            continue
        theirs: list[Mapping[Metric, float]] = [
            {
                metric: each.predicted[metric] / rows[each.id].measured[metric] - 1
                for metric in metrics
            }
            for each in chosen
        ]
        lines.append(f"| {kind} | {len(chosen)} | {SIMULATORS[simulator]} | {_cells(theirs)} |")
        lines += [
            f"| | | {name} | {_cells([errors[each.id] for each in chosen])} |"
            for name, errors in ours
        ]
    return lines


def _cells(found: Sequence[Mapping[Metric, float]]) -> str:
    columns = (np.array([errors[metric] for errors in found]) for metric in LOADS["decode"])
    return " | ".join(
        f"{100 * np.median(np.abs(values)):.1f} ({100 * np.median(values):+.1f})"
        for values in columns
    )


def write_tables(rows: Sequence[Row]) -> None:
    fitted = predict_rows(rows)
    held_out = predict_held_out(rows, 6)
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in (
        ("roofline", build_table(fitted)),
        ("roofline-held-out", build_table(held_out)),
        ("roofline-published", build_comparison(fitted, held_out, load_published())),
    ):
        table = "\n".join(lines)
        text = re.sub(
            rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)",
            lambda match, table=table: f"{match[1]}{table}\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
        if name == "roofline-held-out":
            ERRORS.write_text(build_error_file(table), encoding="utf-8")
    PAGE.write_text(text, encoding="utf-8")


def build_error_file(table: str) -> str:
    """Build the file of errors that `dragoman plan` uses, from the rows of the table
    with a constant rate.
    """
    errors: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line in table.splitlines()[2:]:
        load, model, gpu, _, metric, median, _ = (
            cell.strip() for cell in line.strip("|").split("|")
        )
        if load == "decode":
            errors[model, gpu]["latency" if metric == "e2e" else metric] = float(median) / 100
    lines = [
        "# Median absolute errors at a constant rate on models that a fit did not see; "
        "written by benchmarks/roofline.py."
    ]
    lines += [
        f"- {{model: {model}, gpu: {gpu}, ttft: {found['ttft']:.3f}, tpot: {found['tpot']:.3f}, "
        f"latency: {found['latency']:.3f}}}"
        for (model, gpu), found in errors.items()
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--fit", "--held-out", "--write", "--rows"):
        parser.add_argument(flag, action="store_true")
    chosen = parser.parse_args(arguments)
    rows = load_rows()
    if chosen.write:
        write_tables(rows)
        return
    if chosen.fit:
        fit = Fit(rows)
        fit.run()
        for name, value in zip(fit.names, fit.values, strict=True):
            print(f"{name} {math.exp(value):.3g}")
        return
    errors = predict_held_out(rows, 6) if chosen.held_out else predict_rows(rows)
    if chosen.rows:
        for row, found in errors:
            cells = "  ".join(f"{name} {error:+.1%}" for name, error in found.items())
            print(f"{row.load:12} {row.gpu_name:10} {row.shape.name:26} {row.name:52} {cells}")
    print("\n".join(build_table(errors)))


if __name__ == "__main__":
    main(sys.argv[1:])
