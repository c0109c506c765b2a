"""`ninfer chat MODEL`: a conversation, at a terminal or through a pipe."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import click

from ninfer.cli.answer import Answer, generate
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.generation import engine_config, generation_options, make_request, session_sampling
from ninfer.cli.output import complain, notice, write_answer
from ninfer.cli.prompt import PromptMessages, require_template
from ninfer.cli.session import Session, keep_openssl_out, open_session
from ninfer.cli.template_variables import Variables, check_variables, pop_variables, template_options
from ninfer.decoding import SamplingParams
from ninfer.errors import RequestError
from ninfer.metrics import FinishReason, RequestTimeline, now_ns

HELP = """/exit or Ctrl-D  leave
/reset           forget the conversation
/system TEXT     set the system message and forget the conversation
/help            this list
Ctrl-C           stop the answer"""
PROMPT = "> "


@click.command("chat")
@click.argument("model")
@click.option("--system", metavar="TEXT", help="The system message; otherwise the template's own.")
@template_options
@generation_options
def command(
    model: str, system: str | None, greedy: bool, stop: tuple[str, ...], max_new: int | None, **settings: Any
) -> int:
    """Talk with a model; needs one with a chat template.

    Each line is one user turn; /exit, /reset, /system TEXT and /help are commands. Answers stream to stdout, everything
    else goes to stderr. From a pipe every line is a turn, the end of the input ends the conversation, and the first
    error ends it with its exit code; at a terminal errors are shown and the turn is taken back.

    Sampling is chosen as for `ninfer run`.
    """
    variables = pop_variables(settings)
    with open_session(model, engine_config(settings)) as session:
        keep_openssl_out()
        check_variables(variables, require_template(session.template))
        conversation = Conversation(
            session,
            sampling=session_sampling(session, settings, greedy=greedy),
            stop=stop,
            max_new=max_new,
            system=system,
            variables=variables,
        )
        if sys.stdin.isatty():
            return at_terminal(conversation)
        return from_pipe(conversation)


@dataclass
class Conversation:
    """The turns so far. A turn is added when it has been answered, so a failed one leaves nothing behind."""

    session: Session
    sampling: SamplingParams
    stop: tuple[str, ...]
    max_new: int | None
    system: str | None
    variables: Variables
    turns: list[dict[str, str]] = field(default_factory=list)

    def reset(self) -> None:
        self.turns.clear()

    def ask(self, text: str) -> Answer:
        """One user turn and its answer, streamed to stdout. RequestError when it does not fit in the context."""
        session = self.session
        timeline = RequestTimeline(arrival_ns=now_ns())
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        turns = [*self.turns, {"role": "user", "content": text}]
        source = PromptMessages([*head, *turns])
        request = make_request(
            source.ids(session.tokenizer, session.template, self.variables),
            sampling=self.sampling,
            stop=self.stop,
            max_new=self.max_new,
        )
        answer = generate(session.engine, request, timeline=timeline, on_text=write_answer)
        write_answer("\n")
        self.turns = [*turns, {"role": "assistant", "content": answer.text or ""}]
        return answer

    def obey(self, line: str) -> bool:
        """Runs a `/` command; False when it ends the conversation. RequestError for one that does not exist."""
        word, _, rest = line.strip().partition(" ")
        match word, rest.strip():
            case (("/exit" | "/quit" | "/bye"), ""):
                return False
            case "/reset", "":
                self.reset()
                notice("the conversation starts anew")
            case "/system", text if text:
                self.system = text
                self.reset()
                notice("the system message is set and the conversation starts anew")
            case "/help", "":
                print(HELP, file=sys.stderr)
            case _:
                raise RequestError(f"there is no command {line.strip()!r}; /help lists them", param="command")
        return True

    def take(self, line: str) -> Answer | bool:
        """One line of input: the answer to a turn, or whether to go on after a command or an empty line."""
        if not line.strip():
            return True
        return self.obey(line) if line.lstrip().startswith("/") else self.ask(line)


def from_pipe(conversation: Conversation) -> int:
    """Every line of stdin is a turn; an error or Ctrl-C ends the conversation."""
    for line in sys.stdin:
        outcome = conversation.take(line.rstrip("\n"))
        if isinstance(outcome, Answer):
            notice(outcome.summary())
            if outcome.was_cancelled:
                return ExitCode.INTERRUPTED
        elif not outcome:
            break
    return ExitCode.OK


def at_terminal(conversation: Conversation) -> int:
    """A person types; errors and Ctrl-C end a turn, not the conversation."""
    notice("/help lists the commands, Ctrl-D leaves")
    while True:
        try:
            line = read_line()
        except KeyboardInterrupt:
            print("\n/exit or Ctrl-D leaves", file=sys.stderr)
            continue
        if line is None:
            return ExitCode.OK
        try:
            outcome = conversation.take(line)
        except RequestError as error:
            complain(str(error))
            continue
        if outcome is False:
            return ExitCode.OK
        if isinstance(outcome, Answer) and outcome.ending.reason is not FinishReason.STOP_TOKEN:
            notice(outcome.summary())


def read_line() -> str | None:
    """One line from the terminal, None at its end. The prompt never goes to a redirected stdout."""
    if sys.stdout.isatty():
        with suppress(ImportError):  # an interpreter built without it lacks line editing, nothing else
            import_module("readline")
        try:
            return input(PROMPT)
        except EOFError:
            print(file=sys.stderr)
            return None
    print(PROMPT, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
