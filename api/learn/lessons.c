/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/lessons.h"

#include "api/learn/state_private.h"
#include "base/log.h"

enum { PAGE = 64 };

const char *hzp_lesson_state_name(enum hzp_lesson_state state)
{
    static const char *const name[] = {"waiting",   "learned",  "undone",
                                       "forgotten", "rejected", "failed"};
    return name[state];
}

enum hzp_lesson_state hzp_lesson_state(struct hzp_state *s, const struct hzp_logged_lesson *lesson,
                                       int64_t learned_through)
{
    /* Going back skips also what was forgotten or rejected before: that comes first. */
    static const struct {
        enum hzp_mark_kind mark;
        enum hzp_lesson_state state;
        bool whole; /* all of the lesson has the mark */
    } marks[] = {{HZP_MARK_DELETED, HZP_LESSON_FORGOTTEN, true},
                 {HZP_MARK_REJECTED, HZP_LESSON_REJECTED, true},
                 {HZP_MARK_SKIPPED, HZP_LESSON_UNDONE, false},
                 {HZP_MARK_DELETED, HZP_LESSON_FORGOTTEN, false},
                 {HZP_MARK_REJECTED, HZP_LESSON_REJECTED, false}};
    int64_t none[1], count, all = lesson->last - lesson->first + 1;
    for (int i = 0; i < HZP_COUNT(marks); i++) {
        hzp_state_marked(s, marks[i].mark, lesson->first, lesson->last, none, 0, &count);
        if (count >= (marks[i].whole ? all : 1))
            return marks[i].state;
    }
    hzp_state_failed(s, lesson->first, lesson->last, none, 0, &count);
    if (count)
        return HZP_LESSON_FAILED;
    return hzp_state_settled(s, lesson->first, lesson->last, learned_through) ? HZP_LESSON_LEARNED
                                                                              : HZP_LESSON_WAITING;
}

int32_t hzp_state_lessons(struct hzp_state *s, int64_t below, int32_t max,
                          struct hzp_logged_lesson *ret, struct hzp_err_text *reterr)
{
    return hzp_sample_log_lessons(s->log, below, max, ret, reterr);
}

bool hzp_lesson_counts(struct hzp_state *s, const struct hzp_logged_lesson *lesson)
{
    for (int64_t n = lesson->first; n <= lesson->last; n++)
        if (hzp_state_learned(s, n, INT64_MAX) != HZP_EXAMPLE_NEVER)
            return true;
    return false;
}

int hzp_state_lesson(struct hzp_state *s, int64_t id, struct hzp_logged_lesson *ret,
                     struct hzp_err_text *reterr)
{
    struct hzp_logged_lesson page[PAGE];
    int32_t n;
    int64_t below = INT64_MAX;
    if (id)
        return hzp_sample_log_lesson(s->log, id, ret, reterr);
    while ((n = hzp_sample_log_lessons(s->log, below, PAGE, page, reterr)) > 0) {
        for (int32_t i = 0; i < n; i++)
            if (hzp_lesson_counts(s, &page[i])) {
                *ret = page[i];
                return HZP_OK;
            }
        below = page[n - 1].id;
    }
    HZP_TRY(n);
    return hzp_fail(reterr, HZP_ENOENT, "there is no lesson that could be taken back");
}

int hzp_state_lesson_of(struct hzp_state *s, int64_t first, struct hzp_logged_lesson *ret,
                        struct hzp_err_text *reterr)
{
    return hzp_sample_log_lesson_of(s->log, first, ret, reterr);
}

int hzp_state_undone_by(struct hzp_state *s, const struct hzp_body_key *key, int64_t *ret_lesson,
                        struct hzp_err_text *reterr)
{
    int64_t count;
    return hzp_sample_log_find_body(s->log, key, ret_lesson, &count, reterr);
}

int hzp_state_note_undo(struct hzp_state *s, const struct hzp_body_key *key, int64_t lesson,
                        struct hzp_err_text *reterr)
{
    return hzp_sample_log_add_body(s->log, key, lesson, reterr);
}

int hzp_state_teach_again(struct hzp_state *s, const struct hzp_logged_lesson *lesson,
                          const struct hzp_body_key *once, int64_t *ret_first, int64_t *ret_last,
                          struct hzp_err_text *reterr)
{
    int64_t most = lesson->last - lesson->first + 1;
    struct hzp_sample **sample = hzp_xcalloc((size_t)most, sizeof(struct hzp_sample *));
    int32_t n = hzp_sample_log_read_range(s->log, lesson->first, lesson->last, (int32_t)most,
                                          sample, reterr);
    if (n <= 0) {
        free(sample);
        return n < 0 ? n
                     : hzp_fail(reterr, HZP_ENOENT,
                                "the texts of lesson %" PRId64 " were forgotten", lesson->id);
    }
    struct hzp_body_key key = *once;
    key.session = lesson->session[0] ? lesson->session : NULL;
    int r = hzp_examples_commit(&s->examples, sample, n, &key, ret_first, ret_last, reterr);
    return hzp_state_count_accepted(s, r, *ret_first, *ret_last);
}

