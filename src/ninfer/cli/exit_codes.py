"""What each ending of the process means; docs/cli.md shows this table."""

from __future__ import annotations

from enum import IntEnum

from ninfer import errors


class ExitCode(IntEnum):
    """Exit status of every `ninfer` command; the value is a promise to scripts."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "done"
    RUNTIME = 1, "the machine failed at run time: out of memory, an unreadable disk, non-finite logits"
    USAGE = 2, "a wrong option, value, request or combination of settings"
    DOES_NOT_FIT = 3, "the settings ask for more memory than there is; the message names the largest value that fits"
    BAD_FILE = 4, "a model, source or record file is missing, damaged or cannot be represented"
    UNSUPPORTED = 5, "valid, but not implemented here; the message names what"
    INVALID = 6, "measured, but nothing may be concluded: too many requests failed, or a check did"
    BUG = 70, "an error inside ninfer; NINFER_DEBUG=1 shows the traceback"
    INTERRUPTED = 130, "stopped by Ctrl-C"
    BROKEN_PIPE = 141, "the reader of stdout went away"


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    # The first class that matches decides, so a subclass stands before its parent.
    (errors.CapacityError, ExitCode.DOES_NOT_FIT),
    (errors.ConfigError, ExitCode.USAGE),
    (errors.RequestError, ExitCode.USAGE),
    (errors.ArtifactError, ExitCode.BAD_FILE),
    (errors.RecordError, ExitCode.BAD_FILE),
    (errors.ConversionError, ExitCode.BAD_FILE),
    (errors.FormatError, ExitCode.BAD_FILE),
    (errors.UnsupportedError, ExitCode.UNSUPPORTED),
    (errors.InvariantError, ExitCode.BUG),
    (errors.EngineFailedError, ExitCode.BUG),
    (errors.NInferError, ExitCode.RUNTIME),
    (MemoryError, ExitCode.RUNTIME),
    (OSError, ExitCode.RUNTIME),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code of an error that ended a command; anything we do not raise on purpose is our bug."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.BUG)
