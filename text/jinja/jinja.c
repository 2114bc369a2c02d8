/* SPDX-License-Identifier: Apache-2.0 */
#include "text/jinja/jinja.h"

#include "base/utf8.h"
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

const struct hzp_jinja_limits hzp_jinja_limits = {
    .steps = 20000000, .memory_bytes = (size_t)256 << 20, .output_bytes = (size_t)64 << 20};

#define SOURCE_MAX ((size_t)1 << 20)

int hzp_jinja_compile(const char *name, const char *source, size_t bytes, struct hzp_jinja **ret,
                      struct hzp_err_text *reterr)
{
    if (bytes > SOURCE_MAX)
        return hzp_fail(reterr, HZP_EUNSUP, "%s: a template of %zu bytes, at most %zu", name, bytes,
                        SOURCE_MAX);
    if (hzp_utf8_valid(source, bytes) != bytes)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: the template is not valid UTF-8", name);
    struct hzp_jinja *j = hzp_xcalloc(1, sizeof(*j));
    j->name = hzp_xstrdup(name);
    hzp_j_mem_init(&j->mem, j->name, NULL, reterr);
    hzp_j_parse(j, source, bytes);
    j->mem.err = NULL;
    if (j->mem.failed) {
        int code = j->mem.code;
        hzp_jinja_free(j);
        return code;
    }
    *ret = j;
    return HZP_OK;
}

void hzp_jinja_free(struct hzp_jinja *jinja)
{
    if (!jinja)
        return;
    hzp_j_mem_fini(&jinja->mem);
    free(jinja->name);
    free(jinja);
}

bool hzp_jinja_uses(const struct hzp_jinja *jinja, const char *variable)
{
    for (int32_t i = 0; i < jinja->names_count; i++)
        if (!strcmp(jinja->names[i], variable))
            return true;
    return false;
}

/* Gives each name of the template its value from outside. */
static void give_vars(struct jrun *r, const json_t *vars)
{
    for (int32_t i = 0; i < r->jinja->names_count; i++) {
        const char *name = r->jinja->names[i];
        const json_t *json = json_object_get(vars, name);
        const struct jbuiltin *fn = hzp_j_builtin_find(J_GLOBAL, name, strlen(name));
        if (json)
            r->vars[i] = hzp_j_from_json(&r->m, json);
        else if (fn)
            r->vars[i] = (struct jval){.type = J_FUNCTION, .fn = fn};
    }
}

int hzp_jinja_render(const struct hzp_jinja *jinja, const json_t *vars,
                     const struct hzp_jinja_limits *limits, int64_t now,
                     struct hzp_jinja_output *ret, struct hzp_err_text *reterr)
{
    struct jrun r = {.jinja = jinja, .ret = ret, .now = now, .output_most = limits->output_bytes};
    const char *slash = strrchr(jinja->name, '/'); /* clients read its errors: no folder */
    hzp_j_mem_init(&r.m, slash ? slash + 1 : jinja->name, limits, reterr);
    r.m.line = 1;
    r.scope = &r.top;
    r.out = &r.main_out;
    size_t size = (size_t)jinja->names_count * sizeof(*r.vars);
    r.vars = hzp_j_alloc(&r.m, size);
    r.root = hzp_j_alloc(&r.m, size);
    ret->text.bytes = 0;
    ret->spans = 0;
    int code = HZP_OK;
    if (r.vars && r.root) {
        give_vars(&r, vars);
        hzp_j_exec(&r, jinja->root);
    }
    if (r.m.failed)
        code = HZP_EINVAL;
    else if (hzp_textbuf_append(&ret->text, r.main_out.n ? r.main_out.text : "", r.main_out.n) < 0)
        code = hzp_fail(reterr, HZP_ENOMEM, "no memory for the text of the template now");
    hzp_j_mem_fini(&r.m);
    return code;
}

void hzp_jinja_output_fini(struct hzp_jinja_output *output)
{
    hzp_textbuf_fini(&output->text);
    free(output->span);
    memset(output, 0, sizeof(*output));
}
