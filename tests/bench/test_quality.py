"""Comparisons of a tiny model with itself in other formats: what is compared, what is refused, what is recorded."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from make import tiny_hybrid
from make.make_gguf import TINY, write_gguf
from make.model_runs import logits_of
from make.tiny_llama import random_weights, write_artifact
from make.tiny_tokenizer import tiny_metadata
from ninfer import formats
from ninfer.artifact import Artifact, ArtifactWriter
from ninfer.backends.options import KVFormat, Numerics
from ninfer.bench import quality, rendering
from ninfer.bench.quality import Variant, bucket_name, measure, position_buckets
from ninfer.bench.quality_text import PARTS, Text, cut_windows, load_text
from ninfer.cli import main
from ninfer.cli.exit_codes import ExitCode
from ninfer.convert.convert import convert
from ninfer.errors import CapacityError, ConfigError
from ninfer.metrics.quality import compare_logits
from ninfer.models import RuntimeOptions, load_model
from ninfer.text.frontend import load_frontend
from ninfer.text.tokenizer import Tokenizer

LONG = dataclasses.replace(TINY, max_position=1024)
STORY = Text("story", "hello hello, twelve 12 tall <|im_end|> ships sailed at dawn; nobody saw them come back. " * 3)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quality") / "tiny.gguf"
    return write_gguf(path, LONG, random_weights(LONG))


@pytest.fixture(scope="module")
def model(gguf: Path) -> Callable[..., Variant]:
    """Variants of one random model by weight format; every format is converted once."""

    def make(weights: str = "f32", numerics: Numerics = "f32", kv_dtype: KVFormat = "bf16") -> Variant:
        path = gguf.with_name(f"{weights}.ninfer")
        if not path.exists():
            convert(gguf, path, weights=weights)
        return Variant(weights, path, numerics, kv_dtype)

    return make


@pytest.fixture(scope="module")
def tokenizer(model: Callable[..., Variant]) -> Tokenizer:
    with Artifact.open(model().path) as artifact:
        found, _ = load_frontend(artifact.find_resource)
    assert found is not None
    return found


def test_a_model_equals_itself(model: Callable[..., Variant]) -> None:
    same = model("q8g32", "a8", "int8")
    (comparison,) = measure([same], same, [STORY], context=40, threads=1).comparisons
    assert comparison.scores.divergence.shape == (5, 40)
    assert not comparison.scores.divergence.any()
    assert not comparison.scores.shift.any()
    assert comparison.scores.agrees.all()
    assert comparison.perplexity_ratio.value == 1.0
    assert comparison.largest_shift == 0.0


def test_scores_are_those_of_whole_windows(model: Callable[..., Variant], tokenizer: Tokenizer) -> None:
    """Chunks, groups of windows and the order of loading leave no trace."""
    reference, variants = model(), [model("q4g32"), model("f32", "f32", "int8")]
    context = 2 * quality.CHUNK_ROWS // 3 * 2  # two steps, the second one shorter
    text = load_text("builtin/code")
    measured = [
        measure(variants, reference, [text], context=context, num_windows=3, threads=1, logits_bytes=size)
        for size in (1, 2 * 4 * context * LONG.vocab_size, 1 << 30)
    ]
    windows = cut_windows([text], tokenizer, context, 3)
    for index, variant in enumerate(variants):
        for number, window in enumerate(windows):
            reference_logits, logits = (whole(side, np.array(window.inputs), context) for side in (reference, variant))
            want = compare_logits(reference_logits, logits, window.targets)
            for result in measured:
                scores = result.comparisons[index].scores
                np.testing.assert_array_equal(scores.divergence[number], want.divergence)
                np.testing.assert_array_equal(scores.loss[number], want.loss)
                np.testing.assert_array_equal(scores.agrees[number], want.agrees)


def whole(side: Variant, ids: np.ndarray, context: int, state_slot: int | None = None) -> np.ndarray:
    """Logits of one window in a single step."""
    options = RuntimeOptions(
        numerics=side.numerics,
        kv_format=side.kv_dtype,
        num_pages=8,
        max_rows=context,
        max_logit_rows=context,
        num_state_slots=0 if state_slot is None else 1,
    )
    with Artifact.open(side.path) as artifact:
        loaded = load_model(artifact, options)
        logits = logits_of(loaded, ids, [context], state_slot=state_slot)
        loaded.close()
    return logits


def with_frontend(source: Path, tokens_of: Path, target: Path) -> Path:
    """The weights of one artifact with the tokenizer of another."""
    with (
        Artifact.open(source) as weights,
        Artifact.open(tokens_of) as other,
        ArtifactWriter(target, weights.architecture, weights.config, {}) as writer,
    ):
        for name, entry in weights.tensors.items():
            writer.add(name, entry.format, entry.layout, entry.shape, weights.payload(name))
        for name in other.objects.keys() - other.tensors.keys():
            writer.add_resource(name, other.resource(name))
        return writer.finish()


def test_recurrent_models_carry_their_state_from_step_to_step(model: Callable[..., Variant], tmp_path: Path) -> None:
    """A window of two steps equals one run in a single step: a lost state would change every later position."""
    config = dataclasses.replace(tiny_hybrid.CONFIG, vocab_size=LONG.vocab_size, num_decodable=LONG.vocab_size)
    bare = tiny_hybrid.write_artifact(tmp_path / "bare", config, tiny_hybrid.random_weights(config), "f32")
    reference = Variant("h", with_frontend(bare, model().path, tmp_path / "h.ninfer"), "f32", "bf16")
    variant = dataclasses.replace(reference, kv_dtype="int8")
    context = quality.CHUNK_ROWS + 30
    text = load_text("builtin/prose")
    result = measure([variant], reference, [text], context=context, num_windows=2, threads=1)
    with Artifact.open(reference.path) as artifact:
        tokenizer, _ = load_frontend(artifact.find_resource)
    assert tokenizer is not None
    for number, window in enumerate(cut_windows([text], tokenizer, context, 2)):
        pair = (whole(side, np.array(window.inputs), context, state_slot=0) for side in (reference, variant))
        want = compare_logits(*pair, window.targets)
        assert want.divergence.any()
        np.testing.assert_array_equal(result.comparisons[0].scores.divergence[number], want.divergence)


def test_coarser_formats_diverge_more(model: Callable[..., Variant]) -> None:
    formats = ["bf16", "q8g32", "q4g32"]
    result = measure([model(name) for name in formats], model(), [load_text("builtin/json")], context=512, threads=1)
    means = [c.mean(c.scores.divergence).value for c in result.comparisons]
    assert 0 < means[0] < means[1] < means[2]


def test_int8_kv_drift_is_bounded(model: Callable[..., Variant]) -> None:
    """Over 1,000 tokens the int8 cache costs this model at most 3e-4 nat anywhere, and late positions at most a quarter
    more than early ones: errors of cached values average out, they do not add up.

    docs/quality.md, "Long contexts", has the same of a real model over 4,096 tokens.
    """
    result = measure([model(kv_dtype="int8")], model(), [load_text("builtin/prose")], context=1000, threads=1)
    (comparison,) = result.comparisons
    first, *later = (comparison.mean(comparison.scores.divergence, bucket).value for bucket in result.buckets)
    assert len(later) == 4
    assert 1e-5 < first < 3e-4
    assert max(later) < 1.25 * first


def test_buckets_double_and_cover_every_position_once() -> None:
    assert [bucket_name(bucket) for bucket in position_buckets(300)] == ["0-63", "64-127", "128-255", "256-299"]
    assert [bucket_name(bucket) for bucket in position_buckets(64)] == ["0-63"]
    assert [bucket_name(bucket) for bucket in position_buckets(2)] == ["0-1"]
    assert sum(bucket.stop - bucket.start for bucket in position_buckets(4096)) == 4096


def test_windows_follow_one_another(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(STORY.content)
    windows = cut_windows([STORY], tokenizer, 20, None)
    assert len(windows) == (len(ids) - 1) // 20
    for index, window in enumerate(windows):
        assert window.start == 20 * index
        assert window.inputs.tolist() == ids[20 * index : 20 * index + 20]
        assert window.targets.tolist() == ids[20 * index + 1 : 20 * index + 21]
    spread = cut_windows([STORY], tokenizer, 20, 3)
    assert [window.start // 20 for window in spread] == [index * len(windows) // 3 for index in range(3)]


def test_what_begins_a_prompt_begins_every_window(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(STORY.content)
    for index, window in enumerate(cut_windows([STORY], tokenizer.beginning_with(1), 20, None)):
        assert window.inputs.tolist() == [1, *ids[19 * index : 19 * index + 19]]
        assert window.targets.tolist() == ids[19 * index : 19 * index + 20]


def test_the_last_window_needs_one_token_more_than_it_reads(tokenizer: Tokenizer) -> None:
    text = Text("short", STORY.content[:60])
    count = len(tokenizer.encode(text.content))
    assert len(cut_windows([text], tokenizer, count - 1, None)) == 1
    with pytest.raises(ConfigError, match=rf"text short has {count} tokens; one window of context {count} needs"):
        cut_windows([text], tokenizer, count, None)


def test_windows_that_cannot_be_cut(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="99 windows of context 40 were asked for and 5 fit"):
        cut_windows([STORY], tokenizer, 40, 99)
    with pytest.raises(ConfigError, match="1 windows leave out text other"):
        cut_windows([STORY, dataclasses.replace(STORY, name="other")], tokenizer, 40, 1)
    with pytest.raises(ConfigError, match="context of 2 tokens has no room after the 2 that begin"):
        cut_windows([STORY], tokenizer.beginning_with(1, 1), 2, None)


def test_nothing_counts_twice_and_nothing_is_compared_with_nothing(model: Callable[..., Variant]) -> None:
    with pytest.raises(ConfigError, match="named twice: story, story"):
        measure([model()], model(), [STORY, STORY], context=40, threads=1)
    with pytest.raises(ConfigError, match="at least one variant"):
        measure([], model(), [STORY], context=40, threads=1)


def test_bundled_texts_are_there() -> None:
    parts = [load_text(f"builtin/{part}").content for part in PARTS]
    assert load_text("builtin").content == "\n".join(parts)
    assert all(6000 <= len(part.encode()) <= 10_000 for part in parts)
    assert len({load_text(f"builtin/{part}").digest for part in PARTS}) == len(PARTS)


def test_texts_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no bundled text 'builtin/poems'; there is builtin/prose, "):
        load_text("builtin/poems")
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        load_text(str(tmp_path / "none.txt"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"latin.txt is not UTF-8"):
        load_text(str(tmp_path / "latin.txt"))


def test_other_vocabularies_are_refused(model: Callable[..., Variant], tmp_path: Path) -> None:
    tokens = tiny_metadata()["tokenizer.ggml.tokens"]
    swapped = [*tokens[:100], tokens[101], tokens[100], *tokens[102:]]
    source = write_gguf(tmp_path / "other.gguf", LONG, random_weights(LONG), tokenizer__ggml__tokens=swapped)
    convert(source, tmp_path / "other.ninfer")
    other = Variant("other", tmp_path / "other.ninfer", "f32", "bf16")
    digests = set()
    for pair in ((other, model()), (model(), other)):
        with pytest.raises(ConfigError, match=r"another vocabulary than the reference .*\(digests \w{64} and") as error:
            measure([pair[0]], pair[1], [STORY], context=40, threads=1)
        digests.add(frozenset(word for word in str(error.value).replace(")", " ").split() if len(word) == 64))
    assert len(digests) == 1
    assert len(digests.pop()) == 2


def test_another_number_of_predicted_ids_is_refused(model: Callable[..., Variant], tmp_path: Path) -> None:
    """The same tokenizer beside a matrix with rows of padding."""
    rows = LONG.vocab_size + 5
    padded = random_weights(dataclasses.replace(LONG, vocab_size=rows))
    with Artifact.open(model().path) as artifact:
        config = {**artifact.config, "vocab_size": rows}
        with ArtifactWriter(tmp_path / "padded.ninfer", "llama", config, {}) as writer:
            for name, array in padded.items():
                if array.ndim == 1:
                    writer.add_vector(name, array)
                else:
                    writer.add_matrix(name, "f32", formats.get("f32").pack(array))
            for name in artifact.objects.keys() - artifact.tensors.keys():
                writer.add_resource(name, artifact.resource(name))
            path = writer.finish()
    with pytest.raises(ConfigError, match=rf"predicts {rows} token ids and the reference {LONG.vocab_size}:"):
        measure([Variant("padded", path, "f32", "bf16")], model(), [STORY], context=40, threads=1)


def test_a_model_without_tokenizer_is_refused(model: Callable[..., Variant], tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "bare.ninfer", LONG, random_weights(LONG), "f32")
    for pair in ((Variant("bare", path, "f32", "bf16"), model()), (model(), Variant("bare", path, "f32", "bf16"))):
        with pytest.raises(ConfigError, match=r"bare.ninfer has no tokenizer"):
            measure([pair[0]], pair[1], [STORY], context=40, threads=1)


def test_contexts_that_do_not_fit_are_refused(model: Callable[..., Variant], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="max_context"):
        measure([model()], model(), [load_text("builtin/prose")], context=LONG.max_position + 1, threads=1)
    small = dataclasses.replace(quality.detect_hardware(), available_bytes=1 << 20)
    monkeypatch.setattr(quality, "detect_hardware", lambda: small)
    with pytest.raises(CapacityError, match="a context below") as error:
        measure([model()], model(), [load_text("builtin/prose")], context=1000, threads=1)
    assert error.value.largest == (1 << 20) // (4 * LONG.vocab_size)


def test_everything_needed_to_repeat_is_recorded(model: Callable[..., Variant]) -> None:
    texts = [STORY, load_text("builtin/code")]
    result = measure([model("q8g32", "a8", "int8")], model(), texts, context=100, num_windows=9, threads=1)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    conditions = document["conditions"]
    assert [text["digest"] for text in conditions["texts"]] == [text.digest for text in texts]
    assert len(conditions["windows"]) == 9
    for side, variant in zip(
        (conditions["reference"], *conditions["variants"]), (model(), model("q8g32")), strict=True
    ):
        with Artifact.open(variant.path) as artifact:
            assert side["artifact_digest"] == artifact.digest
            assert side["file_bytes"] == artifact.file_bytes
        assert len(side["plan"]["digest"]) == 64
        assert side["plan"]["options"]["max_logit_rows"] == 100
        assert {"logits", "weights"} <= {item["name"] for item in side["plan"]["memory"]}
    (comparison,) = document["comparisons"]
    whole_text = next(
        m for m in document["measurements"] if (m["name"], m["inputs"]["positions"]) == (quality.DIVERGENCE, "0-99")
    )
    assert len(whole_text["values"]) == 9
    assert np.mean(whole_text["values"]) == pytest.approx(comparison["divergence"]["value"])
    assert comparison["divergence"]["low"] < comparison["divergence"]["value"] < comparison["divergence"]["high"]
    assert [entry["positions"] for entry in comparison["by_position"]] == ["0-63", "64-99"]
    assert "By text" in shown(result)


def test_one_window_is_a_single_sample(model: Callable[..., Variant]) -> None:
    result = measure([model("q4g32")], model(), [STORY], context=40, num_windows=1, threads=1)
    assert "single sample" in shown(result)
    assert result.to_json()["comparisons"][0]["divergence"]["low"] is None


def shown(result: quality.QualityResult) -> str:
    console = Console(record=True, width=160, file=io.StringIO())
    console.print(rendering.quality_tables(result))
    return console.export_text()


def test_the_command_compares_with_the_most_exact_by_default(
    model: Callable[..., Variant], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "story.txt").write_text(STORY.content, encoding="utf-8")
    path = str(model("q8g32").path)
    arguments = ["bench", "quality", path, f"{path}:numerics=f32", "--text", str(tmp_path / "story.txt")]
    arguments += ["--context", "40", "--windows", "2", "--threads", "1", "--kv-dtype", "bf16", "--json"]
    assert main.run(arguments) == ExitCode.OK
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["tool"] == "quality"
    sides = [document["conditions"]["reference"], *document["conditions"]["variants"]]
    assert [(side["numerics"], side["kv_dtype"]) for side in sides] == [
        ("f32", "bf16"),
        ("a8", "bf16"),
        ("f32", "bf16"),
    ]
    first, second = document["comparisons"]
    assert first["divergence"]["value"] > 0
    assert second["divergence"]["value"] == 0
    assert "windows 1 to 2 of 2" in captured.err


def test_the_command_prints_tables(model: Callable[..., Variant], capsys: pytest.CaptureFixture[str]) -> None:
    variants = [str(model("q4g32").path), f"{model().path}:kv-dtype=int8"]
    reference = ["--reference", f"{model().path}:numerics=f32"]
    arguments = [
        "bench",
        "quality",
        *variants,
        *reference,
        "--text",
        "builtin/prose",
        "--windows",
        "2",
        "--threads",
        "1",
    ]
    assert main.run(arguments) == ExitCode.OK
    assert "KL divergence by position" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("x.ninfer:numerics=a9", "numerics must be one of a8, a8g32, f32"),
        ("x.ninfer:kv=int8", "'kv' must be one of numerics, kv-dtype"),
        ("x.ninfer:numerics=a8,numerics=f32", "each at most once"),
        ("x.ninfer:numerics=a8,bf16", "'bf16' must be one of"),
        ("nowhere:8080", "no model 'nowhere:8080'"),
    ],
)
def test_variants_that_cannot_be(variant: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bench", "quality", variant]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
