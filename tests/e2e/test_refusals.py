"""What goes wrong is one line on stderr, nothing on stdout, and the documented exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

# No model is needed to see that a command line is wrong, so these name one that does not exist.
NO_MODEL = "no-such-model"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", NO_MODEL), "exactly one of --prompt, --messages and --prompt-ids, got none"),
        (("run", NO_MODEL, "--prompt", "a", "--prompt-ids", "1"), "got --prompt and --prompt-ids"),
        (("run", NO_MODEL, "--prompt-ids", "1,x"), "'x' is none"),
        (("run", NO_MODEL, "--prompt-ids", ""), "'' is none"),
        (("run", NO_MODEL, "--prompt-ids", "1", "--raw"), "--raw goes with --prompt"),
        (("run", NO_MODEL, "--messages", "no-such-file.json"), "no-such-file.json: No such file"),
        (("run", NO_MODEL, "--prompt", "a", "--kv-dtype", "int3"), "int3"),
        (("run", NO_MODEL, "--prompt", "a", "--threads", "0"), "threads must be an integer in [1, 256]"),
        (("run", NO_MODEL, "--prompt", "a", "--max-concurrency", "4"), "--max-concurrency"),
        (("run", NO_MODEL, "--prompt", "a", "--no-such-option"), "--no-such-option"),
        (("run",), "MODEL"),
        (("no-such-command",), "no-such-command"),
    ],
)
def test_wrong_command_line(ninfer, arguments, words) -> None:
    assert words in ninfer(*arguments).refusal(2)


def test_broken_and_foreign_files(ninfer, tmp_path) -> None:
    for name, content in (("a.ninfer", b""), ("b.ninfer", b"NINFER\x00\x01" + bytes(64)), ("c.gguf", b"GGUF")):
        path = tmp_path / name
        path.write_bytes(content)
        assert name in ninfer("run", path, "--prompt", "a").refusal(4)
    assert "a.ninfer" in ninfer("inspect", tmp_path / "a.ninfer").refusal(4)


def test_help_is_no_error(ninfer) -> None:
    for arguments in (("--help",), ("run", "--help"), ("bench", "--help")):
        done = ninfer(*arguments)
        assert (done.code, done.err) == (0, "")
        assert "Usage: ninfer" in done.out


@pytest.mark.real_model
class TestWithModel:
    """Refusals that only the model can tell."""

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--prompt", "a", "--temperature", "3"), "temperature must be in [0, 2]"),
            (("--prompt", "a", "--top-p", "0.5"), "--top-p changes nothing in a greedy answer"),
            (("--prompt", "a", "--greedy", "--temperature", "1"), "contradict"),
            (("--prompt", "a", "--stop", ""), "non-empty"),
            (("--prompt", "a", "--max-new", "0"), "max_new must be an integer >= 1"),
            (("--prompt", "a", "--max-context", "100000"), "8192"),
            (("--prompt", "a", "--max-context", "512", "--kv-capacity", "64"), "kv_capacity 64 is below"),
            (("--prompt", "word " * 100, "--max-context", "64"), "the context holds 64"),
            (("--prompt-ids", "1,999999"), "999999"),
        ],
    )
    def test_bad_request(self, ninfer, smollm2, arguments, words) -> None:
        assert words in ninfer("run", smollm2, *arguments).refusal(2)

    def test_plan_that_does_not_fit(self, ninfer, smollm2) -> None:
        asked = 10**9
        done = ninfer("plan", smollm2, "--kv-capacity", asked)
        message = done.refusal(3)
        largest = int(message.rsplit(" ", 1)[1])
        assert 0 < largest < asked
        data = ninfer("plan", smollm2, "--kv-capacity", asked, "--json")
        assert data.code == 3
        assert '"fits": false' in data.out
        # Half of it leaves room for what other processes take meanwhile.
        assert ninfer("plan", smollm2, "--kv-capacity", largest // 2, "--json").json()["fits"] is True
        assert "kv_capacity" in ninfer("run", smollm2, "--prompt", "a", "--kv-capacity", asked).refusal(3)

    def test_damaged_file_is_found_and_the_object_named(self, ninfer, smollm2, tmp_path) -> None:
        content = bytearray(Path(smollm2).read_bytes())
        content[-100] ^= 1
        (tmp_path / "m.ninfer").write_bytes(content)
        assert ninfer("verify", smollm2).code == 0
        assert "BLAKE2b" in ninfer("verify", tmp_path / "m.ninfer").refusal(4)
