"""What the chat protocols share: thinking, tools and history as the chat template and the engine need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer.engine import StopRules
from ninfer.errors import RequestError
from ninfer.server.fields import unsupported
from ninfer.server.model import ServedModel
from ninfer.server.settings import ServerSettings
from ninfer.server.tools import FORMS, ToolUse, form_of, read_choice, read_schemas
from ninfer.text.tool_calls import CLOSE, OPEN


def read_variables(
    model: ServedModel,
    ignored: list[str],
    *,
    given: Mapping[str, Any] | None,
    enable_thinking: bool | None,
    effort: str | None,
    budget: int | None,
    effort_param: str = "reasoning_effort",
) -> dict[str, Any]:
    """Values for the chat template, the wish for thinking among them.

    What would change nothing goes to `ignored`. RequestError for a wish that this template cannot fulfil, and for two
    that contradict each other.
    """
    variables = dict(given or {})
    ignored += [f"chat_template_kwargs[{name}]" for name in sorted(variables) if not model.reads_variable(name)]
    reads_effort = model.reads_variable("reasoning_effort")
    if effort is not None and reads_effort:
        _set(variables, "reasoning_effort", effort, effort_param)
    elif effort == "none":
        if enable_thinking:
            raise RequestError(f"{effort_param} none contradicts enable_thinking", param=effort_param)
        enable_thinking = False
    elif effort is not None:
        raise unsupported(effort_param)
    if budget == 0 and enable_thinking is None and "enable_thinking" not in variables:
        enable_thinking = False if model.reads_variable("enable_thinking") else None
    if enable_thinking is None:
        return variables
    if model.reads_variable("enable_thinking"):
        _set(variables, "enable_thinking", enable_thinking, "enable_thinking")
    elif enable_thinking == model.thinks:
        ignored.append("enable_thinking")
    else:
        raise unsupported("enable_thinking")
    return variables


def _set(variables: dict[str, Any], name: str, value: object, param: str) -> None:
    if variables.get(name, value) != value:
        raise RequestError(f"{param} contradicts {name} in chat_template_kwargs", param=param)
    variables[name] = value


def read_budget(model: ServedModel, settings: ServerSettings, ignored: list[str], budget: int | None) -> int | None:
    """The thinking budget of a request: its own, or the server's. A model that does not think needs none."""
    if not model.thinks:
        if budget is not None:
            ignored.append("thinking_budget")
        return None
    return settings.default_thinking_budget if budget is None else budget


def read_tools(
    model: ServedModel, settings: ServerSettings, *, tools: object, choice: object, parallel: bool | None
) -> ToolUse | None:
    """The tools of a request, None where there are none or none may be called: then the prompt does not name them.

    RequestError for tools that the model's template does not take, and for a choice that cannot be honoured.
    """
    schemas = read_schemas(tools)
    word, only = read_choice(choice, schemas)
    if not schemas or word == "none":
        return None
    if not model.takes_tools:
        raise RequestError(
            "this model's chat template does not take tools; leave them out", kind="unsupported_field", param="tools"
        )
    for place, tool in enumerate(tools if isinstance(tools, list) and word == "auto" else []):
        if tool["function"].get("strict"):
            raise unsupported(f"tools[{place}].function.strict")
    form: str = settings.tool_parser
    if form == "auto":
        form = form_of(model.require_template().source) or "none"
    if form == "none" and (word == "required" or parallel is False):
        raise unsupported("tool_choice" if word == "required" else "parallel_tool_calls")
    return ToolUse(
        declared=tools if isinstance(tools, list) else [],
        schemas=schemas,
        form=FORMS.get(form),
        required=word == "required",
        only=only,
        parallel=parallel is not False,
    )


def stop_rules(model: ServedModel, stop: StopRules, use: ToolUse | None) -> StopRules:
    """`stop`, and the end of the first call where it is to be the only one. RequestError if no token ends a call."""
    if use is None or use.parallel or use.required:
        return stop
    closing = model.require_tokenizer().encode(CLOSE, allow_control=True)
    if len(closing) != 1:
        raise unsupported("parallel_tool_calls")
    return StopRules(stop.strings, (*stop.token_ids, closing[0]), stop.model_end_tokens)


def visible_ids(model: ServedModel, use: ToolUse | None) -> frozenset[int]:
    """Tags of calls that are control tokens, whose text the parser of calls needs."""
    if use is None or use.form is None:
        return frozenset()
    control = model.require_tokenizer().control_tokens
    return frozenset(control[tag] for tag in (OPEN, CLOSE) if tag in control)


def ordered_history(messages: list[Any]) -> list[Any]:
    """Messages with the results of tools in the order of their calls, which is all that templates go by.

    RequestError (`messages[i].tool_call_id`) for a result of a call that was not made before. A result without an id
    stays where it is. What else is wrong with a message is for `ninfer.text.messages` to say.
    """
    known: dict[str, int] = {}
    found: list[Any] = []
    run_start = 0  # of the results that end `found`
    for place, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id is not None and call_id not in known:
                raise RequestError(
                    f"there is no call {call_id!r} before this result",
                    kind="invalid_tool_history",
                    param=f"messages[{place}].tool_call_id",
                )
            found.append(message)
            results = found[run_start:]
            if all(result.get("tool_call_id") is not None for result in results):
                found[run_start:] = sorted(results, key=lambda result: known[result["tool_call_id"]])
            continue
        if role == "assistant":
            calls = message.get("tool_calls")
            for call in calls if isinstance(calls, list) else []:
                if isinstance(call, dict) and isinstance(call.get("id"), str):
                    known[call["id"]] = len(known)
            if "reasoning" in message and "reasoning_content" not in message:
                message = {**message, "reasoning_content": message["reasoning"]}
        found.append(message)
        run_start = len(found)
    return found
