"""Train the embedded model on one CPU core and write its folder: `python -m
training.tiny.train OUT`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from .batches import Batch, batches
from .corpus import conversations, source
from .model import CONTEXT, Llama, Shape, export, restore
from .optimizer import optimizers
from .tokenizer import piece_texts, train_tokenizer

TEMPLATE = (
    Path(__file__).parents[2]
    / "packages/dragoman/src/dragoman/engines/tiny/data/chat_template.jinja"
)


@dataclass(frozen=True)
class Settings:
    """All that determines the result.

    minutes: wall-clock time after which the schedule ends, if it is shorter. The result
      then depends on the speed of the machine.
    done: the share of the schedule that an earlier run completed.
    """

    steps: int
    minutes: float = math.inf
    done: float = 0.0
    seed: int = 0
    batch: int = 4096
    longest: int = 2048
    matrix_lr: float = 0.02
    other_lr: float = 0.006
    cooldown: float = 0.5
    shape: Shape = field(default_factory=Shape)


class Clock:
    """The progress of the training."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.begun = time.monotonic()
        self.step = 0

    def progress(self) -> float:
        """Return the progress, from `done` to 1: by steps, or by time if it ends
        sooner.
        """
        minutes = (time.monotonic() - self.begun) / 60
        share = max(self.step / self.settings.steps, minutes / self.settings.minutes)
        return self.settings.done + (1 - self.settings.done) * share

    def rate(self) -> float:
        """Return the factor of the learning rate: a short warm-up, a plateau, a linear
        decay.
        """
        return min(
            1.0, (self.step + 1) / 50, max(0.01, (1 - self.progress()) / self.settings.cooldown)
        )


def train(
    settings: Settings, tokenizer: Tokenizer, folder: Path, earlier: Path | None = None
) -> Llama:
    """Train a model, from scratch or from the weights of an earlier run. Every 1,000
    steps its current weights are written to the folder.
    """
    torch.manual_seed(settings.seed)
    model = Llama(settings.shape)
    if earlier:
        restore(model, earlier)
    both = optimizers(model, settings.matrix_lr, settings.other_lr)
    clock = Clock(settings)
    stream = conversations(source(settings.seed + 1, pieces=piece_texts(tokenizer)), clock.progress)
    fed = batches(
        tokenizer,
        stream,
        random.Random(settings.seed),
        size=settings.batch,
        longest=settings.longest,
    )
    tokens = 0
    total = 0.0
    begun = time.process_time()
    while clock.progress() < 1:
        batch = next(fed)
        total += update(model, both, batch, clock.rate())
        tokens += batch.tokens.numel()
        clock.step += 1
        if clock.step % 100 == 0:
            spent = time.process_time() - begun
            print(
                f"step {clock.step} loss {total / 100:.4f} {tokens / 1e6:.1f} Mtok {spent:.0f} "
                f"CPU-s",
                flush=True,
            )
            total = 0.0
        if clock.step % 1000 == 0:
            export(model, folder)
    return model


def update(model: Llama, both: list[torch.optim.Optimizer], batch: Batch, rate: float) -> float:
    """Take a step with every optimizer at this factor of its learning rate; return the
    loss before the step.
    """
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(batch.tokens, batch.learned)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in both:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": "<|im_end|>",
        "model_max_length": CONTEXT,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    if TEMPLATE.parent.resolve() != folder.resolve():
        shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="the folder of an earlier sitting")
    parser.add_argument(
        "--done", type=float, default=0.0, help="the share of the schedule that it has done"
    )
    parser.add_argument("--batch", type=int, default=4096, help="tokens in a batch")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--matrix-lr", type=float, default=0.02)
    parser.add_argument("--other-lr", type=float, default=0.006)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hidden: int = options.hidden
    shape = Shape(
        hidden=hidden, layers=options.layers, heads=hidden // 32, inner=hidden * 8 // 96 * 32
    )
    settings = Settings(
        steps=options.steps,
        batch=options.batch,
        minutes=options.minutes,
        done=options.done,
        seed=options.seed,
        matrix_lr=options.matrix_lr,
        other_lr=options.other_lr,
        shape=shape,
    )
    resume: Path | None = options.resume
    if resume:
        tokenizer = Tokenizer.from_file(str(resume / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(settings.seed, shape.vocabulary)
    write_tokenizer(tokenizer, options.out)
    model = train(settings, tokenizer, options.out, resume)
    export(model, options.out)
    print(
        f"{sum(p.numel() for p in model.parameters())} parameters, {time.process_time():.0f} "
        f"CPU-s in all"
    )


if __name__ == "__main__":
    main()
