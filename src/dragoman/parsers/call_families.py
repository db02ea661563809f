"""The families of models whose calls of tools are known.

Data only: what a new one needs is a row, unless it writes calls in a shape that none of these has.
"""

from __future__ import annotations

import msgspec

from .either import Either
from .families import CallFamily
from .frame import Frame, Written
from .headed import Headed
from .literals import Literals
from .objects import Objects
from .tagged import Tagged

_BAR, _LOW = "\uff5c", "\u2581"  # DeepSeek's marks have them for | and _


def _bar(text: str) -> str:
    return text.replace("|", _BAR)


def _deepseek(text: str) -> str:
    return _bar(text).replace("_", _LOW)


def _plamo(name: str) -> str:
    return f"<|plamo:{name}:plamo|>"


_HERMES = Written(open="<tool_call>\n", close="\n</tool_call>", between="\n")
_DEEPSEEK = Frame(
    opens=(_deepseek("<|tool_calls_begin|>"),),
    end=_deepseek("<|tool_calls_end|>"),
    call=_deepseek("<|tool_call_begin|>"),
    call_end=_deepseek("<|tool_call_end|>"),
    extra=("```",),
)
_DEEPSEEK_WRITTEN = Written(
    before=_DEEPSEEK.opens[0], open=_DEEPSEEK.call, close=_DEEPSEEK.call_end, after=_DEEPSEEK.end
)
_QWEN_CODER = Tagged(">", "<parameter=", ((">", None),), "</parameter>", "</function>", pad="\n")
_NAMED_TAGS = Tagged('">', '<parameter name="', (('">', None),), "</parameter>", "</invoke>")
_DSML = Tagged(
    '">',
    _bar('<|DSML|parameter name="'),
    (('" string="true">', True), ('" string="false">', False)),
    _bar("</|DSML|parameter>"),
    _bar("</|DSML|invoke>"),
)
_GLM = Tagged("", "<arg_key>", (("</arg_key>", None),), "</arg_value>", "</tool_call>", value="<arg_value>")
_ITEMS = Written(before="[", between=", ", after="]")


def _items(opens: str, end: str = "") -> Written:
    """A JSON list between two marks."""
    return Written(before=opens + "[", between=", ", after="]" + end)


def _dsml(section: str) -> Frame:
    return Frame(
        opens=(_bar(f"<|DSML|{section}>"),),
        end=_bar(f"</|DSML|{section}>"),
        call=_bar('<|DSML|invoke name="'),
        lead="\n\n",
    )


def _dsml_written(section: str) -> Written:
    return Written(_bar(f"<|DSML|{section}>\n"), _bar('<|DSML|invoke name="'), "\n", after=_bar(f"</|DSML|{section}>"))


