"""Model families: the types that describe their formats, and the table of known
reasoning formats.

The formats of tool calls are listed in `call_families`.
"""

from __future__ import annotations

from msgspec import Struct

from .delimited_calls import CallSyntaxSpec, CallTemplate, Delimiters

Fingerprints = tuple[tuple[str, ...], ...]
"""Sets of texts; a chat template that contains all texts of one set belongs to the
family.
"""


class ReasoningFamily(Struct, frozen=True):
    """A family of models with the same reasoning format.

    names: the first is the format's name, the others are aliases used by other servers
        or models.
    models: the models, for the documentation.
    keeps_in_text: reasoning stays in the text, see InlineThinkFormat.
    fingerprints: identify the family's chat templates.

    The other fields are parameters of ThinkFormat.
    """

    names: tuple[str, ...]
    models: str
    begin_marker: str = "<think>"
    end_marker: str = "</think>"
    template_suffix: str = ""
    stripped_suffix: str = "\n\n"
    starts_implicitly: bool = False
    keeps_in_text: bool = False
    marker_variants: tuple[tuple[str, str], ...] = ()
    answer_tags: tuple[str, str] | None = None
    message_end: str = ""
    fingerprints: Fingerprints = ()


class CallFamily(Struct, frozen=True):
    """A family of models with the same tool call format.

    names: the first is the format's name, the others are aliases used by other servers
        or models.
    models: the models, for the documentation.
    template: the texts around enforced calls.
    fingerprints: identify the family's chat templates.
    required_token: an added token of this family's vocabularies; "" for none.
    fallback_name: the family to use instead where the vocabulary lacks
        `required_token`.
    """

    names: tuple[str, ...]
    models: str
    delimiters: Delimiters
    syntax: CallSyntaxSpec
    template: CallTemplate = CallTemplate()
    fingerprints: Fingerprints = ()
    required_token: str = ""
    fallback_name: str = ""


HARMONY_REASONING_NAMES = ("openai_gptoss", "gpt_oss", "gpt-oss")
HARMONY_TOOL_NAMES = ("openai", "gpt_oss", "gpt-oss", "harmony")
"""Names of the gpt-oss format. Its markers separate messages instead of enclosing
reasoning or calls, so it has its own parser.
"""
HARMONY_FINGERPRINTS: Fingerprints = (("<|channel|>", "<|message|>", "<|start|>"),)


# The reasoning formats of known model families. Data only: a new family is a new row.

