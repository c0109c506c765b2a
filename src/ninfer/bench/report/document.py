"""What a report consists of, whatever it is written as."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """is_lead: the sentence that a hurried reader gets."""

    text: str
    is_lead: bool = False


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """The first column names the rows and is set left, all others right, unless `is_text`: then all are set left."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_text: bool = False


@dataclass(frozen=True)
class Plot:
    """A drawing as an SVG element; `caption` says in words what can be seen, for those who cannot see it."""

    svg: str
    caption: str


Block = Heading | Paragraph | Bullets | Table | Plot


@dataclass(frozen=True)
class Document:
    title: str
    language: str
    blocks: tuple[Block, ...]
