"""Answers that are right and answers that are not, code in a locked room, and scores from records."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from make.run_records import make_run
from ninfer.bench.load.suite import load_suite, make_prompts
from ninfer.bench.records.reader import read_run
from ninfer.bench.records.schema import RequestRow, Response
from ninfer.bench.records.writer import RunWriter
from ninfer.bench.tasks.checks import check_answer
from ninfer.bench.tasks.sandbox import run_python
from ninfer.bench.tasks.score import score_run, wilson
from ninfer.errors import ConfigError

TASKS = make_prompts(load_suite("tasks"), context=None, count_tokens=lambda messages: 0)
CHECKS = {task.id: task.options["check"] for task in TASKS}

ROMAN = """Here it is:
```python
def roman(n):
    out = ""
    for value, sign in zip((1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
                           "M CM D CD C XC L XL X IX V IV I".split()):
        while n >= value:
            out, n = out + sign, n - value
    return out
```
"""


@pytest.mark.parametrize(
    ("task", "text", "judgement", "reason"),
    [
        ("arithmetic.1", "17 + 26 = 43.", "right", ""),
        ("arithmetic.1", "17 + 26 is 43, as 17 + 20 = 37", "wrong", "the last number is 37, not 43"),
        ("arithmetic.1", "forty-three", "wrong", "there is no number in it"),
        ("arithmetic.7", "15 % of 240 is **36.0**", "right", ""),
        ("json_schema.1", '{"name": "A", "age": 3, "member": true}', "right", ""),
        ("json_schema.1", 'Sure:\n```json\n{"name": "A", "age": 3, "member": true}\n```', "right", ""),
        (
            "json_schema.1",
            '{"name": "A", "age": "3", "member": true}',
            "wrong",
            r"\$.age: '3' is not of type 'integer'",
        ),
        ("json_schema.1", "name: A", "wrong", "no JSON"),
        ("json_schema.5", "[2, 4, 6, 8, 10, 12, 14, 16]", "right", ""),
        ("format.2", " p-l-a-n-e-t\n", "right", ""),
        ("format.2", "p-l-a-n-e-t!", "wrong", "does not match"),
        ("format.6", "蓝色", "right", ""),
        ("python.5", ROMAN, "right", ""),
        ("python.5", ROMAN.replace("900", "800"), "wrong", "AssertionError"),
        ("python.5", "def roman(n: return", "wrong", "SyntaxError"),
    ],
)
def test_answers_are_judged(task: str, text: str, judgement: str, reason: str) -> None:
    verdict = check_answer(CHECKS[task], text)
    assert verdict.judgement == judgement
    assert (verdict.reason == "") == (judgement == "right")
    assert re.search(reason, verdict.reason), verdict.reason


def test_every_bundled_task_has_a_check_that_an_empty_answer_fails() -> None:
    assert {check["kind"] for check in CHECKS.values()} == {"number", "json", "matches", "python"}
    assert {check_answer(check, "").judgement for check in CHECKS.values()} == {"wrong"}


def test_a_check_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="no known kind"):
        check_answer({"kind": "vibes"}, "")


NETWORK = "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("x = 1", None),
        ("raise SystemExit(3)", "failed"),
        ("raise ValueError('no')", "ValueError: no"),
        (NETWORK, "Network is unreachable"),
        ("bytearray(10**10)", "MemoryError"),
        ("open('big', 'wb').write(bytes(2**22))", "File too large"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\nimport ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; assert set(os.environ) <= {'LC_CTYPE'}, os.environ", None),
        ("import os; assert os.listdir() == []", None),
    ],
)
def test_code_has_a_room_without_network_and_with_little_in_it(code: str, problem: str | None) -> None:
    result = run_python(code)
    assert result.has_run, result.problem
    assert (result.problem is None) == (problem is None), result.problem
    assert problem is None or problem in (result.problem or "")


def test_time_ends_and_so_does_everything_that_was_started(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    os.chmod(tmp_path, 0o777)
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        open({str(mark)!r}, 'a').write('x')
        time.sleep(0.02)
time.sleep(60)
"""
    assert run_python(code, wall_s=1.0).problem == "did not end within 1 s"
    before = mark.stat().st_size if mark.exists() else 0
    time.sleep(0.3)
    assert (mark.stat().st_size if mark.exists() else 0) == before


def test_scores_come_from_the_record_alone(tmp_path: Path) -> None:
    prompts = [task for task in TASKS if task.id in ("arithmetic.1", "arithmetic.2", "format.2")]
    rows: list[tuple[str, dict[str, Any], str | None]] = [
        ("arithmetic.1", {"finish": "stop_token"}, "43"),
        ("arithmetic.2", {"finish": "output_limit"}, "let me think"),
        ("format.2", {"error": {"kind": "cut", "message": ""}}, None),
    ]
    with RunWriter(tmp_path / "run", make_run("a", prompts), prompts) as writer:
        writer.append(RequestRow(prompt="format.2", repeat=0, is_warmup=True, finish="stop_token"), Response(text="no"))
        for prompt, members, text in rows:
            row = RequestRow(prompt=prompt, repeat=0, **members)
            writer.append(row, None if text is None else Response(text=text))
    score = score_run(read_run(tmp_path / "run"))
    whole, arithmetic = score.tally(), score.tally("arithmetic")
    assert (whole.right, whole.wrong, whole.failed, whole.cut, whole.judged) == (1, 1, 1, 1, 3)
    assert arithmetic.share == 0.5
    assert arithmetic.interval == pytest.approx((0.0945, 0.9055), abs=1e-4)


def test_a_run_without_checks_has_no_score(tmp_path: Path) -> None:
    prompts = make_prompts(load_suite("workloads"), context=None, count_tokens=lambda messages: 0)
    with RunWriter(tmp_path / "run", make_run("a", prompts), prompts):
        pass
    with pytest.raises(ConfigError, match="no prompt whose answers can be checked"):
        score_run(read_run(tmp_path / "run"))


def test_intervals_of_shares_stay_within_nothing_and_all() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(10, 10)[0] < 1.0
    assert wilson(10, 10)[1] == pytest.approx(1.0)
