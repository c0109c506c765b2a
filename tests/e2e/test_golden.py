"""SmolLM2-135M-Instruct gives the reference answer, through the command, in every KV format and numeric profile.

The ids were made by an independent float32 forward pass over the dequantised weights.
"""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.real_model

QUESTION = "What is the capital of France?"
PROMPT_IDS = [
    *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198),
    *(1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198),
]
ANSWER_IDS = [504, 3575, 282, 4649, 314, 7042, 30, 2]
ANSWER = "The capital of France is Paris."
EXACT = ("--numerics", "f32")
"""Where a test expects this answer and is not about numerics."""


@pytest.mark.parametrize("kv_dtype", ["int8", "bf16"])
@pytest.mark.parametrize("numerics", ["a8", "f32"])
def test_golden_answer(ninfer, smollm2, kv_dtype, numerics) -> None:
    found = ninfer(
        *("run", smollm2, "--prompt", QUESTION, "--json", "--max-new", 16),
        *("--kv-dtype", kv_dtype, "--numerics", numerics),
    ).json()
    assert found["prompt_ids"] == PROMPT_IDS
    assert found["output_ids"] == ANSWER_IDS
    assert found["text"] == ANSWER
    assert found["finish"] == "stop_token"
    assert found["plan"]["options"]["kv_format"] == kv_dtype
    assert found["plan"]["options"]["numerics"] == numerics


@pytest.mark.parametrize("settings", [("--prefill-chunk", 1), ("--prefill-chunk", 7), ("--threads", 1)], ids=str)
def test_chunks_and_threads_change_nothing(ninfer, smollm2, settings) -> None:
    prompt = ",".join(map(str, PROMPT_IDS))
    found = ninfer("run", smollm2, "--prompt-ids", prompt, "--max-new", 12, "--json", *settings).json()
    usual = ninfer("run", smollm2, "--prompt-ids", prompt, "--max-new", 12, "--json").json()
    assert found["output_ids"] == usual["output_ids"]


def test_answer_on_stdout_and_the_rest_on_stderr(ninfer, smollm2) -> None:
    done = ninfer("run", smollm2, "--prompt", QUESTION, *EXACT)
    assert (done.code, done.out) == (0, ANSWER + "\n")
    assert "stop_token" in done.err
    assert ANSWER not in done.err


def test_messages_and_stdin(ninfer, smollm2, tmp_path) -> None:
    conversation = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    (tmp_path / "c.json").write_text(conversation, encoding="utf-8")
    for source, stdin in ((tmp_path / "c.json", ""), ("-", conversation)):
        found = ninfer("run", smollm2, "--messages", source, "--json", *EXACT, stdin=stdin).json()
        assert (found["prompt_ids"], found["text"]) == (PROMPT_IDS, ANSWER)


def test_user_text_never_becomes_control(ninfer, smollm2) -> None:
    found = ninfer("run", smollm2, "--prompt", "<|im_end|>", "--max-new", 1, "--json").json()
    assert found["prompt_ids"].count(2) == PROMPT_IDS.count(2)


def test_raw_text_skips_the_template(ninfer, smollm2) -> None:
    text = "The capital of France is"
    found = ninfer("run", smollm2, "--prompt", text, "--raw", "--max-new", 4, "--json", *EXACT).json()
    assert found["prompt_ids"] == [504, 3575, 282, 4649, 314]
    assert " Paris" in found["text"]


def test_chat_from_a_pipe(ninfer, smollm2) -> None:
    done = ninfer("chat", smollm2, *EXACT, stdin=f"{QUESTION}\n/reset\n\n{QUESTION}\n/exit\nnever asked\n")
    assert done.code == 0, done.err
    assert done.out == f"{ANSWER}\n{ANSWER}\n"
    assert prompt_lengths(done.err) == [len(PROMPT_IDS)] * 2


def test_chat_remembers_and_ends_at_the_end_of_input(ninfer, smollm2) -> None:
    done = ninfer("chat", smollm2, "--max-new", 1, "--system", "", stdin="One.\nTwo.\n")
    assert done.code == 0, done.err
    first, second = prompt_lengths(done.err)
    assert second > first + len("Two")


def prompt_lengths(err: str) -> list[int]:
    """Prompt tokens of each answer, from the summaries on stderr."""
    return [int(count) for count in re.findall(r"prefill (\d+) tokens", err)]


def test_chat_refuses_unknown_commands_from_a_pipe(ninfer, smollm2) -> None:
    done = ninfer("chat", smollm2, stdin="/fly\nnever asked\n")
    assert "/fly" in done.refusal(2)


def test_seed_makes_sampling_repeatable(ninfer, smollm2) -> None:
    def sample(*more: object) -> dict:
        return ninfer(
            *("run", smollm2, "--prompt", "Tell me a story.", "--temperature", 1, "--max-new", 16, "--json", *more)
        ).json()

    first = sample("--seed", 7)
    assert first["seed"] == 7
    assert sample("--seed", 7)["output_ids"] == first["output_ids"]
    assert sample("--seed", 8)["output_ids"] != first["output_ids"]
    drawn = sample()
    assert sample("--seed", drawn["seed"])["output_ids"] == drawn["output_ids"]
