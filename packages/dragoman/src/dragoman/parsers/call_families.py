"""The tool call formats of known model families.

Data only: a new family is a new row, unless its syntax is new.
"""

from __future__ import annotations

import msgspec

from .delimited_calls import AlternativeSyntaxes, CallTemplate, Delimiters
from .family_types import CallFamily
from .json_calls import JsonObjectSyntax, NamePrefixedSyntax
from .pythonic_calls import PythonicSyntax
from .xml_calls import XmlTagSyntax

_BAR = "\uff5c"
_LOW_LINE = "\u2581"  # DeepSeek's markers use U+FF5C and U+2581 instead of | and _.


def _replace_bars(text: str) -> str:
    return text.replace("|", _BAR)


def _replace_deepseek_chars(text: str) -> str:
    return _replace_bars(text).replace("_", _LOW_LINE)


def _plamo(name: str) -> str:
    return f"<|plamo:{name}:plamo|>"


_HERMES_TEMPLATE = CallTemplate(
    call_prefix="<tool_call>\n", call_suffix="\n</tool_call>", separator="\n"
)
_DEEPSEEK_DELIMITERS = Delimiters(
    section_starts=(_replace_deepseek_chars("<|tool_calls_begin|>"),),
    section_end=_replace_deepseek_chars("<|tool_calls_end|>"),
    call_start=_replace_deepseek_chars("<|tool_call_begin|>"),
    call_end=_replace_deepseek_chars("<|tool_call_end|>"),
    fillers=("```",),
)
_DEEPSEEK_TEMPLATE = CallTemplate(
    prefix=_DEEPSEEK_DELIMITERS.section_starts[0],
    call_prefix=_DEEPSEEK_DELIMITERS.call_start,
    call_suffix=_DEEPSEEK_DELIMITERS.call_end,
    suffix=_DEEPSEEK_DELIMITERS.section_end,
)
_QWEN_CODER = XmlTagSyntax(
    ">", "<parameter=", ((">", None),), "</parameter>", "</function>", value_padding="\n"
)
_NAMED_TAGS = XmlTagSyntax('">', '<parameter name="', (('">', None),), "</parameter>", "</invoke>")


def _build_dsml_syntax(name: str = "DSML", space: str = "") -> XmlTagSyntax:
    return XmlTagSyntax(
        '">',
        _replace_bars(f'<|{name}|{space}parameter name="'),
        (('" string="true">', True), ('" string="false">', False)),
        _replace_bars(f"</|{name}|{space}parameter>"),
        _replace_bars(f"</|{name}|{space}invoke>"),
        more_key_end_tags=('">',),
        has_unmistakable_tags=True,
        spliced_keys=("arguments", "input"),
    )


_DSML = _build_dsml_syntax()
_GLM = XmlTagSyntax(
    "",
    "<arg_key>",
    (("</arg_key>", None),),
    "</arg_value>",
    "</tool_call>",
    value_tag="<arg_value>",
)
_LIST_TEMPLATE = CallTemplate(prefix="[", separator=", ", suffix="]")


def _xtml(token: str, tag: str) -> str:
    """Return a tag as Kimi K3 writes it."""
    return f"<|{token}|>{tag}<|sep|>"


def _build_list_template(start: str, end: str = "") -> CallTemplate:
    """Build the template of a JSON list of calls between two markers."""
    return CallTemplate(prefix=start + "[", separator=", ", suffix="]" + end)


def _build_dsml_delimiters(section: str, name: str = "DSML") -> Delimiters:
    return Delimiters(
        section_starts=(_replace_bars(f"<|{name}|{section}>"),),
        section_end=_replace_bars(f"</|{name}|{section}>"),
        call_start=_replace_bars(f"<|{name}|invoke name="),
        leading_text="\n\n",
    )


def _build_dsml_template(section: str, name: str = "DSML") -> CallTemplate:
    return CallTemplate(
        _replace_bars(f"<|{name}|{section}>\n"),
        _replace_bars(f'<|{name}|invoke name="'),
        "\n",
        suffix=_replace_bars(f"</|{name}|{section}>"),
    )


