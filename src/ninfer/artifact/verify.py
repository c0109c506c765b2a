"""Checking every bit and every number of a `.ninfer` file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ninfer.artifact.header import blake2b
from ninfer.artifact.parse import parse_header
from ninfer.artifact.reader import map_file
from ninfer.errors import ArtifactError
from ninfer.formats import layouts


@dataclass(frozen=True)
class Problem:
    """One thing wrong: `object` is the name of an object, or `header`."""

    object: str
    message: str

    def __str__(self) -> str:
        return f"{self.object}: {self.message}"


def verify(path: str | os.PathLike[str]) -> list[Problem]:
    """All problems of a file, none if every bit is as written and every number is one; reads the whole file.

    A header that cannot be trusted is the only problem reported, since it says where everything else lies.
    ArtifactError if the file cannot be read at all.
    """
    with memoryview(map_file(path)) as data:
        try:
            header = parse_header(data, file=path)
        except ArtifactError as error:
            return [Problem("header", str(error))]
        problems = []
        for entry in header.objects.values():
            end = entry.offset + entry.nbytes
            seen = blake2b(data[entry.offset : end])
            if seen != entry.blake2b:
                message = f"the {entry.nbytes} bytes at {entry.offset} have BLAKE2b-256 {seen}, not {entry.blake2b}"
                problems.append(Problem(entry.name, message))
            elif flaw := layouts.find_flaw(data[entry.offset : end], entry.shape, entry.format, entry.layout):
                problems.append(Problem(entry.name, flaw))
            if any(data[end : entry.offset + entry.padded_nbytes]):
                problems.append(Problem(entry.name, f"padding after byte {end} is not zero"))
        return problems
