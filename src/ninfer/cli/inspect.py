"""`ninfer inspect FILE`: what is in a .ninfer file."""

from __future__ import annotations

from typing import Any

import click

from ninfer.cli.output import bytes_text, write_answer, write_json


@click.command("inspect")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with everything the header says.")
def command(file: str, as_json: bool) -> None:
    """Show what is in a .ninfer file; reads its header only."""
    from ninfer.artifact import inspect

    content = inspect(file)
    if as_json:
        write_json(content)
    else:
        write_answer(render(content))


def source_text(provenance: dict[str, Any]) -> str:
    """Where the weights come from, as far as the file says."""
    source = provenance.get("source")
    if not isinstance(source, dict):
        return str(source or "unknown")
    random = source.get("random")
    if not random:
        return str(source.get("kind", "unknown"))
    facts = ", ".join(f"{name} {value}" for name, value in random.items())
    return f"{source.get('kind', 'unknown')}, weights are random: {facts}"


def render(content: dict[str, Any]) -> str:
    """The content as text: facts, totals, then one line per object."""
    lines = [
        f"file          {content['file']}",
        f"bytes         {bytes_text(content['file_bytes'])}",
        f"digest        {content['digest']}",
        f"architecture  {content['architecture']}",
        f"source        {source_text(content['provenance'])}",
        "",
    ]
    lines += [f"{name:<20} {value}" for name, value in content["config"].items()]
    lines += ["", f"{'format':<8} {'tensors':>8} {'parameters':>14} {'bytes':>14} {'bits/weight':>12}"]
    totals = content["totals"]
    for name, total in [*totals["by_format"].items(), ("all", totals["weights"])]:
        bits = "-" if total["bits_per_weight"] is None else f"{total['bits_per_weight']:.3f}"
        lines.append(f"{name:<8} {total['tensors']:>8,} {total['parameters']:>14,} {total['bytes']:>14,} {bits:>12}")
    width = max((len(entry["name"]) for entry in content["objects"]), default=0)
    lines += ["", f"{'object':<{width}} {'format':<8} {'layout':<6} {'shape':<16} {'offset':>14} {'bytes':>14}"]
    for entry in content["objects"]:
        shape = " x ".join(map(str, entry["shape"]))
        lines.append(
            f"{entry['name']:<{width}} {entry['format']:<8} {entry['layout']:<6} {shape:<16} "
            f"{entry['offset']:>14,} {entry['bytes']:>14,}"
        )
    return "\n".join(lines) + "\n"