/* ---- what it changed ---- */

/* Names of notes in the log; the second is known to train/table/sample_log_marks.c. */
static const char figures_name[] = "effect-", texts_name[] = "effect_texts-";
static const char reason_name[] = "rejected-";

void hzp_lesson_answer(const struct hzp_sample *sample, int32_t *ret_begin, int32_t *ret_end)
{
    int32_t end = hzp_sample_first(sample);
    while (end > 0 && !sample->learn[end - 1])
        end--;
    int32_t begin = end;
    while (begin > 0 && sample->learn[begin - 1])
        begin--;
    *ret_begin = begin;
    *ret_end = end;
}

int32_t hzp_state_samples(struct hzp_state *s, int64_t first, int64_t last, int32_t max,
                          struct hzp_sample **ret)
{
    int32_t n = hzp_sample_log_read_range(s->log, first, last, max, ret, NULL);
    return HZP_MAX(n, 0);
}

static int put_json(struct hzp_state *s, const char *kind, int64_t first, const json_t *json,
                    struct hzp_err_text *reterr)
{
    char name[64];
    snprintf(name, sizeof(name), "%s%" PRId64, kind, first);
    HZP_FREED char *text = json_dumps(json, JSON_COMPACT);
    return text ? hzp_sample_log_set_note(s->log, name, text, reterr)
                : hzp_fail(reterr, HZP_ENOMEM, "no memory");
}

void hzp_state_put_effect(struct hzp_state *s, int64_t first, const json_t *effect,
                          const char *const *text, int texts)
{
    struct hzp_err_text err = {.text = ""};
    json_auto_t *figures = json_copy((json_t *)effect), *parts = json_object();
    for (int i = 0; i < texts; i++) {
        json_object_set(parts, text[i], json_object_get(effect, text[i]));
        json_object_del(figures, text[i]);
    }
    int r = put_json(s, figures_name, first, figures, &err);
    if (r >= 0)
        r = put_json(s, texts_name, first, parts, &err);
    if (r < 0)
        hzp_log(HZP_LOG_WARN, "state", "the effect of a lesson is not kept: %s", err.text);
}

static json_t *read_json(struct hzp_state *s, const char *kind, int64_t first)
{
    char name[64];
    snprintf(name, sizeof(name), "%s%" PRId64, kind, first);
    HZP_FREED char *text = hzp_sample_log_whole_note(s->log, name);
    return text ? json_loads(text, 0, NULL) : NULL;
}

json_t *hzp_state_effect(struct hzp_state *s, int64_t first)
{
    json_t *ret = read_json(s, figures_name, first);
    json_auto_t *parts = ret ? read_json(s, texts_name, first) : NULL;
    if (parts)
        json_object_update(ret, parts);
    return ret;
}

/* ---- why it was rejected ---- */

void hzp_state_note_rejection(struct hzp_state *s, int64_t first, int64_t last, const char *why)
{
    HZP_LOCKED(&s->lock);
    uint64_t at = s->rejections++ % HZP_STATE_REJECTIONS;
    s->rejection[at].first = first;
    s->rejection[at].last = last;
    snprintf(s->rejection[at].why, sizeof(s->rejection[at].why), "%s", why);
}

void hzp_state_log_reasons(struct hzp_state *s)
{
    struct hzp_err_text err = {.text = ""};
    int r = HZP_OK;
    for (; r >= 0 && s->reasons_logged < s->rejections; s->reasons_logged++) {
        hzp_lock_take(&s->lock);
        struct hzp_rejection one = s->rejection[s->reasons_logged % HZP_STATE_REJECTIONS];
        hzp_lock_release(&s->lock);
        r = hzp_sample_log_note_lessons(s->log, reason_name, one.first, one.last, one.why, &err);
    }
    if (r < 0)
        hzp_log(HZP_LOG_WARN, "state", "why a lesson was rejected is not kept: %s", err.text);
}

json_t *hzp_state_reason(struct hzp_state *s, int64_t first, int64_t last)
{
    char why[HZP_STATE_REASON] = "", name[64];
    hzp_lock_take(&s->lock);
    for (int i = 0; i < HZP_STATE_REJECTIONS; i++)
        if (s->rejection[i].first && s->rejection[i].first <= last && s->rejection[i].last >= first)
            snprintf(why, sizeof(why), "%s", s->rejection[i].why);
    hzp_lock_release(&s->lock);
    snprintf(name, sizeof(name), "%s%" PRId64, reason_name, first);
    if (!*why)
        hzp_sample_log_note(s->log, name, why, sizeof(why), NULL);
    return *why ? json_string(why) : json_null();
}

int hzp_state_put_note(struct hzp_state *s, const char *name, const char *value,
                       struct hzp_err_text *reterr)
{
    return hzp_sample_log_set_note(s->log, name, value, reterr);
}

char *hzp_state_note(struct hzp_state *s, const char *name)
{
    return hzp_sample_log_whole_note(s->log, name);
}