CALLS = (
    CallFamily(
        ("seed_oss",),
        "Seed-OSS",
        Frame(opens=("<seed:tool_call>",), end="</seed:tool_call>", call="<function=", lead="\n"),
        msgspec.structs.replace(_QWEN_CODER, pad=""),
        Written("<seed:tool_call>\n", "<function=", "\n", after="</seed:tool_call>"),
        (("<seed:tool_call>",),),
    ),
    CallFamily(
        ("qwen3_coder", "qwen3_xml", "step3p5", "step5", "nemotron_v3", "qwen3coder", "nanbeige"),
        "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5, Nanbeige",
        Frame(opens=("<tool_call>",), end="</tool_call>", call="<function=", lead="\n"),
        _QWEN_CODER,
        Written(open="<tool_call>\n<function=", close="\n</tool_call>", between="\n"),
        (("<tool_call>", "<function=", "<parameter="),),
    ),
    CallFamily(
        ("mimo",),
        "MiMo",
        Frame(opens=("<tool_call>",), end="</tool_call>", call="<function=", lead="\n"),
        msgspec.structs.replace(_QWEN_CODER, pad=""),
        Written(open="<tool_call>\n<function=", close="\n</tool_call>", between="\n"),
    ),
    CallFamily(
        ("functionary", "llama3_function"),
        "Functionary v3.1, Llama 3.1 with custom functions",
        Frame(call="<function=", call_end="</function>"),
        Headed((">",)),
        Written(open="<function=", close="</function>", between="\n"),
        (("<function=", "</function>"),),
    ),
    CallFamily(
        ("hy_v3",),
        "Hunyuan 3",
        Frame(opens=("<tool_calls>",), end="</tool_calls>", call="<tool_call>", lead="\n"),
        msgspec.structs.replace(_GLM, head="<tool_sep>", inner="\n"),
        Written("<tool_calls>\n", "<tool_call>", "\n", "\n", "</tool_calls>"),
        (("<tool_sep>", "<arg_key>"),),
    ),
    CallFamily(
        ("glm47", "ling3"),
        "GLM 4.7, Ling 3",
        Frame(call="<tool_call>", lead="\n"),
        msgspec.structs.replace(_GLM, lines=""),
        Written(open="<tool_call>"),
        (("{function-name}<arg_key>",),),
    ),
    CallFamily(
        ("glm45", "glm46", "poolside_v1", "glm"),
        "GLM 4.5, GLM 4.6, Laguna",
        Frame(call="<tool_call>", lead="\n"),
        msgspec.structs.replace(_GLM, inner="\n"),
        Written(open="<tool_call>", between="\n"),
        (("<arg_key>", "<arg_value>"),),
    ),
    CallFamily(
        ("minimax_m2", "minimax-m2"),
        "MiniMax M2",
        Frame(opens=("<minimax:tool_call>",), end="</minimax:tool_call>", call='<invoke name="', lead="\n"),
        _NAMED_TAGS,
        Written("<minimax:tool_call>\n", '<invoke name="', "\n", after="</minimax:tool_call>"),
        (("<minimax:tool_call>",),),
    ),
    CallFamily(
        ("dots",),
        "dots.llm",
        Frame(opens=("<dots_function_call>",), end="</dots_function_call>", call='<invoke name="', lead="\n"),
        _NAMED_TAGS,
        Written("<dots_function_call>\n", '<invoke name="', "\n", after="</dots_function_call>"),
        (("<dots_function_call>",),),
    ),
    CallFamily(
        ("minicpm5",),
        "MiniCPM 5",
        Frame(call='<function name="', lead="\n"),
        Tagged('">', '<param name="', (('">', None),), "</param>", "</function>", lines=""),
        Written(open='<function name="', between="\n"),
        (('<function name="', '<param name="'),),
    ),
    CallFamily(
        ("plamo3",),
        "PLaMo 3",
        Frame(
            opens=(_plamo("begin_tool_requests"),),
            end=_plamo("end_tool_requests"),
            call=_plamo("begin_tool_request"),
            call_end=_plamo("end_tool_arguments"),
            extra=(_plamo("end_tool_request"),),
        ),
        Headed(
            (_plamo("end_tool_name") + _plamo("begin_tool_arguments") + "<|plamo:constrain|>json<|plamo:msg|>",),
            _plamo("begin_tool_name"),
        ),
        Written(
            _plamo("begin_tool_requests"),
            _plamo("begin_tool_request"),
            _plamo("end_tool_arguments") + _plamo("end_tool_request"),
            after=_plamo("end_tool_requests"),
        ),
        ((_plamo("begin_tool_requests"),), ("plamo:", "tool_request")),
    ),
    CallFamily(
        ("deepseek_v41",),
        "DeepSeek V4.1",
        Frame(
            opens=(_bar("<|DSML| calls>"),),
            end=_bar("</|DSML| calls>"),
            call=_bar('<|DSML| invoke name="'),
            lead="\n\n",
        ),
        Tagged(
            '">',
            _bar('<|DSML| parameter name="'),
            (('" string="true">', True), ('" string="false">', False)),
            _bar("</|DSML| parameter>"),
            _bar("</|DSML| invoke>"),
        ),
        Written(_bar("<|DSML| calls>\n"), _bar('<|DSML| invoke name="'), "\n", after=_bar("</|DSML| calls>")),
        ((_bar("|DSML| calls>"),),),
    ),
    CallFamily(
        ("deepseek_v4", "deepseekv4"),
        "DeepSeek V4",
        _dsml("tool_calls"),
        _DSML,
        _dsml_written("tool_calls"),
        ((_bar("|DSML|"), "tool_calls>"),),
    ),
    CallFamily(
        ("deepseek_v32", "deepseekv32"),
        "DeepSeek V3.2",
        _dsml("function_calls"),
        _DSML,
        _dsml_written("function_calls"),
        ((_bar("|DSML|"),),),
    ),
    CallFamily(
        ("step3",),
        "Step 3",
        Frame(
            opens=(_bar("<|tool_calls_begin|>"),),
            end=_bar("<|tool_calls_end|>"),
            call='<steptml:invoke name="',
            call_end=_bar("<|tool_call_end|>"),
            extra=(_bar("<|tool_call_begin|>"), "function", _bar("<|tool_sep|>")),
        ),
        Tagged(
            '">', '<steptml:parameter name="', (('">', None),), "</steptml:parameter>", "</steptml:invoke>", lines=""
        ),
        Written(
            _bar("<|tool_calls_begin|>"),
            _bar('<|tool_call_begin|>function<|tool_sep|><steptml:invoke name="'),
            _bar("<|tool_call_end|>"),
            after=_bar("<|tool_calls_end|>"),
        ),
        (("<steptml:",),),
    ),
    CallFamily(
        ("deepseek_v3", "deepseek_r1", "deepseekv3"),
        "DeepSeek V3, R1",
        _DEEPSEEK,
        Headed(("```json", ""), f"function{_deepseek('<|tool_sep|>')}", ("\n", "\n")),
        msgspec.structs.replace(_DEEPSEEK_WRITTEN, close="\n```" + _DEEPSEEK.call_end, between="\n"),
        ((_deepseek("<|tool_sep|>"), "```json"),),
    ),
    CallFamily(
        ("deepseek_v31", "deepseekv31"),
        "DeepSeek V3.1",
        _DEEPSEEK,
        Headed((_deepseek("<|tool_sep|>"),)),
        _DEEPSEEK_WRITTEN,
        ((_deepseek("<|tool_sep|>"),),),
    ),
    CallFamily(
        ("kimi_k2",),
        "Kimi K2",
        Frame(
            opens=("<|tool_calls_section_begin|>",),
            end="<|tool_calls_section_end|>",
            call="<|tool_call_begin|>",
            call_end="<|tool_call_end|>",
        ),
        Headed(("<|tool_call_argument_begin|>",), numbered=True),
        Written(
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            after="<|tool_calls_section_end|>",
        ),
        (("<|tool_call_argument_begin|>",), ("<|im_middle|>",)),
    ),
    CallFamily(
        ("gemma4",),
        "Gemma 4",
        Frame(call="<|tool_call>", call_end="<tool_call|>"),
        Literals("{", "}", ":", "call:", '<|"|>'),
        Written(open="<|tool_call>", close="<tool_call|>"),
        (("<|tool_call>call:",),),
    ),
    CallFamily(
        ("functiongemma",),
        "FunctionGemma",
        Frame(call="<start_function_call>", call_end="<end_function_call>"),
        Literals("{", "}", ":", "call:", "<escape>"),
        Written(open="<start_function_call>", close="<end_function_call>"),
        (("<start_function_call>",),),
    ),
    CallFamily(
        ("mistral",),
        "Mistral: Tekken v11 and later",
        Frame(opens=("[TOOL_CALLS]",), listed=True, short_ids=True),
        Either(Headed(("[ARGS]", ""), call_id="[CALL_ID]"), Objects()),
        Written(open="[TOOL_CALLS]"),
        (("[TOOL_CALLS]", "[ARGS]"),),
        token="[ARGS]",
        older="mistral_json",
    ),
    CallFamily(
        ("mistral_json",),
        "Mistral: up to v7",
        Frame(opens=("[TOOL_CALLS]",), listed=True, short_ids=True),
        Either(Objects(), Headed(("[ARGS]", ""), call_id="[CALL_ID]")),
        _items("[TOOL_CALLS]"),
        (("[TOOL_CALLS]",),),
    ),
    CallFamily(
        ("phi4_mini_json",),
        "Phi-4 mini",
        Frame(opens=("functools", "<|tool_call|>"), end="<|/tool_call|>", listed=True),
        Objects(),
        _items("functools"),
        (("<|tool|>", "<|/tool|>"),),
    ),
    CallFamily(
        ("granite",),
        "Granite 3",
        Frame(opens=("<|tool_call|>", "<tool_call>"), end="</tool_call>", listed=True),
        Objects(),
        _items("<|tool_call|>"),
        (("<|tool_call|>",),),
    ),
    CallFamily(
        ("granite-20b-fc",),
        "Granite 20B Functioncalling",
        Frame(call="<function_call>"),
        Objects(),
        Written(open="<function_call> ", between="\n"),
        (("<function_call>",),),
    ),
    CallFamily(
        ("internlm", "interns1"),
        "InternLM 2 to 3",
        Frame(call="<|action_start|><|plugin|>", call_end="<|action_end|>"),
        Objects(arguments=("parameters", "arguments")),
        Written(open="<|action_start|><|plugin|>\n", close="<|action_end|>\n"),
        (("<|action_start|>",), ("<|plugin|>",)),
    ),
    CallFamily(
        ("hunyuan_a13b", "hunyuan"),
        "Hunyuan-A13B",
        Frame(opens=("<tool_calls>",), end="</tool_calls>", listed=True),
        Objects(),
        _items("<tool_calls>", "</tool_calls>"),
        (("<tool_calls>", "<answer>"),),
    ),
    CallFamily(
        ("minimax", "minimax_m1"),
        "MiniMax M1",
        Frame(opens=("<tool_calls>",), end="</tool_calls>"),
        Objects(),
        Written("<tool_calls>\n", between="\n", after="\n</tool_calls>"),
        (("<tool_calls>", "<end_of_sentence>"),),
    ),
    CallFamily(
        ("jamba",),
        "Jamba 1.5 and later",
        Frame(opens=("<tool_calls>",), end="</tool_calls>", listed=True),
        Objects(),
        Written("<tool_calls>[\n    ", between=",\n    ", after="\n]</tool_calls>"),
        (("<tool_calls>",),),
    ),
    CallFamily(
        ("nemotron_json", "nemotron"),
        "Nemotron Nano v2, Llama Nemotron",
        Frame(opens=("<TOOLCALL>",), end="</TOOLCALL>", listed=True),
        Objects(),
        _items("<TOOLCALL>", "</TOOLCALL>"),
        (("<TOOLCALL>",),),
    ),
    CallFamily(
        ("cohere_command3",),
        "Command R7B, Command A",
        Frame(opens=("<|START_ACTION|>",), end="<|END_ACTION|>", listed=True),
        Objects("tool_name", ("parameters",), numbered="tool_call_id"),
        Written("<|START_ACTION|>[\n    ", between=",\n    ", after="\n]<|END_ACTION|>"),
        (("<|START_ACTION|>",),),
    ),
    CallFamily(
        ("apertus",),
        "Apertus",
        Frame(opens=("<|tools_prefix|>",), end="<|tools_suffix|>", call_end="}", listed=True),
        Headed(('":',), '{"', ("", " ")),
        Written("<|tools_prefix|>[", close="}", between=", ", after="]<|tools_suffix|>"),
        (("<|tools_prefix|>",),),
    ),
    CallFamily(
        ("llama3_json", "llama4_json", "llama3"),
        "Llama 3.1 to 3.3, Llama 4",
        Frame(opens=("<|python_tag|>", "<|python_start|>"), end="<|python_end|>", extra=(";", ","), leading=True),
        Objects(arguments=("parameters", "arguments"), bare=True),
        Written(between="; "),
        (('{"name": function name, "parameters": dictionary',),),
    ),
    CallFamily(
        ("llama4_pythonic",),
        "Llama 4",
        Frame(opens=("<|python_start|>",), end="<|python_end|>", listed=True, leading=True),
        Literals(),
        _items("<|python_start|>", "<|python_end|>"),
        (("[func_name1(", "<|header_start|>"), ("<|python_start|>",)),
    ),
    CallFamily(
        ("pythonic",),
        "Llama 3.2, ToolACE",
        Frame(listed=True, leading=True),
        Literals(),
        _ITEMS,
        (("[func_name1(",), ("[func_name_1(",)),
    ),
    CallFamily(
        ("olmo3",),
        "OLMo 3",
        Frame(opens=("<function_calls>",), end="</function_calls>", lead="\n"),
        Literals(),
        Written("<function_calls>", between="\n", after="</function_calls>"),
        (("<function_calls>",),),
    ),
    CallFamily(
        ("lfm2",),
        "LFM2",
        Frame(opens=("<|tool_call_start|>",), end="<|tool_call_end|>", listed=True),
        Literals(),
        _items("<|tool_call_start|>", "<|tool_call_end|>"),
        (("<|tool_call_start|>",),),
    ),
    CallFamily(
        ("longcat",),
        "LongCat-Flash",
        Frame(call="<longcat_tool_call>", call_end="</longcat_tool_call>", lead="\n"),
        Objects(),
        Written(open="<longcat_tool_call>\n", close="\n</longcat_tool_call>", between="\n"),
        (("<longcat_tool_call>",),),
    ),
    CallFamily(
        ("gigachat3",),
        "GigaChat 3",
        Frame(call="function call<|role_sep|>", extra=("<|message_sep|>",)),
        Objects(),
        Written(open="function call<|role_sep|>\n", between="\n"),
        (("function call<|role_sep|>",), ("function call", "<|role_sep|>")),
    ),
    CallFamily(
        ("xlam",),
        "xLAM 2",
        Frame(
            opens=("[TOOL_CALLS]", "<tool_call>", "```json"),
            end="</tool_call>",
            listed=True,
            extra=("```",),
            leading=True,
        ),
        Objects(),
        _ITEMS,
    ),
    CallFamily(
        ("hermes", "qwen2_5", "qwen25", "qwen3", "ernie45", "granite4", "qwen3_json", "qwen"),
        "Hermes 2 Pro and 3, Qwen 2.5, Qwen3, ERNIE 4.5, Granite 4",
        Frame(call="<tool_call>", call_end="</tool_call>", lead="\n"),
        Objects(),
        _HERMES,
        (("<tool_call>", "</tool_call>", '"name"', "arguments"),),
    ),
)
