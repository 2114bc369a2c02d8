/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a chat template, and as the variables of one: refused or failed with a text, or
 * rendered to valid UTF-8 within the bounds.  A line "\n---\n" divides template and variables. */
#include "base/json.h"
#include "tests/fuzz/smoke.h"
#include "base/utf8.h"
#include "text/jinja/jinja.h"

static const struct hzp_jinja_limits limits = {20000, 1 << 20, 1 << 16};

static void check(bool condition)
{
    if (!condition)
        abort();
}

static void render(const struct hzp_jinja *jinja, const json_t *vars)
{
    struct hzp_jinja_output out = {0};
    struct hzp_err_text err = {.text = ""};
    int r = hzp_jinja_render(jinja, vars, &limits, 1000000000, &out, &err);
    check((r == HZP_OK) == (err.text[0] == 0));
    check(r == HZP_OK || r == HZP_EINVAL);
    if (r == HZP_OK && out.text.bytes)
        check(hzp_utf8_valid(out.text.data, out.text.bytes) == out.text.bytes);
    for (size_t i = 0; i < out.spans; i++)
        check(out.span[i].from <= out.span[i].to && (r < 0 || out.span[i].to <= out.text.bytes));
    hzp_jinja_output_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *source = (const char *)data, *line = memmem(data, size, "\n---\n", 5);
    size_t bytes = line ? (size_t)(line - source) : size;
    json_t *vars =
        line ? hzp_json_load(line + 5, size - bytes - 5, HZP_JSON_PYTHON, NULL, NULL) : NULL;
    struct hzp_jinja *jinja = NULL;
    struct hzp_err_text err = {.text = ""};
    int r = hzp_jinja_compile("fuzz", source, bytes, &jinja, &err);
    check((r == HZP_OK) == (err.text[0] == 0) && (r == HZP_OK) == (jinja != NULL));
    if (r == HZP_OK) {
        render(jinja, json_is_object(vars) ? vars : NULL);
        render(jinja, NULL);
    } else {
        check(r == HZP_EFORMAT || r == HZP_EUNSUP);
    }
    hzp_jinja_free(jinja);
    json_decref(vars);
    return 0;
}

#define VARS                                                                                       \
    "\n---\n{\"messages\": [{\"role\": \"user\", \"content\": \"a \\u00e9 b\"}, {\"role\": "       \
    "\"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", "         \
    "\"arguments\": {\"x\": [1, 2.5, null]}}}]}], \"n\": [3, 1, 2], \"s\": \"x,\\u65e5,z\"}"

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT("{{ a|tojson }}{{ a > 2 }}{{ a + 1 }}{{ a|int }}{{ a|abs }}{{ b|round }}{{ -b }}{{ a "
              "== b }}"
              "{{ '%d %s' % (1, b) }}{{ [a, b]|sort }}{{ {a: b}|tojson }}{{ c }}{{ b|float }}"
              "\n---\n{\"a\": 18446744073709551616, \"b\": -1e400, \"c\": {\"d\\u0000e\": [NaN]}}"),
    FUZZ_TEXT("{% for m in messages %}{% if m.content is string %}{{ '<' + m.role + '>' ~ "
              "m.content|trim }}{% else %}{{ m.tool_calls[0].function|tojson(indent=2) }}"
              "{% endif %}{{ loop.last }}{% endfor %}" VARS),
    FUZZ_TEXT("{% macro f(a, b=1) -%} {{ a|int + b }}{{ varargs }} {%- endmacro %}{% set ns = "
              "namespace(x=0) %}{% for i in n if i > 1 %}{% set ns.x = ns.x + i %}{{ f(i, 2, 3) "
              "}}{% else %}none{% endfor %}{{ ns.x//2 ** 2 % 3 }}" VARS),
    FUZZ_TEXT(
        "{{ s.split(',', 1)[-1][::-1] }}{{ n|sort(reverse=true)|join('-') }}{{ s|replace('x', "
        "'yy')|upper|indent(3) }}{{ '%5s|%-3d|%.2f' % (s, 4, 2.5) }}{{ n[1:]|map('string')|"
        "list }}{{ 'a' in s and not n is none or 1 }}" VARS),
    FUZZ_TEXT(
        "{%- set x %} {{ messages|selectattr('role', 'equalto', 'user')|map(attribute="
        "'content')|first }} {% endset -%}{{ x|trim|e }}{# note #}{% raw %}{{ y }}{% endraw %}"
        "{% generation %}{{ s.center(9, '*') }}{% endgeneration %}{% call f() %}{% endcall "
        "%}" VARS),
    FUZZ_TEXT("{% filter upper %}{% with a = s, b = 2 %}{{ a.partition(',') }}{{ {'k': b, 1: "
              "[a]}|dictsort }}{% endwith %}{% endfilter %}{% for c in s recursive %}{% if loop."
              "index > 2 %}{% break %}{% endif %}{{ c.title() }}{% endfor %}" VARS),
};

FUZZ_MAIN(seeds)
