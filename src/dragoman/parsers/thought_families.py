"""The families of models whose reasoning is known. Data only: what a new one needs is a row."""

from __future__ import annotations

from .families import ThoughtFamily

THOUGHTS = (
    ThoughtFamily(("seed_oss",), "Seed-OSS", "<seed:think>", "</seed:think>", "\n", signs=(("<seed:think>",),)),
    ThoughtFamily(("mistral",), "Magistral, Ministral 3", "[THINK]", "[/THINK]", dropped="", signs=(("[THINK]",),)),
    ThoughtFamily(
        ("gemma4",), "Gemma 4", "<|channel>thought\n", "<channel|>", dropped="", signs=(("<|channel>", "<channel|>"),)
    ),
    ThoughtFamily(
        ("granite",),
        "Granite 3.2",
        "Here is my thought process:",
        "Here is my response:",
        "\n\n",
        variants=(("Here's my thought process:", "Here's my response:"),),
        signs=(("Here is my thought process:", "Here is my response:"),),
    ),
    ThoughtFamily(
        ("hunyuan_a13b", "hunyuan"),
        "Hunyuan-A13B",
        "<think>",
        "</think>",
        "\n",
        "\n",
        answer=("<answer>", "</answer>"),
        signs=(("<think>", "<answer>"),),
    ),
    ThoughtFamily(
        ("ernie45",),
        "ERNIE 4.5 Thinking",
        after="\n\n",
        answer=("<response>", "</response>"),
        signs=(("<think>", "<response>", "<|im_start|>"),),
    ),
    ThoughtFamily(
        ("cohere_command3",),
        "Command A Reasoning, Command R7B",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        dropped="",
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        signs=(("<|START_THINKING|>",),),
    ),
    ThoughtFamily(
        ("longcat",),
        "LongCat-Flash-Thinking",
        "<longcat_think>",
        "</longcat_think>",
        "\n",
        signs=(("<longcat_think>",),),
    ),
    ThoughtFamily(
        ("kimi",), "Kimi-VL Thinking", "\u25c1think\u25b7", "\u25c1/think\u25b7", signs=(("\u25c1think\u25b7",),)
    ),
    ThoughtFamily(
        ("apertus",), "Apertus", "<|inner_prefix|>", "<|inner_suffix|>", dropped="", signs=(("<|inner_prefix|>",),)
    ),
    ThoughtFamily(
        ("plamo3",),
        "PLaMo 3",
        "<|plamo:begin_think:plamo|>",
        "<|plamo:end_think:plamo|>",
        dropped="",
        signs=(("<|plamo:begin_think:plamo|>",),),
    ),
    ThoughtFamily(
        ("glm45", "glm47", "ling3", "poolside_v1"),
        "GLM 4.5 to 4.7, Ling 3, Laguna",
        after="\n",
        signs=(("</think>", "[gMASK]"),),
    ),
    ThoughtFamily(("kimi_k2",), "Kimi K2 Thinking", signs=(("</think>", "<|im_middle|>"),)),
    ThoughtFamily(
        ("deepseek_v3", "deepseek_v31", "deepseek_v4", "deepseek_v41", "deepseek-v3", "deepseek-v4", "holo2"),
        "DeepSeek V3.1 to V4 (hybrid)",
        signs=(("</think>", "<\uff5cAssistant\uff5c>", "thinking"),),
    ),
    ThoughtFamily(("minimax_m2", "minimax"), "MiniMax M2", after="\n\n", signs=(("</think>", "]~b]"),)),
    ThoughtFamily(
        ("minimax_m2_append_think", "minimax-append-think"),
        "MiniMax M2, reasoning kept in the text",
        after="\n\n",
        kept=True,
    ),
    ThoughtFamily(("step3", "step3p5"), "Step 3", after="\n", signs=(("</think>", "<steptml:"),)),
    ThoughtFamily(
        (
            "think",
            *("deepseek_r1", "qwen3", "nemotron_v3", "olmo3", "mimo", "exaone4", "interns1", "smollm3", "hy_v3"),
            *("deepseek-r1", "qwen3-thinking", "nemotron_3", "nanbeige", "granite_thinking_parser", "minicpmv"),
        ),
        "DeepSeek R1, Qwen3, QwQ, Nemotron, OLMo 3, most others",
        after="\n\n",
        signs=(("<think>",), ("</think>",)),
    ),
    ThoughtFamily(("think_unopened",), "the first DeepSeek R1", after="\n\n", unopened=True),
)
