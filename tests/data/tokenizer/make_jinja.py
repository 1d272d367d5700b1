#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""Writes jinja.json: small templates, one for each thing that chat templates do, and what jinja2 makes of them.

An entry has the template, its variables beside `messages`, and the text, or null where jinja2 refuses. Needs jinja2.
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "bench", "chat_templates"))
import compare  # noqa: E402

MESSAGES = [
    {"role": "system", "content": " Be <brief>. "},
    {"role": "user", "content": "Hi é世🙂"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYo & co", "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [1.5, None, True, "\"q\"\n"]}}}]},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
]
VARIABLES = {"n": 3, "x": 1.0, "none_value": None, "names": ["b", "C", "a", "B"], "table": {"z": 1, "A": 2, "m": "t"},
             "items_dict": {"items": 1, "get": 2}, "nested": {"a": {"b": [10, 20]}}, "text": "one two  three", "numbers": [1e3, 1e15, 1e16, 1e-5, 1e22, 1.5e300, -2.5]}

TEMPLATES = """
{{ messages[0].content }}|{{ messages[0]['content'] | trim }}|{{ messages[1]["role"] }}
{{ messages[0].missing }}|{{ missing }}|{{ missing is defined }}{{ messages[0].missing is undefined }}
{{ missing.member }}
{{ missing + 'a' }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ missing ~ [1, 'x'] ~ {'k': "it's"} ~ (1,) ~ () }}
{{ 'a' + 1 }}
{{ 1 + 2 * 3 - 4 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7.5 % 2 }}|{{ 'ab' * 2 }}|{{ [1] + [2] }}
{{ 1 / 0 }}
{{ 0.0001 }}|{{ 123456789.125 }}|{{ 1.0 }}|{{ -0.0 }}|{{ 9007199254740993.0 * 1.5 }}{% for number in numbers %}|{{ number }}{% endfor %}
{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' == 'b' }}{{ none == missing }}{{ [1] == [1.0] }}{{ {'a': 1} == {'a': 1} }}{{ '1' == 1 }}
{{ 1 < 2 }}{{ 2 > 5 }}{{ 'a' < 'b' }}{{ 2.5 <= 2 }}{{ 2 >= 2 }}{{ 3 != 3 }}
{{ 1 < 'a' }}
{{ 'a' in 'abc' }}{{ 'k' in {'k': 1} }}{{ 1 in [1, 2] }}{{ 'z' not in 'abc' }}{{ 'x' in missing }}{{ missing in [1] }}
{{ 1 in 'abc' }}
{% for i in 3 %}{% endfor %}
{{ none or 'x' }}|{{ '' and 'y' }}|{{ 0 or '' or [] }}|{{ not none }}|{{ not 1 in [1] }}|{{ not not 1 }}
{{ 'y' if n > 2 else 'n' }}|{{ 'y' if n > 5 }}|{{ ('a' if false else 'b') ~ 'c' }}|{{ 'a' if false else 'b' if false else 'c' }}
{% if n == 3 %}three{% elif n == 4 %}four{% else %}more{% endif %}{% if none_value %}x{% endif %}{% if missing %}y{% else %}z{% endif %}
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem.role if loop.nextitem is defined }};{% endfor %}
{% for a, b in table.items() %}{{ a }}={{ b }};{% endfor %}{% for k in table %}{{ k }}{% endfor %}{% for c in 'aé世' %}[{{ c }}]{% endfor %}
{% for (a, b) in [(1, 2)] %}{{ a + b }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for i in [] %}x{% else %}none{% endfor %}{% for i in missing %}x{% else %}undefined{% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{% if loop.last %}!{% endif %}{% endfor %}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}{{ range(2, 10, 3) | list }}{{ range(5, 0, -2) | list }}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(found=false, n=0) %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns.found }}{{ ns.other is defined }}
{% set x.y = 1 %}
{% set a, b = 1, 2 %}{{ b }}{{ a }}{% set c = 1, 2 %}{{ c }}
{% set t %}  in {{ n }}  {% endset %}[{{ t }}]
{% if true %}{% set inner = 5 %}{% endif %}{{ inner }}{% for i in [1] %}{% set hidden = 1 %}{% endfor %}{{ hidden is defined }}
{% macro f(a, b='B', c=a) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}{{ f() }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(z=2) }}
{% macro tree(v, d=0) %}{% if v is mapping %}{% for k, w in v.items() %}{{ k }}:{{ tree(w, d + 1) }};{% endfor %}{% elif v is string %}{{ v }}{% elif v is iterable %}[{% for w in v %}{{ tree(w, d + 1) }},{% endfor %}]{% else %}{{ v }}@{{ d }}{% endif %}{% endmacro %}{{ tree(nested) }}{{ tree(messages[2]) }}
{% macro g() %}{{ later }}{% endmacro %}{% set later = 'seen' %}{{ g() }}
{{ text.split() }}{{ text.split(' ') }}{{ text.split(' ', 1) }}{{ 'a</think>b</think>c'.split('</think>')[-1] }}{{ ''.split('x') }}{{ ''.split() }}
{{ '  a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n a'.lstrip('\\n') }}|{{ ' a '.rstrip() }}|{{ '\u3000a\u00a0'.strip() }}
{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('c') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'a-b-c'.replace('-', '+') }}{{ 'a-b-c'.replace('-', '', 1) }}
{{ 'hello wORLD'.title() }}|{{ 'hELLO'.capitalize() }}|{{ 'aÉ'.lower() }}|{{ 'éa'.upper() }}|{{ "it's a x-y_z" | title }}|{{ 'ab CD' | capitalize }}
{{ 'a' | upper }}{{ 'É' | lower }}{{ none | upper }}{{ 12 | string + '3' }}{{ [1, 2] | length }}{{ 'é世' | length }}{{ table | count }}{{ missing | length }}
{{ 3 | length }}
{{ missing | default('d') }}{{ none | default('d') }}{{ none | default('d', true) }}{{ '' | default('e', boolean=true) }}{{ missing | default }}{{ n | d(1) }}
{{ [1, 'a', none] | join(', ') }}|{{ ['a', 'b'] | join }}|{{ messages | map(attribute='role') | join('-') }}|{{ 'abc' | join('.') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | list }}{{ messages | selectattr('tool_calls') | list | length }}{{ messages | selectattr('tool_calls', 'defined') | list | length }}
{{ names | map('upper') | list }}{{ [0, 1, 2] | select | list }}{{ [1, 'a'] | select('string') | list }}{{ ['a', ''] | reject | list }}{{ none_value | map('upper') | list }}{{ [1, 2, 3] | select('in', [1, 3]) | list }}
{% set g = messages | selectattr('role', 'eq', 'user') %}{{ g | list | length }}{% if g %}true{% endif %}
{{ (messages | selectattr('role', 'eq', 'user')) | length }}
{{ (messages | map(attribute='role')) | first }}{{ names | first }}{{ names | last }}{{ [] | first is defined }}{{ 'abc' | last }}{{ missing | first }}
{{ names | sort }}{{ messages | sort(attribute='role') | map(attribute='role') | list }}{{ ['a', 'A', 'b'] | unique | list }}
{{ [3, 1, 2] | min }}{{ [] | min is defined }}{{ messages | reverse | map(attribute='role') | list }}{{ 'ab' | reverse }}
{{ table | dictsort }}{{ table | items | list }}{{ table.keys() | list }}{{ table.values() | list }}
{{ '12' | int + 1 }}{{ 'x' | int }}{{ '3.9' | int }}{{ 4.7 | int }}{{ 'x' | int(7) }}{{ ' 5 ' | int }}{{ '+5' | int }}{{ true | int }}
{{ messages[2] | tojson }}
{{ messages[2] | tojson(indent=2) }}
{{ {'é': '<&\\u2028\\x7f\\x01"\\\\/'} | tojson }}{{ 'x' | tojson }}{{ none | tojson }}{{ 1.0 | tojson }}{{ [] | tojson(indent=4) }}{{ {} | tojson }}{{ [[], {}] | tojson(indent=1) }}{{ (1, 2) | tojson }}{{ {'b': 1} | tojson(separators=(',', ':')) }}
{{ 'é世🙂\\x7f"' | tojson(ensure_ascii=true) }}
{{ missing | tojson }}
{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(width=2) }}|{{ 'a\\nb' | indent('> ', first=true) }}
{{ '<a>' | safe }}{{ ('<a>' | safe) + '<b>' }}{{ '<c>' + ('<a>' | safe) }}{{ ('<a>' | safe) ~ '<b>' }}
{{ messages[1].content[0:2] }}|{{ 'abcdef'[1:4] }}|{{ 'abcdef'[-2:] }}|{{ 'abcdef'[::-1] }}|{{ 'abcdef'[::2] }}|{{ [1, 2, 3][:-1] }}|{{ [1, 2, 3][5:] }}|{{ 'é世🙂'[1:] }}|{{ 'é世🙂'[-1] }}|{{ [1, 2, 3][::-1] }}|{{ [1, 2][2:0] }}
{{ nested.a.b[1] }}{{ nested['a']['b'][-1] }}{{ nested.a.b.0 }}{{ nested.a.b[7] is defined }}{{ [1, 2][true] }}{{ 'abc'.1 }}
{{ items_dict['items'] }}{{ items_dict.get('items') }}{{ items_dict.get('q', 'd') }}{{ items_dict.get('q') }}{{ items_dict.items() | list }}
{{ n is defined }}{{ n is number }}{{ n is integer }}{{ x is float }}{{ true is number }}{{ true is integer }}{{ true is boolean }}{{ 'a' is string }}{{ none is none }}{{ table is mapping }}{{ names is sequence }}{{ names is iterable }}{{ 'a' is iterable }}{{ 'a' is sequence }}{{ table is sequence }}{{ n is iterable }}{{ table.items() is sequence }}{{ missing is iterable }}{{ n is odd }}{{ n is even }}{{ n is eq 3 }}{{ n is equalto(3) }}{{ 'a' is in ['a'] }}{{ n is not string }}{{ true is true }}{{ 1 is true }}{{ false is false }}{{ n is ne 4 }}
  {% if true %}
  indented
  {% endif %}
end
  {%- if true -%}  
  a  
  {%- endif +%}  
b
  {%+ if true %}c{% endif %}

d
{#- comment -#}  x {# more #}
{# line #}
y
a {{- ' b ' -}}  c {{ 'd' }}
e
{{ '%' ~ '}' ~ "{{" ~ '{%' }}{{ {'a': {'b': 1}}['a']['b'] }}{{ "a" "b" }}{{ 'it\\'s' }}{{ "\\x41\\u00e9\\t" }}{{ '\\d' }}
{% for m in messages %}{% generation %}{{ m.role }}{% set q = 1 %}{% endgeneration %}{{ q is defined }}{% endfor %}
{{ raise_exception('No ' ~ n) }}
{% filter upper %}a{{ n }}b{% set inner = 1 %}{% endfilter %}{{ inner is defined }}{% filter replace('a', 'b') %} a {% endfilter %}
{% for i in [1, 2] %}{{ loop.depth }}{{ loop.depth0 }}{% for j in [3] %}{{ loop.length }}{% endfor %}{{ loop.index }}{% endfor %}
{% set r %}{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}{% endset %}{{ r }}{{ 1 if not 2 in [1] and n > 2 or 0 }}{{ text is string and text is not mapping }}
{{ strftime_now('%Y-%m-%d %B %b %j %y %%') }}
{{ '%s' }}{{ messages | length > 3 and messages[0].role == 'system' }}{{ (1, 2)[0] }}{{ [1, 2,] }}{{ {'a': 1,} }}{{ -n }}{{ - n | string }}
{{ "it's" ~ ['it\\'s', '"', '\\n\\x00\\u200b é'] }}
{{ names.append(1) }}
{{ table.update({'a': 1}) }}
{{ namespace(a=1).a }}{{ [namespace(a=2)][0].a }}
""".strip("\n").split("\n")


def templates():
    """The templates: a line each, but for those that are several lines, which are joined here."""
    several = {"  {% if true %}": 4, "  {%- if true -%}  ": 6, "{#- comment -#}  x {# more #}": 3, "a {{- ' b ' -}}  c {{ 'd' }}": 2}
    at = 0
    while at < len(TEMPLATES):
        size = several.get(TEMPLATES[at], 1)
        yield "\n".join(TEMPLATES[at:at + size])
        at += size


def main():
    env = compare.environment()
    entries = []
    for text in templates():
        try:
            made = env.from_string(text).render(messages=MESSAGES, **VARIABLES)
        except Exception as error:
            made = None
            print(f"{type(error).__name__}: {error} in {text}")
        entries.append({"template": text, "text": made})
    with open(os.path.join(HERE, "jinja.json"), "w", encoding="utf-8") as out:
        json.dump({"now": compare.NOW, "messages": MESSAGES, "variables": VARIABLES, "templates": entries}, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
