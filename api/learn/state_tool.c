/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/state_tool.h"

#include "api/learn/checkpoint.h"
#include "api/learn/fingerprint.h"
#include "weights/model_dir.h"

enum { LOGGED_MAX = 4096 };

struct tool {
    const char *dir;
    enum hzp_state_action action;
    FILE *out;
    struct hzp_sample_log *log;
    struct hzp_logged_checkpoint *logged; /* [count], newest first */
    int32_t count;
    int64_t damaged;
};

/* ---- one checkpoint ---- */

/* Loads the weights and compares all checksums. */
static int verify(const char *dir, int64_t *ret_learned_through, struct hzp_err_text *reterr)
{
    struct hzp_model_config config;
    HZP_ENDED(hzp_layout_free) struct hzp_layout layout = {0};
    struct hzp_units units = {0};
    uint64_t sum;
    HZP_TRY(hzp_config_read(dir, &config, reterr));
    hzp_layout_make(&config, &layout);
    HZP_FREED void *memory = malloc(hzp_units_bytes(&layout, config.disk_type));
    int r = memory ? HZP_OK : hzp_fail(reterr, HZP_ENOMEM, "%s: out of memory", dir);
    if (r >= 0) {
        hzp_units_init(&units, &layout, config.disk_type, memory);
        r = hzp_model_load(dir, NULL, &units, &sum, reterr);
    }
    if (r >= 0)
        r = hzp_trainer_verify(dir, &layout, sum, ret_learned_through, reterr);
    if (units.layout)
        hzp_units_free(&units);
    return r;
}

/* List looks at the files only. */
static int look_at(const struct tool *t, const char *name, int64_t *ret_learned_through,
                   struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", t->dir, name);
    return t->action == HZP_STATE_LIST ? hzp_checkpoint_whole(path, reterr)
                                       : verify(path, ret_learned_through, reterr);
}

/* Whether its directory is not there: retention has removed it, and a kill left it in the log
 * (hzp_state_prune), or it was moved elsewhere. */
static bool is_gone(const struct tool *t, const struct hzp_logged_checkpoint *c)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", t->dir, c->name);
    return access(path, F_OK) < 0 && errno == ENOENT;
}

/* spare: a newer one is whole, so the server does not miss this one.  *ret_left: nothing is done
 * about it. */
static int one_logged(struct tool *t, const struct hzp_logged_checkpoint *c, bool spare,
                      bool *ret_whole, bool *ret_left, struct hzp_err_text *reterr)
{
    struct hzp_err_text why;
    int64_t through;
    *ret_whole = false;
    *ret_left = spare && is_gone(t, c);
    if (*ret_left) {
        fprintf(t->out, "%-24s finished through %" PRId64 "; not on disk\n", c->name,
                c->learned_through);
        return HZP_OK;
    }
    int r = look_at(t, c->name, &through, &why);
    *ret_whole = *ret_left = r >= 0;
    fprintf(t->out, "%-24s finished through %" PRId64 "%s%s\n", c->name, c->learned_through,
            r < 0 ? "; damaged: " : "", r < 0 ? why.text : "");
    if (r >= 0)
        return HZP_OK;
    if (r != HZP_EFORMAT && r != HZP_ENOENT)
        return hzp_fail(reterr, r, "%s", why.text);
    t->damaged++;
    return HZP_OK;
}

/* ---- all of them ---- */

/* No checkpoint is whole: whether the examples of the log can be learned again from the model with
 * which the server is started.  They cannot, if another model was sent to it meanwhile. */
static int begins_anew(struct tool *t, bool *ret, struct hzp_err_text *reterr)
{
    char source[64];
    HZP_TRY(hzp_sample_log_source(t->log, 0, source, sizeof(source), reterr));
    *ret = !source[0];
    fprintf(t->out,
            *ret ? "no checkpoint is whole: the next start learns all examples of the log again\n"
                 : "no checkpoint is whole, and weights came from %s: none is renamed\n",
            source);
    return HZP_OK;
}

static int checkpoints(struct tool *t, struct hzp_err_text *reterr)
{
    HZP_FREED bool *left = calloc((size_t)t->count + 1, sizeof(*left));
    bool any = false, whole = false;
    if (!left)
        return HZP_ENOMEM;
    for (int32_t i = 0; i < t->count; i++) {
        HZP_TRY(one_logged(t, &t->logged[i], any, &whole, &left[i], reterr));
        any |= whole;
    }
    if (t->action == HZP_STATE_REPAIR && t->count > 0 && !any)
        HZP_TRY(begins_anew(t, &any, reterr));
    for (int32_t i = 0; i < t->count && any && t->action == HZP_STATE_REPAIR; i++) {
        if (left[i])
            continue;
        HZP_TRY(hzp_checkpoint_set_aside(t->dir, t->logged[i].name, reterr));
        HZP_TRY(hzp_sample_log_forget_checkpoint(t->log, t->logged[i].id, reterr));
        fprintf(t->out, "%s: renamed to %s.damaged\n", t->logged[i].name, t->logged[i].name);
        t->damaged--;
    }
    return HZP_OK;
}

