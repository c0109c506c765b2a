"""Which runs may be compared: typed differences, what follows from them, what was not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from make.run_records import UNSTATED, declaration, make_prompts, make_run
from ninfer.bench.compare.differences import UNRECORDED, Difference, are_equal, find_differences
from ninfer.bench.records.facts import FACTS, Fact

PROMPTS = make_prompts("a")


def between(left: dict[str, Any], right: dict[str, Any], **members: Any):  # type: ignore[no-untyped-def]
    return find_differences(make_run("l", PROMPTS, left, **members), make_run("r", PROMPTS, right, **members))


def test_no_difference_is_repeatability() -> None:
    found = between({}, {})
    assert found.kind == "repeatability"
    assert (found.own, found.consequences, found.unrecorded, found.vouched) == ((), (), (), ())


def test_one_difference_is_a_controlled_comparison() -> None:
    found = between({}, {"settings.kv_dtype": "bf16"})
    assert found.kind == "controlled"
    assert found.own == (Difference("settings.kv_dtype", "int8", "bf16"),)


def test_two_differences_are_not_comparable() -> None:
    found = between({}, {"settings.kv_dtype": "bf16", "settings.prefill_chunk": 256})
    assert found.kind == "not comparable"
    assert [difference.fact for difference in found.own] == ["settings.kv_dtype", "settings.prefill_chunk"]


def test_another_draft_method_brings_its_window_and_file_along() -> None:
    left = {"draft.backend": "mtp", "draft.tokens": 3}
    found = between(left, {"draft.backend": "dflash2", "draft.tokens": 7, "draft.digest": "d1"})
    assert found.kind == "controlled"
    assert [difference.fact for difference in found.own] == ["draft.backend"]
    assert [difference.fact for difference in found.consequences] == ["draft.tokens", "draft.digest"]
    assert between(left, {**left, "draft.tokens": 5}).own == (Difference("draft.tokens", 3, 5),)
    heads = [{"draft.backend": backend, "draft.head": head} for backend, head in (("mtp", "full"), ("x", "optimized"))]
    assert between(*heads).kind == "not comparable"


def test_what_does_not_apply_without_drafts_is_no_difference_of_its_own() -> None:
    drafted = {"draft.backend": "mtp", "draft.tokens": 3, "draft.head": "full"}
    found = between({}, drafted)
    assert found.kind == "controlled"
    assert [difference.fact for difference in found.consequences] == ["draft.tokens", "draft.head"]
    assert between(drafted, {**drafted, "draft.head": None}).own == (Difference("draft.head", "full", None),)


def test_a_file_that_differs_in_weights_differs_in_its_digest_too() -> None:
    found = between({}, {"artifact.weights": "q8g32", "artifact.digest": "a2", "artifact.name": "other"})
    assert [difference.fact for difference in found.own] == ["artifact.weights"]
    alone = between({}, {"artifact.digest": "a2"})
    assert [difference.fact for difference in alone.own] == ["artifact.digest"]


def planned(value: Any) -> Fact:
    return Fact(value, "auto", "because")


def test_what_planners_decide_follows_from_what_was_asked() -> None:
    left = {"settings.max_context": 2048, "settings.kv_capacity": planned(2048)}
    found = between(left, {"settings.max_context": 4096, "settings.kv_capacity": planned(4096)})
    assert found.kind == "controlled"
    assert [difference.fact for difference in found.consequences] == ["settings.kv_capacity"]


def test_what_planners_decide_by_themselves_is_a_difference() -> None:
    found = between({"settings.kv_capacity": planned(2048)}, {"settings.kv_capacity": planned(4096)})
    assert [difference.fact for difference in found.own] == ["settings.kv_capacity"]
    chosen = between({"settings.kv_capacity": planned(2048)}, {"settings.kv_capacity": 4096})
    assert [difference.fact for difference in chosen.own] == ["settings.kv_capacity"]
    two = {"settings.kv_capacity": 4096, "settings.kv_dtype": "bf16"}
    assert between({"settings.kv_capacity": planned(2048)}, two).kind == "not comparable"


PLAN = {"num_pages": 32, "options": {"threads": 2, "ids": (1, 2)}, "digest": "x", "memory": [{"name": "kv"}]}


def test_every_value_of_the_plans_counts() -> None:
    changed = {**PLAN, "options": {"threads": 2, "ids": (1, 3)}, "digest": "y", "memory": []}
    left, right = make_run("l", PROMPTS, plan=PLAN), make_run("r", PROMPTS, plan=changed)
    found = find_differences(left, right)
    assert found.own == (Difference("plan.options.ids", [1, 2], [1, 3]),)
    other = make_run("r", PROMPTS, {"settings.kv_dtype": "bf16"}, plan=changed)
    found = find_differences(left, other)
    assert [d.fact for d in found.own] == ["settings.kv_dtype"]
    assert [d.fact for d in found.consequences] == ["plan.options.ids"]
    assert find_differences(left, make_run("r", PROMPTS)).kind == "repeatability"


def test_members_of_what_a_plan_does_not_have_do_not_apply_there() -> None:
    left = make_run("l", PROMPTS, plan={"speculation": None, "old": 1})
    right = make_run("r", PROMPTS, {"draft.backend": "mtp"}, plan={"speculation": {"window": 4, "deep": {"x": 1}}})
    assert find_differences(left, right).consequences == (
        Difference("plan.old", 1, UNRECORDED),
        Difference("plan.speculation.window", None, 4),
        Difference("plan.speculation.deep.x", None, 1),
    )


@pytest.mark.parametrize("name", [name for name, meaning in FACTS.items() if meaning.is_required])
def test_a_required_fact_that_nobody_recorded_forbids_comparing(name: str) -> None:
    found = between({name: UNSTATED}, {name: UNSTATED})
    assert found.kind == "not comparable"
    assert found.unrecorded == (Difference(name, UNRECORDED, UNRECORDED),)


def test_a_fact_that_one_run_states_has_to_be_stated_by_the_other() -> None:
    found = between({"settings.tp": 2}, {})
    assert found.kind == "not comparable"
    assert found.unrecorded == (Difference("settings.tp", 2, UNRECORDED),)
    assert between({"settings.tp": None}, {}).kind == "not comparable"
    assert between({"artifact.name": UNSTATED}, {"artifact.name": UNSTATED}).kind == "repeatability"


def test_what_one_person_declared_equal_is_taken_as_equal_and_named() -> None:
    gone = {"machine.processor": UNSTATED, "artifact.digest": UNSTATED}
    found = between(gone, gone, declarations=[declaration("Y")])
    assert found.kind == "repeatability"
    assert [(v.fact, v.label, v.by) for v in found.vouched] == [
        ("artifact.digest", "Y", "the tester"), ("machine.processor", "Y", "the tester")
    ]  # fmt: skip
    partly = between(gone, gone, declarations=[declaration("Y", "machine.")])
    assert [d.fact for d in partly.unrecorded] == ["artifact.digest"]


def test_different_declarations_say_that_something_differs_but_not_what() -> None:
    gone = {"machine.processor": UNSTATED}
    left = make_run("l", PROMPTS, gone, declarations=[declaration("X")])
    right = make_run("r", PROMPTS, gone, declarations=[declaration("Y")])
    found = find_differences(left, right)
    assert (found.kind, found.labels) == ("not comparable", ("X", "Y"))
    assert [d.fact for d in found.unrecorded] == ["machine.processor"]


def test_a_declaration_does_not_hide_what_was_recorded() -> None:
    found = between({}, {"settings.kv_dtype": "bf16"}, declarations=[declaration("Y")])
    assert found.own == (Difference("settings.kv_dtype", "int8", "bf16"),)


def test_values_are_equal_in_type_too() -> None:
    assert are_equal(1, 1.0)
    assert are_equal(["a", 1], ["a", 1])
    assert not are_equal(True, 1)
    assert not are_equal([True], [1])
    assert not are_equal("1", 1)
    assert not are_equal(None, 0)
    assert not are_equal([1], [1, 2])


def test_other_inputs_are_a_difference() -> None:
    found = find_differences(make_run("l", PROMPTS), make_run("r", make_prompts("a", "b")))
    assert [d.fact for d in found.own] == ["inputs.digest"]
