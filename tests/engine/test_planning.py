"""Plans on made-up files and machines, where every number is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ninfer.backends.options import RuntimeOptions
from ninfer.cache import pages_for
from ninfer.engine import EngineConfig, EnginePlan, Hardware, plan_engine
from ninfer.engine.planning import (
    MARGIN_BYTES,
    RUNTIME_ESTIMATE_BYTES,
    TOKENIZER_ESTIMATE_FACTOR,
)
from ninfer.errors import ArtifactError, CapacityError, ConfigError, UnsupportedError

GIB = 2**30
MIB = 2**20
WEIGHTS = 100 * MIB
LARGE_WEIGHTS = 2400 * MIB
PAGE = 1 * MIB
ROW = 1000
LOGIT_ROW = 4 * 5000


CONFIG: dict[str, Any] = {
    "vocab_size": 5000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "max_position": 8192,
    "tied_head": True,
    "bos_token_id": 1,
    "stop_token_ids": [2, 7],
    "pad_token_id": None,
}


@dataclass(frozen=True)
class FakeEntry:
    nbytes: int


@dataclass(frozen=True)
class FakeArtifact:
    architecture: str = "llama"
    digest: str = "ab" * 32
    config: dict[str, Any] = field(default_factory=lambda: CONFIG)
    path: str = "made-up.ninfer"
    weights: int = WEIGHTS
    objects: dict[str, FakeEntry] = field(default_factory=dict)


def plan_memory(artifact: FakeArtifact, options: RuntimeOptions) -> dict[str, int]:
    return {
        "weights": artifact.weights,
        "kv": PAGE * options.num_pages,
        "workspace": ROW * options.max_rows,
        "logits": LOGIT_ROW * options.max_logit_rows,
    }


ARTIFACT = FakeArtifact()
MACHINE = Hardware(
    available_bytes=16 * GIB, total_bytes=24 * GIB, cpus=3, huge_pages=True, isas=("scalar", "avx2", "avx9")
)


def plan(
    config: EngineConfig | None = None, artifact: FakeArtifact = ARTIFACT, hardware: Hardware = MACHINE
) -> EnginePlan:
    return plan_engine(config or EngineConfig(), artifact, hardware, plan_memory=plan_memory)


def with_available(available: int) -> Hardware:
    return replace(MACHINE, available_bytes=available)


def test_every_allocation_is_counted() -> None:
    artifact = replace(ARTIFACT, objects={"frontend/tokenizer.json": FakeEntry(1000)})
    made = plan(EngineConfig(max_context=1000, max_concurrency=3, prefill_chunk=128), artifact)
    pages, rows = 3 * 16, 128 + 2
    items = {item.name: (item.num_bytes, item.estimate) for item in made.memory}
    assert items == {
        "weights": (WEIGHTS, False),
        "kv": (PAGE * pages, False),
        "workspace": (ROW * rows, False),
        "logits": (LOGIT_ROW * 3, False),
        "tokens and page tables": (3 * 4 * (16 + 1000) + 4 * (rows + 3), False),
        "tokenizer": (TOKENIZER_ESTIMATE_FACTOR * 1000, True),
        "interpreter and libraries": (RUNTIME_ESTIMATE_BYTES, True),
    }
    assert made.total_bytes == sum(size for size, _ in items.values())


def test_options_are_what_the_engine_will_run() -> None:
    made = plan(EngineConfig(max_context=1000, max_concurrency=3, prefill_chunk=128, kv_dtype="bf16", threads=2))
    assert made.options == RuntimeOptions(
        numerics="a8",
        kv_format="bf16",
        num_pages=48,
        max_rows=130,
        max_logit_rows=3,
        threads=2,
        isa="avx9",
        weights_memory="huge",
    )
    assert (made.num_pages, made.kv_capacity) == (48, 3072)
    assert (made.vocab_size, made.end_token_ids) == (5000, (2, 7))
    assert (made.max_context, made.prefill_chunk, made.max_concurrency) == (1000, 128, 3)


def reasons(made: EnginePlan) -> dict[str, tuple[int | str, str]]:
    return {choice.field: (choice.value, choice.reason) for choice in made.choices}


def test_automatic_choices_have_reasons() -> None:
    found = reasons(plan())
    assert found["max_context"] == (2048, "the default")
    assert found["kv_capacity"] == (2048, "1 x max_context")
    assert found["threads"][0] == 3
    assert "3 CPUs" in found["threads"][1]
    assert found["weights_memory"][0] == "huge"
    assert found["isa"] == ("avx9", "the best of what this CPU has: scalar, avx2, avx9")


def test_explicit_settings_are_no_choices() -> None:
    config = EngineConfig(max_context=512, kv_capacity=600, threads=1, weights_memory="mapped", isa="avx2")
    made = plan(config)
    assert made.choices == ()
    assert (made.options.threads, made.options.weights_memory, made.options.isa) == (1, "mapped", "avx2")
    assert made.kv_capacity == 640, "rounded up to pages"


def test_without_huge_pages_weights_stay_mapped() -> None:
    made = plan(hardware=replace(MACHINE, huge_pages=False))
    assert made.options.weights_memory == "mapped"
    assert reasons(made)["weights_memory"][0] == "mapped"


def test_weights_too_large_to_copy_stay_mapped() -> None:
    """The copy may take three quarters of what is available."""
    artifact = replace(ARTIFACT, weights=LARGE_WEIGHTS)
    config = EngineConfig(max_context=64, prefill_chunk=1)
    border = LARGE_WEIGHTS * 4 // 3
    assert plan(config, artifact, with_available(border)).options.weights_memory == "huge"
    made = plan(config, artifact, with_available(border - 1))
    assert made.options.weights_memory == "mapped"
    assert f"{LARGE_WEIGHTS} of {border - 1} available" in reasons(made)["weights_memory"][1]
    assert "counted as if the whole file stays in memory" in reasons(made)["weights_memory"][1]


def test_a_copy_leaves_the_margin_beside_the_rest() -> None:
    enough = total(2048, 32) + MARGIN_BYTES
    assert plan(hardware=with_available(enough)).options.weights_memory == "huge"
    made = plan(hardware=with_available(enough - 1))
    assert made.options.weights_memory == "mapped"
    assert "leaves no margin" in reasons(made)["weights_memory"][1]


def test_twenty_gigabytes_of_weights_in_24_gib_stay_mapped() -> None:
    artifact = replace(ARTIFACT, weights=20 * 10**9)
    made = plan(artifact=artifact, hardware=replace(MACHINE, total_bytes=24 * GIB, available_bytes=23 * GIB))
    assert made.options.weights_memory == "mapped"


def test_mapped_weights_need_memory_unless_the_operator_says_otherwise() -> None:
    """They are read in every step, so a plan of its own accord counts them; asked for, it says what is missing."""
    all_bytes = total(2048, 32)
    hardware = with_available(all_bytes - WEIGHTS)
    with pytest.raises(CapacityError) as caught:
        plan(hardware=hardware)
    assert caught.value.needed == all_bytes
    advice = f"weights_memory=mapped would run, but read at least {WEIGHTS} bytes from the file in every step"
    assert str(caught.value).endswith(f"; no value fits; {advice}")
    mapped = EngineConfig(weights_memory="mapped")
    made = plan(mapped, hardware=hardware)
    assert made.total_bytes == all_bytes
    assert f"{WEIGHTS} bytes of the weights find no memory" in reasons(made)["weights_memory"][1]
    assert "weights_memory" not in reasons(plan(mapped, hardware=with_available(all_bytes)))
    with pytest.raises(CapacityError) as caught:
        plan(mapped, hardware=with_available(all_bytes - WEIGHTS - 1))
    assert caught.value.needed == all_bytes - WEIGHTS


def test_an_instruction_set_that_this_cpu_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="isa is 'amx'; this CPU has scalar, avx2, avx9"):
        plan(EngineConfig(isa="amx"))


def test_a_short_trained_context_is_the_context() -> None:
    artifact = replace(ARTIFACT, config={**CONFIG, "max_position": 300})
    made = plan(artifact=artifact)
    assert reasons(made)["max_context"] == (300, "the model was trained for 300 tokens")
    assert reasons(made)["prefill_chunk"] == (300, "a chunk is never longer than the context")
    assert (made.max_context, made.prefill_chunk, made.options.max_rows) == (300, 300, 300)


def test_a_small_kv_capacity_limits_an_automatic_context() -> None:
    made = plan(EngineConfig(kv_capacity=1000))
    assert (made.max_context, made.num_pages) == (1000, 16)
    assert reasons(made)["max_context"] == (1000, "kv_capacity holds no more")


def test_more_context_than_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_context 8193 is more than the 8192 tokens"):
        plan(EngineConfig(max_context=8193))


def test_a_file_with_wrong_facts_is_refused() -> None:
    with pytest.raises(ArtifactError, match="vocab_size"):
        plan(artifact=replace(ARTIFACT, config={**CONFIG, "vocab_size": 0}))
    with pytest.raises(UnsupportedError, match="abacus"):
        plan(artifact=replace(ARTIFACT, architecture="abacus"))


def total(context: int, pages: int, *, lanes: int = 1) -> int:
    """Bytes of a plan with chunk 512, from the definitions."""
    rows = min(512, context) + lanes - 1
    ours = lanes * 4 * (pages_for(context) + context) + 4 * (rows + lanes)
    return WEIGHTS + PAGE * pages + ROW * rows + LOGIT_ROW * lanes + ours + RUNTIME_ESTIMATE_BYTES


def test_an_automatic_capacity_takes_what_fits_and_leaves_the_margin() -> None:
    config = EngineConfig(max_context=4096, max_concurrency=4)
    enough = total(4096, 256, lanes=4) + MARGIN_BYTES
    assert plan(config, hardware=with_available(enough)).num_pages == 256
    made = plan(config, hardware=with_available(enough - 1))
    assert made.num_pages == 255
    assert reasons(made)["kv_capacity"][0] == 255 * 64
    made = plan(config, hardware=with_available(enough - 100 * PAGE))
    assert made.num_pages == 156


def test_one_context_may_use_the_margin() -> None:
    config = EngineConfig(max_context=4096, max_concurrency=4)
    least = total(4096, 64, lanes=4)
    assert plan(config, hardware=with_available(least)).num_pages == 64
    with pytest.raises(CapacityError):
        plan(config, hardware=with_available(least - 1))


def test_a_context_that_does_not_fit_names_the_largest_that_does() -> None:
    hardware = with_available(total(3000, pages_for(3000)))
    with pytest.raises(CapacityError, match="max_context 8192 needs") as caught:
        plan(EngineConfig(max_context=8192), hardware=hardware)
    error = caught.value
    assert error.field == "max_context"
    assert error.largest is not None
    assert str(error.largest) in str(error)
    assert plan(EngineConfig(max_context=error.largest), hardware=hardware).max_context == error.largest
    with pytest.raises(CapacityError):
        plan(EngineConfig(max_context=error.largest + 1), hardware=hardware)


def test_a_capacity_that_does_not_fit_names_the_largest_that_does() -> None:
    hardware = with_available(total(1024, 100))
    with pytest.raises(CapacityError) as caught:
        plan(EngineConfig(max_context=1024, kv_capacity=100 * 64 + 1), hardware=hardware)
    assert (caught.value.field, caught.value.largest) == ("kv_capacity", 6400)
    assert plan(EngineConfig(max_context=1024, kv_capacity=6400), hardware=hardware).kv_capacity == 6400


def test_a_capacity_for_a_context_that_does_not_fit_either_blames_the_context() -> None:
    hardware = with_available(total(640, 10))
    with pytest.raises(CapacityError) as caught:
        plan(EngineConfig(max_context=1024, kv_capacity=2048), hardware=hardware)
    assert (caught.value.field, caught.value.largest) == ("max_context", 640)


def test_a_model_that_does_not_fit_at_all_has_no_largest_value() -> None:
    with pytest.raises(CapacityError, match="no value fits") as caught:
        plan(hardware=with_available(WEIGHTS // 2))
    assert caught.value.largest is None
    assert "mapped" not in str(caught.value), "what is left would not even hold the rest"


def test_a_plan_is_json() -> None:
    made = plan()
    values = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert values["digest"] == made.digest
    assert values["total_bytes"] == made.total_bytes
    assert values["options"]["max_rows"] == 512
    assert {"name": "weights", "num_bytes": WEIGHTS, "estimate": False} in values["memory"]


def test_the_digest_is_of_what_runs_not_of_how_it_was_asked_for() -> None:
    automatic = plan()
    explicit = plan(EngineConfig(max_context=2048, kv_capacity=2048, threads=3, weights_memory="huge", isa="avx9"))
    assert automatic.config != explicit.config
    assert automatic.digest == explicit.digest
    assert plan(hardware=with_available(8 * GIB)).digest == automatic.digest


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(max_context=1024),
        EngineConfig(kv_capacity=4096),
        EngineConfig(threads=1),
        EngineConfig(isa="avx2"),
        EngineConfig(weights_memory="mapped"),
        EngineConfig(numerics="f32"),
        EngineConfig(kv_dtype="bf16"),
        EngineConfig(prefill_chunk=64),
        EngineConfig(max_concurrency=2),
    ],
)
def test_the_digest_sees_every_difference(config: EngineConfig) -> None:
    assert plan(config).digest != plan().digest
    assert plan(artifact=replace(ARTIFACT, digest="cd" * 32)).digest != plan().digest
