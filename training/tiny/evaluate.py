"""Evaluate model folders with greedy sampling on examples that are not in the training
data: `python -m training.tiny.evaluate FOLDER [FOLDER ...]` prints one table.

Words, names, codes and tools are excluded from training (held-out words, another seed).
An answer is right if it equals the expected text and the model ends it; stories and
invented JSON have a looser check.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from . import chat, corpus, instructions, toolbox, tools
from .conversation import Conversation, Turn
from .source import Source

Check = Callable[[str, Turn], bool]
Maker = Callable[[Source], Conversation]


@dataclass(frozen=True)
class Trial:
    """A kind of question: how to generate one, and when an answer is right."""

    name: str
    make: Maker
    check: Check


def exact(text: str, expected: Turn) -> bool:
    """The answer equals the expected text."""
    return text == expected.answer()


def story_like(text: str, _: Turn) -> bool:
    """Three to six complete sentences that begin like a story."""
    return (
        text.startswith("Once upon a time there was a")
        and text.endswith(".")
        and 3 <= text.count(". ") + 1 <= 6
    )


def same_keys(text: str, expected: Turn) -> bool:
    """JSON with the keys of the expected object, in the same order."""
    keys: list[str] = list(json.loads(expected.content))
    try:
        value: Any = json.loads(text)
    except ValueError:
        return False
    return value.__class__ is dict and list(value) == keys


def make_exchange(task: chat.Task, *, thinking: bool = False) -> Maker:
    """Conversations of one exchange of this task."""
    return lambda s: Conversation(instructions.turns_of(task(s), thinking=thinking))


def any_of(*tasks: chat.Task, thinking: bool = False) -> Maker:
    """Conversations of one exchange of any of these tasks."""
    return lambda s: make_exchange(s.pick(tasks), thinking=thinking)(s)


def where(task: chat.Task, holds: Callable[[chat.Exchange], bool]) -> chat.Task:
    """The task, repeated until an exchange meets the condition."""

    def drawn(s: Source) -> chat.Exchange:
        while True:
            exchange = task(s)
            if holds(exchange):
                return exchange

    return drawn


def say(phrase: Callable[[Source], str]) -> Maker:
    """Conversations that ask to repeat a phrase of this kind."""

    def make(s: Source) -> Conversation:
        text = phrase(s)
        return Conversation((Turn("user", f"Say: {text}"), Turn("assistant", text)))

    return make


def words(low: int, high: int) -> Callable[[Source], str]:
    """Phrases of this many words."""
    return lambda s: " ".join(s.word() for _ in range(s.integer(low, high)))


def shuffled_sentence(s: Source) -> str:
    """The words of a sentence in a random order."""
    parts = s.pick(s.sentences).split()
    return " ".join(s.sample(parts, len(parts)))


def styled(make: Callable[[Source], instructions.Style]) -> Maker:
    """Conversations under one kind of system prompt."""
    return lambda s: Conversation(tuple(instructions.styled(s, make)))


def one_call(maker: toolbox.Maker, distractors: int, *, thinking: bool = False) -> Maker:
    """One call, with at least this number of other tools."""

    def make(s: Source) -> Conversation:
        wanted = maker(s)
        turns = tools.answered(wanted.ask, [wanted], thinking=thinking, until_result=False)
        return Conversation(
            tuple(turns), tools.with_distractors(s, [wanted.tool], least=distractors)
        )

    return make


def realistic(s: Source) -> toolbox.Request:
    """One of the realistic requests."""
    return s.pick(toolbox.REALISTIC)(s)


def concluded(s: Source) -> Conversation:
    """A call and its result; the answer is the conclusion."""
    wanted = tools.request(s)
    turns = tools.answered(wanted.ask, [wanted], thinking=False, until_result=True)
    return Conversation(tuple(turns), tools.with_distractors(s, [wanted.tool]))


def parallel_calls(s: Source) -> Conversation:
    """Several calls; the conclusions are another trial."""
    conversation = tools.parallel(s)
    until = next(index for index, turn in enumerate(conversation.turns) if turn.calls)
    return Conversation(conversation.turns[: until + 1], conversation.tools)


def trials() -> tuple[Trial, ...]:
    """Return the rows of the table."""
    invented_json = where(
        chat.keyed_json, lambda e: "JSON object with" in e.ask or "JSON with the" in e.ask
    )
    given_json = where(chat.keyed_json, lambda e: e.ask.startswith("Write"))
    any_person = where(chat.person_json, lambda e: len(e.ask) < 36)
    described_person = where(chat.person_json, lambda e: len(e.ask) >= 36)
    small = where(chat.addition, lambda e: int(e.short) <= 20)
    large = where(chat.addition, lambda e: int(e.short) > 20)
    return (
        Trial(
            "greeting, thanks, identity", any_of(chat.greeting, chat.farewell, chat.identity), exact
        ),
        Trial("addition, sum up to 20", make_exchange(small), exact),
        Trial("addition, sum 21 to 198", make_exchange(large), exact),
        Trial("larger of two numbers", make_exchange(chat.larger), exact),
        Trial("capitals", make_exchange(chat.capital), exact),
        Trial("colours, sounds, opposites, days", make_exchange(chat.general), exact),
        Trial("counting", make_exchange(chat.counting), exact),
        Trial("short lists", make_exchange(chat.listing), exact),
        Trial("repeat 1 word", say(words(1, 1)), exact),
        Trial("repeat 2 to 5 words", say(words(2, 5)), exact),
        Trial("repeat 6 to 12 words", say(words(6, 12)), exact),
        Trial(
            "repeat random tokens (2 to 10)", say(lambda s: s.piece_string(s.integer(2, 10))), exact
        ),
        Trial("repeat names", say(lambda s: " ".join(s.name() for _ in range(3))), exact),
        Trial("repeat numbers", say(lambda s: " ".join(str(s.number()) for _ in range(3))), exact),
        Trial("repeat letter-digit codes", say(lambda s: s.code()), exact),
        Trial("repeat a sentence, shuffled", say(shuffled_sentence), exact),
        Trial("number, join, count, reverse words", make_exchange(chat.words_task), exact),
        Trial("look up in the question", make_exchange(chat.lookup), exact),
        Trial("story", make_exchange(chat.story), story_like),
        Trial("JSON: a person", make_exchange(any_person), same_keys),
        Trial("JSON: a described person", make_exchange(described_person), exact),
        Trial("JSON: given keys", make_exchange(invented_json), same_keys),
        Trial("JSON: given values, arrays", make_exchange(given_json), exact),
        Trial("does not know", make_exchange(chat.unknown), exact),
        Trial(
            "thinking: chat",
            any_of(large, chat.capital, chat.lookup, chat.copying, thinking=True),
            exact,
        ),
        Trial("system: capital letters", styled(instructions.capitals_style), exact),
        Trial("system: one word", styled(instructions.one_word_style), exact),
        Trial("system: ending", styled(instructions.ending_style), exact),
        Trial("system: opening", styled(instructions.opening_style), exact),
        Trial("system: always the same", styled(instructions.constant_style), exact),
        Trial("system: JSON key", styled(instructions.json_style), exact),
        Trial(
            "system: name or fact", lambda s: Conversation(tuple(instructions.persona(s))), exact
        ),
        Trial("remember over turns", lambda s: Conversation(tuple(instructions.memory(s))), exact),
        Trial("tool: weather alone", one_call(toolbox.weather, 0), exact),
        Trial("tool: realistic, among others", one_call(realistic, 2), exact),
        Trial(
            "tool: made up, alone or among others", one_call(toolbox.build_invented_tool, 0), exact
        ),
        Trial(
            "tool: made up, among 2 or 3 others", one_call(toolbox.build_invented_tool, 3), exact
        ),
        Trial("thinking: tool", one_call(realistic, 1, thinking=True), exact),
        Trial("tool: none fits", tools.none_fits, exact),
        Trial("tool: parallel calls", parallel_calls, exact),
        Trial("tool: conclusion from the result", concluded, exact),
        Trial("tool: last of several rounds", tools.several_turns, exact),
        Trial("long: recall after 500 to 2,000 tokens", corpus.long_talk, exact),
    )


class Subject:
    """A model folder; answers are sampled greedily."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.padding_side = "left"
        self.tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
        self.model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def prompt(self, conversation: Conversation) -> str:
        """Return the text before the last turn, which the model continues."""
        thinking = bool(conversation.turns[-1].thought)
        messages = conversation.messages()[:-1]
        extras = {"tools": list(conversation.tools) or None, "enable_thinking": thinking}
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **extras
        )

    @torch.no_grad()
    def answers(self, prompts: list[str], limit: int = 200) -> list[str]:
        """Return the answer to each prompt; one that the model did not end has a mark
        at its end.
        """
        found: dict[int, str] = {}
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        for at in range(0, len(order), 25):
            chosen = order[at : at + 25]
            inputs = self.tokenizer(
                [prompts[i] for i in chosen],
                return_tensors="pt",
                padding=True,
                add_special_tokens=False,
            )
            inputs.pop("token_type_ids", None)
            generated = self.model.generate(**inputs, max_new_tokens=limit, do_sample=False)[
                :, inputs["input_ids"].shape[1] :
            ]
            texts = self.tokenizer.batch_decode(generated, skip_special_tokens=False)
            found |= {index: _ended(text) for index, text in zip(chosen, texts, strict=True)}
        return [found[index] for index in range(len(prompts))]


