"""Varied strings on which tokenizers differ: scripts, digits, emoji, spaces, line ends, look-alikes, NFC and NFD."""

from __future__ import annotations

import random
import unicodedata
from functools import cache

WORDS = (
    "Hello", "world", "don't", "WE'LL", "it's", "I'd've", "x_1", "foo.bar(baz)", "C++", "e=mc^2", "3.14159",
    "v1.2.3", "naive", "na\xefve", "Caf\xe9", "d\xe9j\xe0", "\u0151\u0171", "Stra\xdfe", "\u0130stanbul",
    "\u03b1\u03b2\u03b3", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u0645\u0631\u062d\u0628\u0627",
    "\u05e9\u05dc\u05d5\u05dd", "\u4f60\u597d\u4e16\u754c",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8", "\ud55c\uad6d\uc5b4",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0ba8\u0ba9\u0bcd\u0bb1\u0bbf", "\u10d2\u10d0\u10db", "\u12a0\u121b\u122d\u129b", "\u9c57",
    "\U0001d6d1", "\U00020bb7", "1234567", "12", "1,000,000.50", "\u0661\u0662\u0663", "\u0967\u0968", "\xbd",
    "\u2167", "\u2460\u2461", "x\xb2", "\uff11\uff12", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f33e",
    "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u200d", "\u200b",
    "\ufeff", "\xad", "\u2028", "\u2029", "\u0301", "\u20dd", "\ufffd", "\x00", "\x1b[0m", "\x7f", "\x85",
    "<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<|endoftext|>", "<s>", "</s>", "<think>", "[INST]", "<|",
    "|>", "<file_sep>", "'s", "'S", "'re", "''", "\u2019s", "--", "...", "!?", "\u3002", "\xbf", "\u2014",
    "$", "\u20ac5", "#!", "/*", "*/", "\\n", "{}",
)  # fmt: skip
SPACES = (
    " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\r", "\t\t", "\xa0", "\u3000", "\u2003",
    "\x0b", "\x0c", "", "", "", " ", " ", "        ", "\n\n\n", "\r\n\r\n", " \t \n",
)  # fmt: skip
# Characters without a token in SmolLM2's vocabulary, besides planes 4 and up.
SMOLLM_LACKS = frozenset("\x04\x06\x13\x14\x16\x1d")


@cache
def _assigned() -> str:
    """Characters of planes 0..2 that Python's Unicode knows: later tables agree about the class of these."""
    skipped = {"Cn", "Cs", "Co"}
    return "".join(chr(code) for code in range(0x30000) if unicodedata.category(chr(code)) not in skipped)


def varied_strings(count: int, *, seed: int = 1) -> list[str]:
    """`count` different strings, always the same for a seed; none has a character of `SMOLLM_LACKS`."""
    rng = random.Random(seed)
    assigned = _assigned()
    found: dict[str, None] = dict.fromkeys((*WORDS, *SPACES))
    while len(found) < count:
        kind = rng.randrange(5)
        if kind == 0:  # words between spaces
            words = (rng.choice(SPACES) + rng.choice(WORDS) for _ in range(rng.randint(1, 9)))
            text = "".join(words) + rng.choice(SPACES)
        elif kind == 1:  # any characters
            text = "".join(rng.choices(assigned, k=rng.randint(1, 24)))
        elif kind == 2:  # one stretch of the table, so neighbours share a script
            start = rng.randrange(len(assigned) - 40)
            text = "".join(rng.choice(assigned[start : start + 40]) for _ in range(rng.randint(1, 30)))
        elif kind == 3:  # ASCII soup: digits, punctuation and spaces side by side
            text = "".join(
                chr(rng.choice((rng.randrange(9, 14), rng.randrange(32, 127)))) for _ in range(rng.randint(1, 40))
            )
        else:  # a run
            text = rng.choice(assigned + " \n\t") * rng.randint(2, 80) + rng.choice(WORDS)
        if rng.randrange(3) == 0:
            text = unicodedata.normalize(rng.choice(("NFC", "NFD")), text)
        if SMOLLM_LACKS.isdisjoint(text):
            found[text] = None
    return list(found)[:count]
