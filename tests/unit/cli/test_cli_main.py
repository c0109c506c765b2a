"""Every ending of a command is one line and one exit code."""

from __future__ import annotations

import click
import pytest

from ninfer import errors
from ninfer.cli import main
from ninfer.cli.exit_codes import ExitCode, exit_code_of
from ninfer.cli.lazy import LazyGroup

ENDINGS = [
    (errors.CapacityError("too big", field="kv_capacity", largest=64, needed=9), ExitCode.DOES_NOT_FIT),
    (errors.ConfigError("contradicting settings"), ExitCode.USAGE),
    (errors.RequestError("bad value"), ExitCode.USAGE),
    (errors.ArtifactError("truncated", file="m.ninfer", field="header"), ExitCode.BAD_FILE),
    (errors.RecordError("damaged", file="run.json"), ExitCode.BAD_FILE),
    (errors.ConversionError("no rule"), ExitCode.BAD_FILE),
    (errors.FormatError("NaN"), ExitCode.BAD_FILE),
    (errors.UnsupportedError("rope scaling"), ExitCode.UNSUPPORTED),
    (errors.BackendError("out of memory"), ExitCode.RUNTIME),
    (errors.OverloadedError("queue full", kind="queue_full"), ExitCode.RUNTIME),
    (errors.EngineFailedError("the engine has failed"), ExitCode.BUG),
    (errors.InvariantError("page count off"), ExitCode.BUG),
    (PermissionError(13, "Permission denied", "m.ninfer"), ExitCode.RUNTIME),
    (MemoryError(), ExitCode.RUNTIME),
    (ZeroDivisionError("division by zero"), ExitCode.BUG),
]


@pytest.fixture
def command_that_raises(monkeypatch: pytest.MonkeyPatch):
    """Puts a subcommand `fail` that raises the given error in front of the real ones."""

    def install(error: BaseException) -> None:
        @click.command("fail")
        def command() -> None:
            raise error

        monkeypatch.setattr(LazyGroup, "get_command", lambda self, ctx, name: command)

    return install


@pytest.mark.parametrize(("error", "code"), ENDINGS, ids=lambda value: getattr(value, "name", type(value).__name__))
def test_error_becomes_one_line_and_a_code(error, code, command_that_raises, capsys) -> None:
    command_that_raises(error)
    assert main.run(["fail"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("ninfer: error: ")
    assert "Traceback" not in err


def test_every_error_class_has_a_code_of_its_own_choice() -> None:
    """A new class of the tree must be placed, not fall to the default of its root."""
    chosen = {type(error) for error, _ in ENDINGS}
    tree = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.NInferError)}
    assert tree - {errors.NInferError} <= chosen


def test_message_over_several_lines_stays_one_line(command_that_raises, capsys) -> None:
    command_that_raises(errors.RequestError("first\n  second"))
    main.run(["fail"])
    assert capsys.readouterr().err == "ninfer: error: first second\n"


def test_debug_variable_shows_the_traceback(command_that_raises, capsys, monkeypatch) -> None:
    monkeypatch.setenv("NINFER_DEBUG", "1")
    command_that_raises(errors.BackendError("out of memory"))
    assert main.run(["fail"]) == ExitCode.RUNTIME
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_is_130(command_that_raises, capsys) -> None:
    command_that_raises(KeyboardInterrupt())
    assert main.run(["fail"]) == ExitCode.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


def test_system_errors_name_the_file() -> None:
    assert (
        main.describe(FileNotFoundError(2, "No such file or directory", "m.gguf"))
        == "m.gguf: No such file or directory"
    )


def test_unknown_command_and_option_are_usage_errors(capsys) -> None:
    assert main.run(["no-such-command"]) == ExitCode.USAGE
    assert main.run(["--no-such-option"]) == ExitCode.USAGE
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("ninfer: error: ") for line in lines] == [True, True]


def test_version(capsys) -> None:
    assert main.run(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("ninfer, version ")


def test_exit_codes_are_a_promise_to_scripts() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "RUNTIME": 1,
        "USAGE": 2,
        "DOES_NOT_FIT": 3,
        "BAD_FILE": 4,
        "UNSUPPORTED": 5,
        "INVALID": 6,
        "BUG": 70,
        "INTERRUPTED": 130,
        "BROKEN_PIPE": 141,
    }


def test_errors_we_do_not_raise_on_purpose_are_our_bug() -> None:
    assert exit_code_of(KeyError("x")) == ExitCode.BUG
