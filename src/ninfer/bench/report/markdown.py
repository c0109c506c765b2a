"""A document as Markdown. Plots are left out: everything they show stands in a table as well."""

from __future__ import annotations

from ninfer.bench.report.document import Block, Bullets, Document, Heading, Paragraph, Plot, Table


def to_markdown(document: Document) -> str:
    """The whole document, with a line end."""
    parts = [f"# {document.title}", *(text for block in document.blocks if (text := _block(block)))]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text, is_lead):
            return f"**{text}**" if is_lead else text
        case Bullets(items):
            return "\n".join(f"- {item}" for item in items)
        case Table():
            return _table(block)
        case Plot():
            return ""


def _table(table: Table) -> str:
    rule = ("---",) if table.is_text else ("---:",)
    lines = [table.header, ("---", *rule * (len(table.header) - 1)), *table.rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
