"""Stop strings: the same cut for every way the text is divided, nothing shown too early, nothing held too long."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import RequestError
from ninfer.text.stop import StopMatcher

ALPHABET = st.sampled_from("ab.")
TEXTS = st.text(ALPHABET, max_size=24)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4)


def first_cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The rule by brute force: the shortest beginning of the text that ends in a stop string, longest stop first."""
    for end in range(len(text) + 1):
        endings = [stop for stop in stops if text[:end].endswith(stop)]
        if endings:
            longest = max(endings, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = [matcher.push(piece)[0] for piece in pieces]
    return [*shown, matcher.flush()], matcher.matched


def divided(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(borders)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 99), max_size=8))
def test_any_division_gives_the_cut_of_the_rule(text: str, stops: list[str], cuts: list[int]) -> None:
    shown, matched = run(divided(text, cuts), stops)
    assert ("".join(shown), matched) == first_cut(text, stops)


@given(TEXTS, STOPS)
def test_only_a_real_beginning_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end, char in enumerate(text, start=1):
        shown += matcher.push(char)[0]
        if matcher.matched:
            return
        waiting = text[len(shown) : end]
        assert shown + waiting == text[:end]
        longest = max((n for stop in stops for n in range(len(stop)) if text[:end].endswith(stop[:n])), default=0)
        assert len(waiting) == longest


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (["orange yellow"], "red "),
        (["ge ye"], "red oran"),
        (["r"], ""),
        (["red orange yellow green blue"], "red orange yellow green"),
        (["green", "yellow"], "red orange "),
    ],
)
def test_several_tokens(stops: list[str], expected: str) -> None:
    shown, matched = run(["red", " or", "ange", " yel", "low", " green"], stops)
    assert "".join(shown) == expected
    assert (matched is None) == (expected == "red orange yellow green")


def test_rest_of_the_token_is_dropped() -> None:
    matcher = StopMatcher([".."])
    assert [matcher.push(piece) for piece in ["wait", "...", " done"]] == [("wait", None), ("", ".."), ("", "..")]
    assert matcher.flush() == ""


def test_never_matching_stop_delays_nothing() -> None:
    pieces = ["Zebra", " and", " Zoo", "ZZ", "top"]
    matcher = StopMatcher(["ZZZZZZZZZZ"])
    assert [matcher.push(piece)[0] for piece in pieces] == ["Zebra", " and", " Zoo", "", "ZZtop"]
    assert [piece for piece in run(pieces, [])[0] if piece] == pieces


def test_work_is_linear_for_a_stop_that_almost_matches_everywhere() -> None:
    class Counting(dict[str, object]):
        looked_up = 0

        def __contains__(self, key: object) -> bool:
            Counting.looked_up += 1
            return super().__contains__(key)

    def count(length: int) -> int:
        matcher = StopMatcher(["a" * 200 + "b"])
        nodes, waiting = [], [matcher._root]
        while waiting:
            nodes.append(node := waiting.pop())
            waiting += node.following.values()
        for node in nodes:
            node.following = Counting(node.following)  # type: ignore[assignment]  # a dict that counts
        Counting.looked_up = 0
        for _ in range(length):
            matcher.push("a")
        return Counting.looked_up

    assert count(4000) <= 2 * 4000
    assert count(8000) <= 2 * 8000


@pytest.mark.parametrize("stop", ["", 3, None, "a\ud800"])
def test_unusable_stop_string_is_a_request_error(stop: object) -> None:
    with pytest.raises(RequestError) as caught:
        StopMatcher(["ok", stop])  # type: ignore[list-item]  # the wrong type is the point
    assert caught.value.param == "stop"