REASONING_FAMILIES = (
    ReasoningFamily(
        ("seed_oss",),
        "Seed-OSS",
        "<seed:think>",
        "</seed:think>",
        "\n",
        fingerprints=(("<seed:think>",),),
    ),
    ReasoningFamily(
        ("mistral",),
        "Magistral, Ministral 3",
        "[THINK]",
        "[/THINK]",
        stripped_suffix="",
        fingerprints=(("[THINK]",),),
    ),
    ReasoningFamily(
        ("gemma4",),
        "Gemma 4",
        "<|channel>thought\n",
        "<channel|>",
        stripped_suffix="",
        marker_variants=(("<|channel>", "<channel|>"),),
        fingerprints=(("<|channel>", "<channel|>"),),
    ),
    ReasoningFamily(
        ("granite",),
        "Granite 3.2",
        "Here is my thought process:",
        "Here is my response:",
        "\n\n",
        marker_variants=(("Here's my thought process:", "Here's my response:"),),
        fingerprints=(("Here is my thought process:", "Here is my response:"),),
    ),
    ReasoningFamily(
        ("hunyuan_a13b", "hunyuan"),
        "Hunyuan-A13B",
        "<think>",
        "</think>",
        "\n",
        "\n",
        answer_tags=("<answer>", "</answer>"),
        fingerprints=(("<think>", "<answer>"),),
    ),
    ReasoningFamily(
        ("ernie45",),
        "ERNIE 4.5 Thinking",
        template_suffix="\n\n",
        answer_tags=("<response>", "</response>"),
        fingerprints=(("<think>", "<response>", "<|im_start|>"),),
    ),
    ReasoningFamily(
        ("cohere_command4",),
        "Command 4",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        stripped_suffix="",
        answer_tags=("<|START_TEXT|>", "<|END_TEXT|>"),
        fingerprints=(("<|START_THINKING|>", "<|START_TEXT|>"),),
    ),
    ReasoningFamily(
        ("cohere_command3",),
        "Command A Reasoning, Command R7B",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        stripped_suffix="",
        answer_tags=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        fingerprints=(("<|START_THINKING|>",),),
    ),
    ReasoningFamily(
        ("longcat",),
        "LongCat-Flash-Thinking",
        "<longcat_think>",
        "</longcat_think>",
        "\n",
        fingerprints=(("<longcat_think>",),),
    ),
    ReasoningFamily(
        ("kimi",),
        "Kimi-VL Thinking",
        "\u25c1think\u25b7",
        "\u25c1/think\u25b7",
        fingerprints=(("\u25c1think\u25b7",),),
    ),
    ReasoningFamily(
        ("kimi_k3",),
        "Kimi K3",
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        stripped_suffix="",
        answer_tags=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        message_end="<|close|>message<|sep|>",
        fingerprints=(("<|open|>", "<|sep|>", "'think'"),),
    ),
    ReasoningFamily(
        ("apertus",),
        "Apertus",
        "<|inner_prefix|>",
        "<|inner_suffix|>",
        stripped_suffix="",
        fingerprints=(("<|inner_prefix|>",),),
    ),
    ReasoningFamily(
        ("plamo3",),
        "PLaMo 3",
        "<|plamo:begin_think:plamo|>",
        "<|plamo:end_think:plamo|>",
        stripped_suffix="",
        fingerprints=(("<|plamo:begin_think:plamo|>",),),
    ),
    ReasoningFamily(
        ("glm45", "glm47", "ling3", "poolside_v1"),
        "GLM 4.5 to 4.7, Ling 3, Laguna",
        template_suffix="\n",
        fingerprints=(("</think>", "[gMASK]"),),
    ),
    ReasoningFamily(
        ("kimi_k2",), "Kimi K2 Thinking", fingerprints=(("</think>", "<|im_middle|>"),)
    ),
    ReasoningFamily(
        (
            "deepseek_v3",
            "deepseek_v31",
            "deepseek_v4",
            "deepseek_v41",
            "deepseek-v3",
            "deepseek-v4",
            "holo2",
        ),
        "DeepSeek V3.1 to V4 (hybrid)",
        fingerprints=(("</think>", "<\uff5cAssistant\uff5c>", "thinking"),),
    ),
    ReasoningFamily(
        ("minimax_m3",), "MiniMax M3", "<mm:think>", "</mm:think>", fingerprints=(("<mm:think>",),)
    ),
    ReasoningFamily(
        ("minimax_m2", "minimax"),
        "MiniMax M2",
        template_suffix="\n\n",
        fingerprints=(("</think>", "]~b]"),),
    ),
    ReasoningFamily(
        ("minimax_m2_append_think", "minimax-append-think"),
        "MiniMax M2, reasoning kept in the text",
        template_suffix="\n\n",
        keeps_in_text=True,
    ),
    ReasoningFamily(
        ("step3", "step3p5"),
        "Step 3",
        template_suffix="\n",
        fingerprints=(("</think>", "<steptml:"),),
    ),
    ReasoningFamily(
        (
            "think",
            *(
                "deepseek_r1",
                "qwen3",
                "nemotron_v3",
                "olmo3",
                "mimo",
                "exaone4",
                "interns1",
                "smollm3",
                "hy_v3",
            ),
            *(
                "deepseek-r1",
                "qwen3-thinking",
                "nemotron_3",
                "nanbeige",
                "granite_thinking_parser",
                "minicpmv",
            ),
        ),
        "DeepSeek R1, Qwen3, QwQ, Nemotron, OLMo 3, most others",
        template_suffix="\n\n",
        fingerprints=(("<think>",), ("</think>",)),
    ),
    ReasoningFamily(
        ("think_unopened",), "the first DeepSeek R1", template_suffix="\n\n", starts_implicitly=True
    ),
)
