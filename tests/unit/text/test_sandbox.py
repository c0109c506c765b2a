"""The template language: what templates expect works, what would run away stops early, Python stays out of reach."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from jinja2 import TemplateError

from ninfer.errors import RequestError
from ninfer.text import sandbox
from ninfer.text.sandbox import TemplateSandbox, render

NOW = datetime(2025, 2, 3, 4, 5)


def rendered(source: str, **variables: Any) -> str:
    template = TemplateSandbox().load(source).template
    return render(template, variables, NOW)


# Template and what it writes; `messages` is one message with content "hi".
CONSTRUCTS = {
    "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}": "02345678",
    "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}": "012",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc": "a\n  b\nc",
    "{% generation %}\n{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}": "2",
    "{{ strftime_now('%d %b %Y') }}": "03 Feb 2025",
    "{{ {'a': '<&>', 'b': [1, none, true, 0.5]} | tojson }}": '{"a": "<&>", "b": [1, null, true, 0.5]}',
    "{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}": '{\n "a": 2,\n "b": 1\n}',
    "{{ [1, 2] | tojson(separators=(',', ':')) }}": "[1,2]",
    "{{ '\u00e9\U0001f600\u007f' | tojson }}": '"\u00e9\U0001f600\u007f"',
    "{{ '\u00e9\U0001f600\u007f' | tojson(ensure_ascii=true) }}": '"\\u00e9\\ud83d\\ude00\\u007f"',
    "{{ 'a' ~ 1 ~ none ~ missing }}": "a1None",
    "{{ 'a' 'b' + 'c' }}{{ 'ab' * 2 }}{{ 7 % 3 }}{{ 2 ** 10 }}{{ [1] + [2] }}": "abcabab11024[1, 2]",
    "{{ '%s is %05.1f%%' % ('a', 2.5) }}|{{ '%d' | format(3) }}": "a is 002.5%|3",
    "{{ '{}-{x:,}'.format('a', x=1234567) }}": "a-1,234,567",
    "{{ ','.join(['a', 'b'] | map('upper')) }}{{ ['a', 'b'] | join('-') }}{{ '-'.join('ab') }}": "A,Ba-ba-b",
    "{{ 'a\nb' | indent(2) }}|{{ 'a' | center(5) }}": "a\n  b|  a  ",
    "{{ 'aXa' | replace('X', 'yy') }}|{{ 'aXa'.replace('X', '') }}": "ayya|aa",
    "{% macro m(x) %}[{{ x }}{{ caller() }}]{% endmacro %}{% call m('a') %}b{% endcall %}": "[ab]",
    "{% set ns = namespace(n=0) %}{% for x in 'abc' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}": "3",
    "{% for k, v in {'p': {'q': {}}} | items recursive %}{{ k }}{{ loop(v | items) }}{% endfor %}": "pq",
    "{{ 1700000000 | string }}|{{ 3000000 | default(9999999) }}": "1700000000|3000000",
    "{{ namespace(n=5000000).n }}": "5000000",
    "{{ messages[0].content }}{{ messages[::-1] | length }}{{ missing.x if missing else 'no' }}": "hi1no",
    "{{ 'text' if messages[0].content is string and messages is iterable and messages[0] is mapping }}": "text",
}


class TestOffered:
    @pytest.mark.parametrize(("source", "expected"), CONSTRUCTS.items())
    def test_constructs_of_real_templates(self, source: str, expected: str) -> None:
        assert rendered(source, messages=[{"content": "hi"}]) == expected

    def test_constants_are_those_of_the_code_and_not_of_the_text(self) -> None:
        loaded = TemplateSandbox().load("text {{ 'a' ~ m.b['c'] }}{% if x == 'd' %}e{% endif %}")
        assert loaded.constants == {"a", "b", "c", "d"}


DOUBLED_LIST = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"


class TestLimits:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ 'a' * 10 ** 9 }}",
            "{{ 10 ** 9 * 'a' }}",
            "{{ ['a' * 1000000] * 100000 }}",
            "{% set x = 'a' * 1000000 %}{{ x.replace('a', x) }}",
            "{% set x = 'a' * 1000000 %}{{ x | replace('a', x) }}",
            "{% set x = 'a' * 1000000 %}{{ ([x] * 100) | join }}",
            "{% set x = 'a' * 1000000 %}{{ x.join('abcdefghijklmnopqrst') }}",
            "{{ 'a'.ljust(1000000000) }}",
            "{{ 'a' | center(1000000000) }}",
            "{{ ('a\n' * 10000) | indent(100000) }}",
            "{{ [1] | batch(1000000000, 'x') | list | length }}",
            "{{ '%1000000000d' % 1 }}",
            "{{ '%*d' % (1000000000, 1) }}",
            "{{ '%1000000000d' | format(1) }}",
            "{{ '{:>1000000000}'.format(1) }}",
            "{{ '{:>{}}'.format(1, 1000000000) }}",
            "{{ '{:>{w}}'.format_map({'w': 1000000000}) }}",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            DOUBLED_LIST + "{{ ns.x }}",
            DOUBLED_LIST + "{{ ns.x | tojson }}",
            DOUBLED_LIST + "{{ ns.x ~ '' }}",
            "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
            "{{ 9 ** (9 ** 9) }}",
            "{% for i in range(10000) %}{{ 'a' * 100000 }}{% endfor %}",
            "{{ [1] | tojson(indent=1000000000) }}",
            "{{ range(1000000000) | list }}",
        ],
    )
    def test_too_large_is_refused_before_it_is_built(self, source: str) -> None:
        with pytest.raises(RequestError, match="cannot render these messages") as caught:
            rendered(source)
        assert caught.value.kind == "template_error"

    @pytest.mark.parametrize(
        "source",
        [
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
            "{% for i in range(99999) %}{% set x = 'a' * 100000 %}{% endfor %}",
        ],
    )
    def test_work_is_counted(self, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sandbox, "MAX_WORK", 5000)
        with pytest.raises(RequestError, match="more than 5000 units of work"):
            rendered(source)

    def test_every_rendering_has_its_own_budget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sandbox, "MAX_WORK", 110)
        template = TemplateSandbox().load("{% for i in range(100) %}{{ i }}{% endfor %}").template
        first = render(template, {}, NOW)
        assert [render(template, {}, NOW) for _ in range(5)] == [first] * 5

    def test_endless_recursion_ends(self) -> None:
        with pytest.raises(RequestError, match="recursion"):
            rendered("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")


class TestClosed:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__ }}",
            "{{ ''['__class__'] }}",
            "{{ (''|attr('__class__')).mro() }}",
            "{{ messages.__init__.__globals__ }}",
            "{{ '{0.__class__}'.format(1) }}",
            "{{ self.__init__ }}{{ self.__init__.__globals__ }}",
            "{{ messages.append(1) }}",
            "{{ messages[0].update(a=1) }}",
            "{{ 'a'.encode() }}",
            "{{ (5).to_bytes(1000000000, 'big') }}",
            "{{ 'a'.translate({97: 'b'}) }}",
            "{{ lipsum() }}",
            "{% include 'x' %}",
            "{% import 'x' as x %}",
            "{% extends 'x' %}",
        ],
    )
    def test_no_way_to_python_or_files(self, source: str) -> None:
        messages = [{"content": "hi"}]
        try:
            written = rendered(source, messages=messages)
        except RequestError:
            written = ""
        assert written == ""
        assert messages == [{"content": "hi"}]

    def test_filter_that_is_not_offered_fails_at_load(self) -> None:
        with pytest.raises(TemplateError, match="random"):
            TemplateSandbox().load("{{ [1, 2] | random }}")


def test_long_conversation_stays_inside_a_quarter_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_WORK", sandbox.MAX_WORK // 4)
    source = (
        "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' + m.content | trim + '<|im_end|>' }}"
        "{% for c in m.calls %}{{ c | tojson }}{% endfor %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 200, "calls": [{"a": 1}] * 3} for _ in range(5000)]
    assert len(rendered(source, messages=messages)) > 5_000_000