# The first family whose fingerprint matches a template wins
# (`registry.detect_formats`), so narrower fingerprints come first: DeepSeek V4.1 and V4
# before V3.2, whose fingerprint is the part that all three share.
CALL_FAMILIES = (
    CallFamily(
        ("seed_oss",),
        "Seed-OSS",
        Delimiters(
            section_starts=("<seed:tool_call>",),
            section_end="</seed:tool_call>",
            call_start="<function=",
            leading_text="\n",
        ),
        msgspec.structs.replace(_QWEN_CODER, value_padding=""),
        CallTemplate("<seed:tool_call>\n", "<function=", "\n", suffix="</seed:tool_call>"),
        (("<seed:tool_call>",),),
    ),
    CallFamily(
        ("qwen3_coder", "qwen3_xml", "step3p5", "step5", "nemotron_v3", "qwen3coder", "nanbeige"),
        "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5, Nanbeige",
        Delimiters(
            section_starts=("<tool_call>",),
            section_end="</tool_call>",
            call_start="<function=",
            leading_text="\n",
        ),
        _QWEN_CODER,
        CallTemplate(
            call_prefix="<tool_call>\n<function=", call_suffix="\n</tool_call>", separator="\n"
        ),
        (("<tool_call>", "<function=", "<parameter="),),
    ),
    CallFamily(
        ("mimo",),
        "MiMo",
        Delimiters(
            section_starts=("<tool_call>",),
            section_end="</tool_call>",
            call_start="<function=",
            leading_text="\n",
        ),
        msgspec.structs.replace(_QWEN_CODER, value_padding="", untyped_is_text=True),
        CallTemplate(
            call_prefix="<tool_call>\n<function=", call_suffix="\n</tool_call>", separator="\n"
        ),
    ),
    CallFamily(
        ("functionary", "llama3_function"),
        "Functionary v3.1, Llama 3.1 with custom functions",
        Delimiters(call_start="<function=", call_end="</function>"),
        NamePrefixedSyntax((">",)),
        CallTemplate(call_prefix="<function=", call_suffix="</function>", separator="\n"),
        (("<function=", "</function>"),),
    ),
    CallFamily(
        ("hy_v3",),
        "Hunyuan 3",
        Delimiters(
            section_starts=("<tool_calls>",),
            section_end="</tool_calls>",
            call_start="<tool_call>",
            leading_text="\n",
        ),
        msgspec.structs.replace(_GLM, name_suffix="<tool_sep>", tag_separator="\n"),
        CallTemplate("<tool_calls>\n", "<tool_call>", "\n", "\n", "</tool_calls>"),
        (("<tool_sep>", "<arg_key>"),),
    ),
    CallFamily(
        ("glm47", "ling3"),
        "GLM 4.7, Ling 3",
        Delimiters(call_start="<tool_call>", call_end="</tool_call>", leading_text="\n"),
        msgspec.structs.replace(_GLM, line_break=""),
        CallTemplate(call_prefix="<tool_call>"),
        (("{function-name}<arg_key>",),),
    ),
    CallFamily(
        ("glm45", "glm46", "poolside_v1", "glm"),
        "GLM 4.5, GLM 4.6, Laguna",
        Delimiters(call_start="<tool_call>", call_end="</tool_call>", leading_text="\n"),
        msgspec.structs.replace(_GLM, tag_separator="\n"),
        CallTemplate(call_prefix="<tool_call>", separator="\n"),
        (("<arg_key>", "<arg_value>"),),
    ),
    CallFamily(
        ("minimax_m2", "minimax-m2"),
        "MiniMax M2",
        Delimiters(
            section_starts=("<minimax:tool_call>",),
            section_end="</minimax:tool_call>",
            call_start="<invoke name=",
            leading_text="\n",
        ),
        msgspec.structs.replace(_NAMED_TAGS, untyped_is_text=True),
        CallTemplate(
            "<minimax:tool_call>\n", '<invoke name="', "\n", suffix="</minimax:tool_call>"
        ),
        (("<minimax:tool_call>",),),
    ),
    CallFamily(
        ("dots",),
        "dots.llm",
        Delimiters(
            section_starts=("<dots_function_call>",),
            section_end="</dots_function_call>",
            call_start="<invoke name=",
            leading_text="\n",
        ),
        _NAMED_TAGS,
        CallTemplate(
            "<dots_function_call>\n", '<invoke name="', "\n", suffix="</dots_function_call>"
        ),
        (("<dots_function_call>",),),
    ),
    CallFamily(
        ("minicpm5",),
        "MiniCPM 5",
        Delimiters(call_start="<function name=", leading_text="\n"),
        XmlTagSyntax(
            '">',
            '<param name="',
            (('">', None),),
            "</param>",
            "</function>",
            line_break="",
            has_cdata=True,
            spliced_keys=("arguments", "properties"),
        ),
        CallTemplate(call_prefix='<function name="', separator="\n"),
        (('<function name="', '<param name="'),),
    ),
    CallFamily(
        ("plamo3",),
        "PLaMo 3",
        Delimiters(
            section_starts=(_plamo("begin_tool_requests"),),
            section_end=_plamo("end_tool_requests"),
            call_start=_plamo("begin_tool_request"),
            call_end=_plamo("end_tool_arguments"),
            fillers=(_plamo("end_tool_request"),),
        ),
        NamePrefixedSyntax(
            (
                _plamo("end_tool_name")
                + _plamo("begin_tool_arguments")
                + "<|plamo:constrain|>json<|plamo:msg|>",
            ),
            _plamo("begin_tool_name"),
        ),
        CallTemplate(
            _plamo("begin_tool_requests"),
            _plamo("begin_tool_request"),
            _plamo("end_tool_arguments") + _plamo("end_tool_request"),
            suffix=_plamo("end_tool_requests"),
        ),
        ((_plamo("begin_tool_requests"),), ("plamo:", "tool_request")),
    ),
    CallFamily(
        ("deepseek_v41",),
        "DeepSeek V4.1",
        Delimiters(
            section_starts=(_replace_bars("<|DSML| calls>"),),
            section_end=_replace_bars("</|DSML| calls>"),
            call_start=_replace_bars("<|DSML| invoke name="),
            leading_text="\n\n",
        ),
        _build_dsml_syntax(space=" "),
        CallTemplate(
            _replace_bars("<|DSML| calls>\n"),
            _replace_bars('<|DSML| invoke name="'),
            "\n",
            suffix=_replace_bars("</|DSML| calls>"),
        ),
        ((_replace_bars("|DSML| calls>"),),),
    ),
    CallFamily(
        ("deepseek_v4", "deepseekv4"),
        "DeepSeek V4",
        _build_dsml_delimiters("tool_calls"),
        _DSML,
        _build_dsml_template("tool_calls"),
        ((_replace_bars("|DSML|"), "tool_calls>"),),
    ),
    CallFamily(
        ("deepseek_v32", "deepseekv32"),
        "DeepSeek V3.2",
        _build_dsml_delimiters("function_calls"),
        _DSML,
        _build_dsml_template("function_calls"),
        ((_replace_bars("|DSML|"),),),
    ),
    CallFamily(
        ("gigachat35",),
        "GigaChat 3.5",
        _build_dsml_delimiters("tool_calls", "GCML"),
        _build_dsml_syntax("GCML"),
        _build_dsml_template("tool_calls", "GCML"),
        ((_replace_bars("|GCML|"),),),
    ),
    CallFamily(
        ("step3",),
        "Step 3",
        Delimiters(
            section_starts=(_replace_bars("<|tool_calls_begin|>"),),
            section_end=_replace_bars("<|tool_calls_end|>"),
            call_start="<steptml:invoke name=",
            call_end=_replace_bars("<|tool_call_end|>"),
            fillers=(
                _replace_bars("<|tool_call_begin|>"),
                "function",
                _replace_bars("<|tool_sep|>"),
            ),
        ),
        XmlTagSyntax(
            '">',
            '<steptml:parameter name="',
            (('">', None),),
            "</steptml:parameter>",
            "</steptml:invoke>",
            line_break="",
            untyped_is_text=True,
        ),
        CallTemplate(
            _replace_bars("<|tool_calls_begin|>"),
            _replace_bars('<|tool_call_begin|>function<|tool_sep|><steptml:invoke name="'),
            _replace_bars("<|tool_call_end|>"),
            suffix=_replace_bars("<|tool_calls_end|>"),
        ),
        (("<steptml:",),),
    ),
    CallFamily(
        ("deepseek_v3", "deepseek_r1", "deepseekv3"),
        "DeepSeek V3, R1",
        _DEEPSEEK_DELIMITERS,
        NamePrefixedSyntax(
            ("```json", ""), f"function{_replace_deepseek_chars('<|tool_sep|>')}", ("\n", "\n")
        ),
        msgspec.structs.replace(
            _DEEPSEEK_TEMPLATE, call_suffix="\n```" + _DEEPSEEK_DELIMITERS.call_end, separator="\n"
        ),
        ((_replace_deepseek_chars("<|tool_sep|>"), "```json"),),
    ),
    CallFamily(
        ("deepseek_v31", "deepseekv31"),
        "DeepSeek V3.1",
        _DEEPSEEK_DELIMITERS,
        NamePrefixedSyntax((_replace_deepseek_chars("<|tool_sep|>"),)),
        _DEEPSEEK_TEMPLATE,
        ((_replace_deepseek_chars("<|tool_sep|>"),),),
    ),
    CallFamily(
        ("kimi_k2",),
        "Kimi K2",
        Delimiters(
            section_starts=("<|tool_calls_section_begin|>",),
            section_end="<|tool_calls_section_end|>",
            call_start="<|tool_call_begin|>",
            call_end="<|tool_call_end|>",
        ),
        NamePrefixedSyntax(("<|tool_call_argument_begin|>",), is_numbered=True),
        CallTemplate(
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            suffix="<|tool_calls_section_end|>",
        ),
        (("<|tool_call_argument_begin|>",), ("<|im_middle|>",)),
    ),
    CallFamily(
        ("kimi_k3",),
        "Kimi K3",
        Delimiters(
            section_starts=(_xtml("open", "tools"),),
            section_end=_xtml("close", "tools"),
            call_start="<|open|>call tool=",
        ),
        XmlTagSyntax(
            '" index="',
            '<|open|>argument key="',
            tuple(
                (f'" type="{kind}"<|sep|>', kind)
                for kind in ("string", "number", "boolean", "null", "object", "array")
            ),
            _xtml("close", "argument"),
            _xtml("close", "call"),
            line_break="",
            number_suffix='"<|sep|>',
            has_unmistakable_tags=True,
            has_escaped_names=True,
        ),
        CallTemplate(_xtml("open", "tools"), '<|open|>call tool="', suffix=_xtml("close", "tools")),
        (("<|open|>", "<|sep|>", "'argument'"),),
    ),
    CallFamily(
        ("gemma4",),
        "Gemma 4",
        Delimiters(call_start="<|tool_call>", call_end="<tool_call|>"),
        PythonicSyntax("{", "}", ":", "call:", '<|"|>', alternative_prefixes=(":",)),
        CallTemplate(call_prefix="<|tool_call>", call_suffix="<tool_call|>"),
        (("<|tool_call>call:",),),
    ),
    CallFamily(
        ("functiongemma",),
        "FunctionGemma",
        Delimiters(call_start="<start_function_call>", call_end="<end_function_call>"),
        PythonicSyntax("{", "}", ":", "call:", "<escape>"),
        CallTemplate(call_prefix="<start_function_call>", call_suffix="<end_function_call>"),
        (("<start_function_call>",),),
    ),
    CallFamily(
        ("mistral",),
        "Mistral: Tekken v11 and later",
        Delimiters(section_starts=("[TOOL_CALLS]",), is_list=True, has_short_ids=True),
        AlternativeSyntaxes(
            NamePrefixedSyntax(("[ARGS]", ""), id_marker="[CALL_ID]"), JsonObjectSyntax()
        ),
        CallTemplate(call_prefix="[TOOL_CALLS]"),
        (("[TOOL_CALLS]", "[ARGS]"),),
        # Both generations write [TOOL_CALLS]; only the vocabulary of Tekken v11 and
        # later has [ARGS].
        required_token="[ARGS]",
        fallback_name="mistral_json",
    ),
    CallFamily(
        ("mistral_json",),
        "Mistral: up to v7",
        Delimiters(section_starts=("[TOOL_CALLS]",), is_list=True, has_short_ids=True),
        AlternativeSyntaxes(
            JsonObjectSyntax(), NamePrefixedSyntax(("[ARGS]", ""), id_marker="[CALL_ID]")
        ),
        _build_list_template("[TOOL_CALLS]"),
        (("[TOOL_CALLS]",),),
    ),
    CallFamily(
        ("phi4_mini_json",),
        "Phi-4 mini",
        Delimiters(
            section_starts=("functools", "<|tool_call|>"),
            section_end="<|/tool_call|>",
            is_list=True,
        ),
        JsonObjectSyntax(),
        _build_list_template("functools"),
        (("<|tool|>", "<|/tool|>"),),
    ),
    CallFamily(
        ("granite",),
        "Granite 3",
        Delimiters(
            section_starts=("<|tool_call|>", "<tool_call>"),
            section_end="</tool_call>",
            is_list=True,
        ),
        JsonObjectSyntax(),
        _build_list_template("<|tool_call|>"),
        (("<|tool_call|>",),),
    ),
    CallFamily(
        ("granite-20b-fc",),
        "Granite 20B Functioncalling",
        Delimiters(call_start="<function_call>"),
        JsonObjectSyntax(),
        CallTemplate(call_prefix="<function_call> ", separator="\n"),
        (("<function_call>",),),
    ),
    CallFamily(
        ("internlm", "interns1"),
        "InternLM 2 to 3",
        Delimiters(call_start="<|action_start|><|plugin|>", call_end="<|action_end|>"),
        JsonObjectSyntax(argument_keys=("parameters", "arguments")),
        CallTemplate(call_prefix="<|action_start|><|plugin|>\n", call_suffix="<|action_end|>\n"),
        (("<|action_start|>",), ("<|plugin|>",)),
    ),
    CallFamily(
        ("hunyuan_a13b", "hunyuan"),
        "Hunyuan-A13B",
        Delimiters(section_starts=("<tool_calls>",), section_end="</tool_calls>", is_list=True),
        JsonObjectSyntax(),
        _build_list_template("<tool_calls>", "</tool_calls>"),
        (("<tool_calls>", "<answer>"),),
    ),
    CallFamily(
        ("minimax", "minimax_m1"),
        "MiniMax M1",
        Delimiters(section_starts=("<tool_calls>",), section_end="</tool_calls>"),
        JsonObjectSyntax(),
        CallTemplate("<tool_calls>\n", separator="\n", suffix="\n</tool_calls>"),
        (("<tool_calls>", "<end_of_sentence>"),),
    ),
    CallFamily(
        ("jamba",),
        "Jamba 1.5 and later",
        Delimiters(section_starts=("<tool_calls>",), section_end="</tool_calls>", is_list=True),
        JsonObjectSyntax(),
        CallTemplate("<tool_calls>[\n    ", separator=",\n    ", suffix="\n]</tool_calls>"),
        (("<tool_calls>",),),
    ),
    CallFamily(
        ("nemotron_json", "nemotron"),
        "Nemotron Nano v2, Llama Nemotron",
        Delimiters(section_starts=("<TOOLCALL>",), section_end="</TOOLCALL>", is_list=True),
        JsonObjectSyntax(),
        _build_list_template("<TOOLCALL>", "</TOOLCALL>"),
        (("<TOOLCALL>",),),
    ),
    CallFamily(
        ("cohere_command3", "cohere_command4"),
        "Command R7B, Command A, Command 4",
        Delimiters(
            section_starts=("<|START_ACTION|>",), section_end="<|END_ACTION|>", is_list=True
        ),
        JsonObjectSyntax("tool_name", ("parameters",), number_key="tool_call_id"),
        CallTemplate("<|START_ACTION|>[\n    ", separator=",\n    ", suffix="\n]<|END_ACTION|>"),
        (("<|START_ACTION|>",),),
    ),
    CallFamily(
        ("apertus",),
        "Apertus",
        Delimiters(
            section_starts=("<|tools_prefix|>",),
            section_end="<|tools_suffix|>",
            call_end="}",
            is_list=True,
        ),
        NamePrefixedSyntax(('":',), '{"', ("", " ")),
        CallTemplate(
            "<|tools_prefix|>[", call_suffix="}", separator=", ", suffix="]<|tools_suffix|>"
        ),
        (("<|tools_prefix|>",),),
    ),
    CallFamily(
        ("llama3_json", "llama4_json", "llama3"),
        "Llama 3.1 to 3.3, Llama 4",
        Delimiters(
            section_starts=("<|python_tag|>", "<|python_start|>"),
            section_end="<|python_end|>",
            fillers=(";", ","),
            leading=True,
        ),
        JsonObjectSyntax(argument_keys=("parameters", "arguments"), is_bare=True),
        CallTemplate(separator="; "),
        (('{"name": function name, "parameters": dictionary',),),
    ),
    CallFamily(
        ("llama4_pythonic",),
        "Llama 4",
        Delimiters(
            section_starts=("<|python_start|>",),
            section_end="<|python_end|>",
            is_list=True,
            leading=True,
        ),
        PythonicSyntax(),
        _build_list_template("<|python_start|>", "<|python_end|>"),
        (("[func_name1(", "<|header_start|>"), ("<|python_start|>",)),
    ),
    CallFamily(
        ("pythonic",),
        "Llama 3.2, ToolACE",
        Delimiters(
            section_starts=("<|python_start|>",),
            section_end="<|python_end|>",
            is_list=True,
            leading=True,
        ),
        PythonicSyntax(),
        _LIST_TEMPLATE,
        (("[func_name1(",), ("[func_name_1(",)),
    ),
    CallFamily(
        ("olmo3",),
        "OLMo 3",
        Delimiters(
            section_starts=("<function_calls>",), section_end="</function_calls>", leading_text="\n"
        ),
        PythonicSyntax(),
        CallTemplate("<function_calls>", separator="\n", suffix="</function_calls>"),
        (("<function_calls>",),),
    ),
    CallFamily(
        ("lfm2",),
        "LFM2",
        Delimiters(
            section_starts=("<|tool_call_start|>",), section_end="<|tool_call_end|>", is_list=True
        ),
        PythonicSyntax(),
        _build_list_template("<|tool_call_start|>", "<|tool_call_end|>"),
        (("<|tool_call_start|>",),),
    ),
    CallFamily(
        ("longcat",),
        "LongCat-Flash",
        Delimiters(
            call_start="<longcat_tool_call>", call_end="</longcat_tool_call>", leading_text="\n"
        ),
        JsonObjectSyntax(),
        CallTemplate(
            call_prefix="<longcat_tool_call>\n",
            call_suffix="\n</longcat_tool_call>",
            separator="\n",
        ),
        (("<longcat_tool_call>",),),
    ),
    CallFamily(
        ("gigachat3",),
        "GigaChat 3",
        Delimiters(
            section_starts=("function call<|role_sep|>", "<|function_call|>"),
            fillers=("<|message_sep|>",),
            leading_text="<|message_sep|>\n\n",
        ),
        JsonObjectSyntax(),
        CallTemplate(call_prefix="function call<|role_sep|>\n", separator="\n"),
        (("function call<|role_sep|>",), ("function call", "<|role_sep|>")),
    ),
    CallFamily(
        ("xlam",),
        "xLAM 2",
        Delimiters(
            section_starts=("[TOOL_CALLS]", "<tool_call>", "```json"),
            section_end="</tool_call>",
            is_list=True,
            fillers=("```",),
            leading=True,
        ),
        JsonObjectSyntax(),
        _LIST_TEMPLATE,
    ),
    CallFamily(
        ("hermes", "qwen2_5", "qwen25", "qwen3", "ernie45", "granite4", "qwen3_json", "qwen"),
        "Hermes 2 Pro and 3, Qwen 2.5, Qwen3, ERNIE 4.5, Granite 4",
        Delimiters(call_start="<tool_call>", call_end="</tool_call>", leading_text="\n"),
        JsonObjectSyntax(),
        _HERMES_TEMPLATE,
        (("<tool_call>", "</tool_call>", '"name"', "arguments"),),
    ),
)
