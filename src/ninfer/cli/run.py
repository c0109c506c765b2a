"""`ninfer run MODEL`: one prompt, one answer."""

from __future__ import annotations

from typing import Any

import click

from ninfer.cli.answer import generate
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.generation import engine_config, make_request, session_sampling, single_request_options
from ninfer.cli.output import notice, write_answer, write_json
from ninfer.cli.prompt import parse_prompt
from ninfer.cli.session import keep_openssl_out, open_session
from ninfer.cli.template_variables import pop_variables, template_options


@click.command("run")
@click.argument("model")
@click.option("--prompt", metavar="TEXT", help="One user turn, or plain text for a model without a chat template.")
@click.option("--messages", metavar="FILE", help="A conversation: JSON array of role and content; - is stdin.")
@click.option("--prompt-ids", metavar="IDS", help="Token ids like 1,2,3; needs no tokenizer.")
@click.option("--raw", is_flag=True, help="Complete --prompt as plain text, without the chat template.")
@template_options
@single_request_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout instead of the text.")
def command(
    model: str,
    prompt: str | None,
    messages: str | None,
    prompt_ids: str | None,
    raw: bool,
    as_json: bool,
    greedy: bool,
    stop: tuple[str, ...],
    max_new: int | None,
    **settings: Any,
) -> int:
    """Answer one prompt.

    Give exactly one of --prompt, --messages and --prompt-ids. Text and conversations go through the model's own chat
    template; what a user writes never becomes a control token. A model without a template completes --prompt as plain
    text, after a notice, and refuses --messages.

    Sampling options that are not given come from the generation config in the model file if it asks to sample;
    without one the answer is greedy.

    The answer streams to stdout, timings go to stderr. Ctrl-C ends the answer as `cancelled` with exit code 130.
    """
    variables = pop_variables(settings)
    source = parse_prompt(prompt=prompt, messages=messages, prompt_ids=prompt_ids, raw=raw)
    with open_session(model, engine_config({**settings, "prefix_reuse": False})) as session:
        keep_openssl_out()
        request = make_request(
            source.ids(session.tokenizer, session.template, variables),
            sampling=session_sampling(session, settings, greedy=greedy),
            stop=stop,
            max_new=max_new,
        )
        streams = session.tokenizer is not None and not as_json
        answer = generate(
            session.engine,
            request,
            timeline=session.timeline,
            on_text=write_answer if streams else lambda text: None,
        )
        if as_json:
            write_json(
                {
                    "model": session.identity(),
                    "prompt_ids": list(request.prompt_ids),
                    **answer.to_dict(),
                    "plan": session.engine.plan.to_dict(),
                }
            )
        elif streams:
            write_answer("\n")
        else:
            write_answer(",".join(map(str, answer.ids)) + "\n")
        notice(answer.summary())
    return ExitCode.INTERRUPTED if answer.was_cancelled else ExitCode.OK
