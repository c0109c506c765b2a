"""`ninfer verify FILE`: is every bit as it was written, and is every number one?"""

from __future__ import annotations

import click

from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.output import complain, write_answer


@click.command("verify")
@click.argument("file")
def command(file: str) -> int:
    """Check every digest of a .ninfer file, and that no weight is NaN or infinite; reads all of it.

    Prints one line per problem on stderr, naming the object, and exits with code 4 if there is any.
    """
    from ninfer.artifact import verify

    problems = verify(file)
    for problem in problems:
        complain(f"{file}: {problem}")
    if problems:
        return ExitCode.BAD_FILE
    write_answer(f"{file}: every bit is as it was written\n")
    return ExitCode.OK
