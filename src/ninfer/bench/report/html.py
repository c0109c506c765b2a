"""A document as one HTML page that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

import re
from html import escape

from ninfer.bench.report.document import Block, Bullets, Document, Heading, Paragraph, Plot, Table

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d5d9de; --quiet: #5b6570; --lead: #eef4fb;
  --a: #0072b2; --b: #d55e00; --c: #009e73; --d: #cc79a7; --e: #e69f00; --f: #56b4e9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --paper: #14171b; --line: #3a4149; --quiet: #9aa5b1;
  --lead: #1b2733; --a: #56b4e9; --b: #f28e4b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin-top: 1.6rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 0.8rem 0; font-size: 0.87rem; }
th, td { border-bottom: 1px solid var(--line); padding: 0.25rem 0.7rem; text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, .text th, .text td { text-align: left; }
.lead { background: var(--lead); padding: 0.8rem 1rem; border-left: 4px solid var(--a); font-size: 1.05rem; }
figure { margin: 1rem 0; } figcaption { color: var(--quiet); font-size: 0.85rem; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
code { font-size: 0.92em; }
"""


def to_html(document: Document) -> str:
    """The whole page."""
    body = "\n".join(_block(block) for block in document.blocks)
    return (
        f'<!doctype html>\n<html lang="{document.language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(document.title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text, is_lead):
            return f'<p class="lead">{_inline(text)}</p>' if is_lead else f"<p>{_inline(text)}</p>"
        case Bullets(items):
            return "<ul>\n" + "\n".join(f"<li>{_inline(item)}</li>" for item in items) + "\n</ul>"
        case Table():
            return _table(block)
        case Plot(svg, caption):
            return f"<figure>{svg}<figcaption>{_inline(caption)}</figcaption></figure>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in table.header)
    rows = "\n".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    kind = ' class="text"' if table.is_text else ""
    return f"<table{kind}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def _inline(text: str) -> str:
    """Escaped text; `code` spans become elements, as in Markdown."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
