"""`ninfer bench verify RUN`: is a record as it was written, and do its numbers agree?"""

from __future__ import annotations

from pathlib import Path

import click

from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.output import complain, write_answer


@click.command("verify")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
def command(runs: tuple[Path, ...]) -> int:
    """Check run records: every digest, every answer, and that counts and times do not contradict each other.

    RUN is the directory of a record. Prints one line per problem on stderr, naming file and row, and exits with code 4
    if there is any.
    """
    from ninfer.bench.records.verify import verify_run

    is_good = True
    for run in runs:
        problems = verify_run(run)
        for problem in problems:
            complain(f"{run}: {problem}")
        if problems:
            is_good = False
        else:
            write_answer(f"{run}: as it was written\n")
    return ExitCode.OK if is_good else ExitCode.BAD_FILE
