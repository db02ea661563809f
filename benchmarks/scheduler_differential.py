"""The simulator's scheduler against vLLM's own, in lockstep over random workloads,
until so many steps are compared.

    .venv/vllm/bin/python -m benchmarks.scheduler_differential [--steps 2000000]
    [--seconds 600] [--first-seed 0]

Run in the repository's root. `make test-vllm` makes that environment. Exit status 1 if
a step differs; the seeds of a difference repeat it: `--mix NAME --first-seed N --steps
1`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

# `tests` lies in the checkout and in each package.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.extend(map(str, Path(__file__).resolve().parents[1].glob("packages/*")))

from tests.engines.vllm.lockstep import (
    MIXES,
    Comparison,
    Difference,
    Lockstep,
    VllmParts,
    describe,
    draw_case,
)
from tests.engines.vllm.serving import without_accelerator


def compare(
    vllm: VllmParts, mixes: list[str], first_seed: int, steps: int, seconds: float
) -> list[str]:
    """Compare until that many steps are done or the time is over; prints a table and
    returns the differences.
    """
    totals = {mix: Counter[str]() for mix in mixes}
    differences: list[str] = []
    started = reported = time.monotonic()
    for seed in count(first_seed):
        for mix in mixes:
            for asynchronous in (False, True):
                case = draw_case(mix, seed, asynchronous=asynchronous)
                totals[mix]["cases"] += 1
                try:
                    totals[mix].update(Lockstep(case, vllm).run()._asdict())
                except Difference as difference:
                    totals[mix]["differences"] += 1
                    differences.append(str(difference))
                    print(difference, file=sys.stderr)
                    if len(mixes) == 1:
                        print(describe(case), file=sys.stderr)
        done = sum(total["steps"] for total in totals.values())
        if done >= steps or time.monotonic() - started > seconds:
            break
        if time.monotonic() - reported > 30:
            reported = time.monotonic()
            print(f"{done} steps, {len(differences)} differences", file=sys.stderr)
    columns = ("cases", *Comparison._fields, "differences")
    totals["total"] = sum(totals.values(), Counter[str]())
    print(f"vLLM {vllm.version}, {time.monotonic() - started:.0f} s")
    print(f"{'workloads':<22}" + "".join(f"{name.replace('_', ' '):>18}" for name in columns))
    for mix, total in totals.items():
        print(f"{mix:<22}" + "".join(f"{total[name]:>18}" for name in columns))
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--mix", choices=tuple(MIXES))
    arguments = parser.parse_args()
    with without_accelerator():
        mixes = [arguments.mix] if arguments.mix else list(MIXES)
        sys.exit(
            1
            if compare(VllmParts(), mixes, arguments.first_seed, arguments.steps, arguments.seconds)
            else 0
        )


if __name__ == "__main__":
    main()
