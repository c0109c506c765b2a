"""Drafts that the repository carries: whole files of a bounded size, whose card says what their provenance says."""

from __future__ import annotations

from pathlib import Path

from ninfer.artifact import Artifact, verify
from ninfer.models.drafts import read_companion
from ninfer.training.evaluate import Acceptance

DRAFTS = Path(__file__).resolve().parents[3] / "drafts"
MOST_BYTES = 16 << 20


def test_the_mtp_head_of_smollm2_is_what_its_card_says() -> None:
    path = DRAFTS / "smollm2-mtp.ninfer"
    assert path.stat().st_size <= MOST_BYTES
    assert list(verify(path)) == []
    with Artifact.open(path) as companion:
        config = read_companion(companion)
        training = companion.provenance["training"]
    card = (DRAFTS / "README.md").read_text(encoding="utf-8")
    assert f"{path.stat().st_size:,} bytes" in card
    assert f"{config.shortlist_size} rows" in card
    assert f"{training['responses']} of the model's own responses" in card
    assert f"{training['response_tokens']:,} tokens; {training['held_out_responses']} responses to held-out" in card
    assert f"{training['steps']} of AdamW" in card
    for row in training["acceptance"]:
        lists = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
        found = Acceptance(**lists)
        shares = " | ".join(f"{share:.3f}" for share in found.position_acceptance)
        assert f"| {found.rounds} | {found.tokens_per_round:.2f} | {shares} |" in card
