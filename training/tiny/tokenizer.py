"""The tokenizer: byte-level BPE with single digits, trained on the synthetic
conversations and on ordinary English.
"""

from __future__ import annotations

import itertools

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .conversation import segments
from .corpus import conversations, source
from .english import docstrings

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip
PAD = 0
END = 2
# Qwen2's split, which other engines support (llama.cpp calls it "qwen2"): words with
# one leading blank, single digits.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(seed: int, vocabulary: int, samples: int = 6000) -> Tokenizer:
    """Train the merges on `samples` conversations and all docstrings."""
    corpus = itertools.islice(conversations(source(seed), lambda: 0.5), samples)
    chat = ("".join(segment.text for segment in segments(one)) for one in corpus)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.chain(chat, docstrings()), trainer)
    return tokenizer


def piece_texts(tokenizer: Tokenizer) -> list[str]:
    """Return the printable texts of all ordinary tokens, for the copying tasks."""
    texts = (
        tokenizer.decode([token])
        for token in range(len(SPECIAL_TOKENS), tokenizer.get_vocab_size())
    )
    return [
        text
        for text in texts
        if "\ufffd" not in text and text.strip() and text.replace("\n", "").isprintable()
    ]
