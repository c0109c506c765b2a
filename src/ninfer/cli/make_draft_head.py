"""`ninfer make-draft-head MODEL OUT`: the shortlist that --lm-head-draft chooses from."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer import formats
from ninfer.cli.models import find_model
from ninfer.cli.output import bytes_text, notice, write_answer
from ninfer.errors import ConfigError


@click.command("make-draft-head")
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--size", type=int, required=True, help="Tokens of the shortlist.")
@click.option("--counts", type=click.Path(path_type=Path), help="A JSON object: token id to how often it was seen.")
@click.option("--text", "texts", multiple=True, type=click.Path(path_type=Path), help="A UTF-8 text; may be repeated.")
@click.option("--draft", type=click.Path(path_type=Path), help="A draft of MODEL that gets the shortlist.")
@click.option("--weights", type=click.Choice(formats.NAMES), default="q8g32", show_default=True, help="Of its rows.")
def command(
    model: str,
    out: Path,
    size: int,
    counts: Path | None,
    texts: tuple[Path, ...],
    draft: Path | None,
    weights: str,
) -> None:
    """Write the rows of MODEL's head for its most used tokens as the draft file OUT.

    Give --counts or at least one --text, which should be like what the model will write. With --draft, OUT is that
    draft with the shortlist; without, it goes with a model that has an MTP module of its own. Answers never depend on
    it, only how often drafts are right.
    """
    from ninfer.artifact import Artifact
    from ninfer.convert.draft_head import count_tokens, make_draft_head, read_counts
    from ninfer.models.registry import read_config
    from ninfer.text.frontend import load_frontend

    if (counts is None) == (not texts):
        raise ConfigError("give either --counts or --text")
    with Artifact.open(find_model(model)) as artifact:
        num_decodable = read_config(artifact.architecture, artifact.config, file=artifact.path).num_decodable
        if counts is not None:
            found = read_counts(counts, num_decodable)
        else:
            tokenizer, _ = load_frontend(artifact.find_resource)
            if tokenizer is None:
                raise ConfigError(f"--text needs a tokenizer, and {artifact.path} has none; use --counts")
            found = count_tokens(texts, tokenizer, num_decodable)
        if draft is None:
            path = make_draft_head(artifact, out, found, size, weights=weights)
        else:
            with Artifact.open(draft) as companion:
                path = make_draft_head(artifact, out, found, size, weights=weights, draft=companion)
    with Artifact.open(path) as made:
        share = made.provenance["shortlist"]["share_of_counts"]
        counted = f"{size} of {num_decodable} tokens, {share:.2%} of those counted"
        notice(f"{path}: {counted}, {bytes_text(made.file_bytes)} bytes")
    write_answer(f"{path}\n")
