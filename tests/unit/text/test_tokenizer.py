"""The tokenizer's contract on a tiny vocabulary: exact bytes, text never control, errors that name what was seen."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from make.tiny_tokenizer import CONTROL, MERGES, tiny_metadata
from ninfer.errors import ArtifactError, RequestError, UnsupportedError
from ninfer.text.byte_alphabet import BYTE_TO_CHAR, CHAR_TO_BYTE, spelled_bytes
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf
from ninfer.text.tokenizer import Tokenizer


def edited(**changes: object) -> bytes:
    """The tiny tokenizer.json with some of its top-level members replaced."""
    return json.dumps(json.loads(tokenizer_json_from_gguf(tiny_metadata())) | changes).encode()


class TestAlphabet:
    def test_spells_all_bytes_with_the_published_examples(self) -> None:
        assert sorted(BYTE_TO_CHAR) == list(range(256))
        assert len(CHAR_TO_BYTE) == 256
        assert (BYTE_TO_CHAR[0], BYTE_TO_CHAR[10], BYTE_TO_CHAR[32]) == ("\u0100", "\u010a", "\u0120")
        assert (BYTE_TO_CHAR[33], BYTE_TO_CHAR[0x7F], BYTE_TO_CHAR[0xAD]) == ("!", "\u0121", "\u0143")

    def test_character_outside_is_not_spelled(self) -> None:
        assert spelled_bytes("\u0120a\u00ff") == b" a\xff"
        assert spelled_bytes("a b") is None


class TestEncode:
    @given(st.text())
    def test_round_trip_of_any_text(self, tiny: Tokenizer, text: str) -> None:
        assert tiny.decode(tiny.encode(text)) == text

    @given(st.lists(st.sampled_from([*CONTROL, "<|im_", "end|>", "<", "s>", "[", "EOS]", " ", "\n", "hello"])))
    def test_text_is_never_control(self, tiny: Tokenizer, parts: list[str]) -> None:
        ids = tiny.encode("".join(parts))
        assert tiny.control_ids.isdisjoint(ids)
        assert tiny.decode(ids) == "".join(parts)

    def test_control_on_request_longest_first(self, tiny: Tokenizer) -> None:
        s_tag, s_open = tiny.control_tokens["<s>"], tiny.control_tokens["<s"]
        assert tiny.encode("<s><s", allow_control=True) == [s_tag, s_open]
        assert tiny.split_control("a<s>b<|im_end|>") == ["a", s_tag, "b", tiny.control_tokens["<|im_end|>"]]
        assert tiny.split_control("") == []

    def test_added_word_is_one_token_in_any_text(self, tiny: Tokenizer) -> None:
        (word,) = tiny.encode("<think>")
        assert word not in tiny.control_ids
        assert tiny.token_bytes(word) == b"<think>"

    @pytest.mark.parametrize(("text", "position"), [("\ud800", 0), ("ab\udfffc", 2)])
    def test_lone_surrogate_is_a_request_error(self, tiny: Tokenizer, text: str, position: int) -> None:
        with pytest.raises(RequestError, match=f"character {position} is the lone surrogate U\\+D") as caught:
            tiny.encode(text)
        assert caught.value.kind == "invalid_text"

    @pytest.mark.parametrize("pre", ["gpt-2", "qwen2"])
    def test_text_that_the_vocabulary_cannot_express_is_refused_and_not_shortened(self, pre: str) -> None:
        metadata = tiny_metadata(pre=pre)
        tokens = metadata["tokenizer.ggml.tokens"]
        tokens[tokens.index(BYTE_TO_CHAR[0xF1])] = "unspelled"
        tokenizer = Tokenizer.from_json(tokenizer_json_from_gguf(metadata))
        assert tokenizer.decode(tokenizer.encode("caf\u00e9 \U0003ffff")) == "caf\u00e9 \U0003ffff"
        with pytest.raises(RequestError, match=r"character 1 is U\+40000"):
            tokenizer.encode("\u00e9\U00040000")

    def test_it_is_the_normalised_text_that_must_be_expressible(self) -> None:
        metadata = tiny_metadata(pre="qwen2")
        tokens = metadata["tokenizer.ggml.tokens"]
        tokens[tokens.index(BYTE_TO_CHAR[0xA9])] = "unspelled"  # the second byte of the composed letter only
        tokenizer = Tokenizer.from_json(tokenizer_json_from_gguf(metadata))
        with pytest.raises(RequestError, match=r"character 1 is U\+00E9"):
            tokenizer.encode("he\u0301")

    def test_many_threads_agree(self, tiny: Tokenizer) -> None:
        texts = [f"hello {i} <|im_end|> \u00e9" * 20 for i in range(40)]
        expected = [tiny.encode(text) for text in texts]
        results: list[list[list[int]]] = []

        def work() -> None:
            results.append([tiny.encode(text) for text in texts])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [expected] * 4


class TestBegin:
    def test_follows_the_file(self) -> None:
        assert Tokenizer.from_json(tokenizer_json_from_gguf(tiny_metadata())).bos_ids == ()
        data = tokenizer_json_from_gguf(tiny_metadata(add_bos_token=True, add_eos_token=True))
        assert Tokenizer.from_json(data).bos_ids == (1,)
        assert Tokenizer.from_json(data).beginning_with().bos_ids == ()
        assert Tokenizer.from_json(data).beginning_with(3).encode_prompt("") == [3]
        with pytest.raises(RequestError, match="9999"):
            Tokenizer.from_json(data).beginning_with(9999)

    def test_raw_prompt_begins_with_exactly_one(self) -> None:
        tokenizer = Tokenizer.from_json(tokenizer_json_from_gguf(tiny_metadata(add_bos_token=True)))
        plain = tokenizer.encode("hello")
        assert tokenizer.encode_prompt("hello") == [1, *plain]
        assert tokenizer.encode_prompt("<|im_start|>hello", allow_control=True) == [1, *plain]
        forged = tokenizer.encode_prompt("<|im_start|>hello")
        assert forged[0] == 1
        assert forged.count(1) == 1
        assert tokenizer.decode(forged) == "<|im_start|>hello"

    def test_processor_inside_a_sequence_is_read_and_unknown_ones_are_refused(self) -> None:
        template = json.loads(tokenizer_json_from_gguf(tiny_metadata(add_bos_token=True)))["post_processor"]
        offsets = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
        both = {"type": "Sequence", "processors": [offsets, template]}
        assert Tokenizer.from_json(edited(post_processor=both)).bos_ids == (1,)
        bert = {"type": "BertProcessing", "sep": ["<s>", 3], "cls": ["<s>", 3]}
        with pytest.raises(UnsupportedError, match="BertProcessing"):
            Tokenizer.from_json(edited(post_processor=bert))


class TestDecode:
    def test_token_bytes_are_exact(self, tiny: Tokenizer) -> None:
        first = len(CONTROL)
        assert [tiny.token_bytes(first + i) for i in range(256)] == [bytes([b]) for b in BYTE_TO_CHAR]
        merged = [tiny.token_bytes(first + 256 + i) for i in range(len(MERGES))]
        assert merged[:5] == [b"he", b"ll", b"hell", b"hello", b"  "]
        assert merged[7] == b"\xe9\xbb\x93"

    def test_control_is_silent_unless_asked_for(self, tiny: Tokenizer) -> None:
        ids = [1, *tiny.encode("hello"), 2]
        assert tiny.decode(ids) == "hello"
        assert tiny.decode(ids, skip_control=False) == "<|im_start|>hello<|im_end|>"

    def test_replacement_only_for_bytes_that_are_not_text(self, tiny: Tokenizer) -> None:
        byte = {b: len(CONTROL) + i for i, b in enumerate(BYTE_TO_CHAR)}
        assert tiny.decode([byte[0xFF], byte[0x41]]) == "\ufffdA"
        assert tiny.decode([byte[b] for b in b"\xe6\xad\x41"]) == "\ufffdA"
        assert tiny.decode([byte[b] for b in "\u6b4c".encode()]) == "\u6b4c"

    @pytest.mark.parametrize("bad", [-1, 10**6, 2**40, "1", None, 1.5])
    def test_id_outside_the_vocabulary_names_itself(self, tiny: Tokenizer, bad: object) -> None:
        with pytest.raises(RequestError, match=f"token id {bad!r}") as caught:
            tiny.decode([bad])  # type: ignore[list-item]  # the wrong type is the point
        assert caught.value.kind == "bad_token_id"

    def test_unused_token_is_no_token(self, tiny: Tokenizer) -> None:
        last = len(tiny_metadata()["tokenizer.ggml.tokens"]) - 1
        assert tiny.vocab_size == last
        with pytest.raises(RequestError, match=str(last)):
            tiny.token_bytes(last)


class TestFile:
    @pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff\xfe", b"null", edited(model={"type": "BPE"})])
    def test_broken_file_is_an_artifact_error(self, data: bytes) -> None:
        with pytest.raises(ArtifactError, match=r"m\.ninfer: tokenizer\.json: not a usable tokenizer"):
            Tokenizer.from_json(data, file="m.ninfer")

    def test_panic_of_the_library_is_an_artifact_error(self) -> None:
        model = json.loads(edited())["model"] | {"continuing_subword_prefix": "longer than any merge"}
        with pytest.raises(ArtifactError, match="not a usable tokenizer"):
            Tokenizer.from_json(edited(model=model))

    def test_begin_token_without_ids_is_an_artifact_error(self) -> None:
        template = json.loads(tokenizer_json_from_gguf(tiny_metadata(add_bos_token=True)))["post_processor"]
        template["special_tokens"] = {}
        with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
            Tokenizer.from_json(edited(post_processor=template))

    def test_every_truncation_is_an_artifact_error(self) -> None:
        data = tokenizer_json_from_gguf(tiny_metadata())
        for end in range(0, len(data) - 1, 97):
            with pytest.raises(ArtifactError):
                Tokenizer.from_json(data[:end])

    def test_kinds_that_are_not_exact_are_refused_by_name(self) -> None:
        added = json.loads(edited())["added_tokens"]
        model = json.loads(edited())["model"]
        space = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        cases = {
            "its decoder is 'Fuse'": edited(decoder={"type": "Fuse"}),
            "its decoder is None": edited(decoder=None),
            "its model is WordLevel": edited(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
            "puts a space in front": edited(pre_tokenizer={"type": "Sequence", "pretokenizers": [space]}),
            "marks the parts of words": edited(model=model | {"end_of_word_suffix": "</w>", "merges": []}),
            "drops merges at random": edited(model=model | {"dropout": 0.5}),
            "'<s>' has the matching rule lstrip": edited(
                added_tokens=[token | {"lstrip": token["content"] == "<s>"} for token in added]
            ),
        }
        for message, data in cases.items():
            with pytest.raises(UnsupportedError, match=message):
                Tokenizer.from_json(data)

    def test_truncation_and_padding_of_the_file_are_not_applied(self) -> None:
        truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
        padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
        padding |= {"pad_type_id": 0, "pad_token": "<s>"}
        tokenizer = Tokenizer.from_json(edited(truncation=truncation, padding=padding))
        assert tokenizer.decode(tokenizer.encode("abcdef")) == "abcdef"
        assert len(tokenizer.encode("a")) == 1
