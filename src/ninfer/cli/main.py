"""The `ninfer` command: finds the subcommand, runs it, turns every ending into one line and an exit code.

click and not typer: typer builds a pydantic validator per option and costs about 120 ms before a command starts,
click 28 ms (2-core x86-64, Python 3.11, November 2026), and a warm `ninfer run` has 500 ms until its first token.
A subcommand is imported when it is named, so `ninfer pull` never pays for the engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import ninfer
from ninfer.cli.exit_codes import ExitCode, exit_code_of
from ninfer.cli.lazy import LazyGroup
from ninfer.cli.output import ReaderGoneError, complain
from ninfer.errors import InvariantError, NInferError

COMMANDS: dict[str, str] = {
    "pull": "ninfer.cli.pull",
    "convert": "ninfer.cli.convert",
    "make-checkpoint": "ninfer.cli.make_checkpoint",
    "make-draft-head": "ninfer.cli.make_draft_head",
    "inspect": "ninfer.cli.inspect",
    "verify": "ninfer.cli.verify",
    "run": "ninfer.cli.run",
    "chat": "ninfer.cli.chat",
    "serve": "ninfer.cli.serve",
    "plan": "ninfer.cli.plan",
    "bench": "ninfer.cli.bench",
    "train-draft": "ninfer.cli.train_draft",
}


@click.group(
    cls=LazyGroup,
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)
@click.version_option(ninfer.__version__, prog_name="ninfer")
def cli() -> None:
    """Exact, measured inference of language models on small machines.

    MODEL is an alias (`ninfer pull --list`), a .ninfer file, a .gguf file or a Hugging Face directory.
    """


def describe(error: BaseException) -> str:
    """The one line a person reads about an error that ended a command."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, NInferError) and not isinstance(error, InvariantError):
        return str(error)
    if isinstance(error, MemoryError):
        return str(error) or "out of memory"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return f"internal error, please report it: {type(error).__name__}: {error} (NINFER_DEBUG=1 shows the traceback)"


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; never raises, never shows a traceback unless NINFER_DEBUG=1."""
    try:
        result = cli.main(args=list(arguments), prog_name="ninfer", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        print("ninfer: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except ReaderGoneError:
        # The interpreter flushes stdout once more on its way out; let that go nowhere instead of complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return ExitCode.USAGE
    except Exception as error:  # the top of the process: whatever comes here becomes a line and a code
        if os.environ.get("NINFER_DEBUG") == "1":
            sys.excepthook(type(error), error, error.__traceback__)
        complain(describe(error))
        return ExitCode.USAGE if isinstance(error, click.UsageError) else exit_code_of(error)
    return result if isinstance(result, int) else ExitCode.OK


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))