/* Directories that the log does not name; they are left as they are. */
static void unknown(const struct tool *t)
{
    uint64_t id = UINT64_MAX;
    while ((id = hzp_checkpoint_below(t->dir, id)) > 0) {
        bool known = false;
        for (int32_t i = 0; i < t->count; i++)
            known |= t->logged[i].id == id;
        if (!known)
            fprintf(t->out, "checkpoint-%-13" PRIu64 " not in the log, not used\n", id);
    }
}

static int samples(struct tool *t, struct hzp_err_text *reterr)
{
    int64_t failed = 0, bad = 0, none[1];
    HZP_TRY(hzp_sample_log_failed(t->log, 1, INT64_MAX, none, 0, &failed, reterr));
    fprintf(t->out, "examples 1 .. %" PRId64 ", %" PRId64 " failed\n", hzp_sample_log_last(t->log),
            failed);
    while (t->action != HZP_STATE_LIST) {
        HZP_TRY(hzp_sample_log_find_damaged(t->log, bad, &bad, reterr));
        if (!bad)
            break;
        fprintf(t->out, "example %" PRId64 " is damaged%s\n", bad,
                t->action == HZP_STATE_REPAIR ? ", marked as failed" : "");
        if (t->action == HZP_STATE_REPAIR)
            HZP_TRY(hzp_sample_log_fail(t->log, &bad, 1, -1, reterr));
        else
            t->damaged++;
    }
    return HZP_OK;
}

/* ---- the log ---- */

/* Begins a log from the newest checkpoint that is whole. */
static int begin_log(struct tool *t, const char *path, struct hzp_err_text *reterr)
{
    char place[PATH_MAX], name[64], fingerprint[HZP_FINGERPRINT_SIZE];
    struct hzp_err_text why;
    struct hzp_model_config config;
    struct hzp_layout layout;
    struct hzp_tokenizer *tok = NULL;
    int64_t through = -1;
    uint64_t id = UINT64_MAX;
    while ((id = hzp_checkpoint_below(t->dir, id)) > 0) {
        snprintf(name, sizeof(name), "checkpoint-%" PRIu64, id);
        snprintf(place, sizeof(place), "%s/%s", t->dir, name);
        if (verify(place, &through, &why) >= 0)
            break;
        fprintf(t->out, "%s: damaged: %s\n", name, why.text);
    }
    if (!id)
        return hzp_fail(reterr, HZP_EFORMAT, "%s: no checkpoint is whole", t->dir);
    HZP_TRY(hzp_config_read(place, &config, reterr));
    int r = hzp_tokenizer_open(place, &tok, reterr);
    if (r < 0 && r != HZP_ENOENT)
        return r;
    hzp_layout_make(&config, &layout);
    hzp_fingerprint_shapes(&layout, tok, fingerprint);
    r = hzp_sample_log_open(path, fingerprint, &t->log, reterr);
    if (r >= 0)
        r = hzp_sample_log_begin_after(t->log, HZP_MAX(through, 0), reterr);
    if (r >= 0)
        r = hzp_sample_log_checkpoint(t->log, id, through, name, NULL, 0, reterr);
    if (r >= 0)
        fprintf(t->out, "samples.db begun from %s, which has learned examples up to %" PRId64 "\n",
                name, through);
    hzp_layout_free(&layout);
    hzp_tokenizer_close(tok);
    return r;
}

static int run(struct tool *t, struct hzp_err_text *reterr)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/samples.db", t->dir);
    if (hzp_sample_log_lost(path)) {
        if (t->action != HZP_STATE_REPAIR || !hzp_checkpoint_newest(t->dir))
            return hzp_fail(reterr, HZP_ENOENT, "%s: missing or empty%s", path,
                            hzp_checkpoint_newest(t->dir)
                                ? "; `hzpserve state repair` begins one from the newest checkpoint"
                                : "");
        HZP_TRY(begin_log(t, path, reterr));
    } else {
        HZP_TRY(hzp_sample_log_open(path, NULL, &t->log, reterr));
    }
    t->count = hzp_sample_log_checkpoints(t->log, t->logged, LOGGED_MAX, reterr);
    HZP_TRY(t->count);
    HZP_TRY(samples(t, reterr));
    unknown(t);
    return checkpoints(t, reterr);
}

int hzp_state_tool(const char *dir, enum hzp_state_action action, FILE *out, int64_t *ret_damaged,
                   struct hzp_err_text *reterr)
{
    struct tool t = {.dir = dir, .action = action, .out = out};
    t.logged = calloc(LOGGED_MAX, sizeof(*t.logged));
    int r = t.logged ? run(&t, reterr) : HZP_ENOMEM;
    hzp_sample_log_close(t.log);
    free(t.logged);
    *ret_damaged = t.damaged;
    return r;
}