def _ended(text: str) -> str:
    answer, end, _ = text.partition("<|im_end|>")
    return (answer if end else answer + "[no end]").split("</think>\n\n")[-1]


def score(subject: Subject, trial: Trial, count: int, misses: int = 0) -> float:
    """Return the share of right answers to `count` questions, the same for every model."""
    s = corpus.source(zlib.crc32(trial.name.encode()), held_out=True)
    conversations = [trial.make(s) for _ in range(count)]
    texts = subject.answers([subject.prompt(one) for one in conversations])
    right = [
        trial.check(text, one.turns[-1]) for text, one in zip(texts, conversations, strict=True)
    ]
    wrong = [
        (text, one) for text, one, good in zip(texts, conversations, right, strict=True) if not good
    ]
    for text, one in wrong[:misses]:
        print(f"  [{trial.name}] {one.turns[-2].content!r}")
        print(f"    expected {one.turns[-1].answer()!r}\n    answered {text!r}")
    return sum(right) / count


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument(
        "--misses", type=int, default=0, help="so many wrong answers of each row are shown"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    subjects = [Subject(folder) for folder in options.folders]
    print("| task | n | " + " | ".join(folder.name for folder in options.folders) + " |")
    print("| --- | ---: |" + " ---: |" * len(subjects))
    for trial in trials():
        if options.only in trial.name:
            cells = [
                f"{score(subject, trial, options.count, options.misses):.0%}"
                for subject in subjects
            ]
            print(f"| {trial.name} | {options.count} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
