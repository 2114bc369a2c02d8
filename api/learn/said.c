/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/said.c - notices examples that answer a prompt otherwise than an earlier one does.
 *
 * A table of the newest prompts that were taught, each by its hash, with the hash of its answer
 * and the number of its example.  It is filled from the log, at first with the newest there.
 *
 * Thread: any but the engine's (one lock inside), because it reads the log. */
#include "api/learn/lessons.h"
#include "api/learn/state_private.h"
#include "base/hash.h"

enum { PLACES = 16384, TOLD = 10, PIECE = 256, SHOWN_TOKENS = 24 };

struct place {
    uint64_t prompt, answer; /* hashes */
    int64_t number;          /* 0: free */
};

struct hzp_said {
    struct hzp_lock lock;
    /* under lock */
    struct place place[PLACES]; /* by the prompt's hash; a newer prompt takes its place */
    int64_t through;            /* examples up to it were looked at */
};

struct hzp_said *hzp_said_create(void)
{
    struct hzp_said *said = hzp_xcalloc(1, sizeof(*said));
    hzp_lock_init(&said->lock, HZP_LOCK_EXAMPLES);
    return said;
}

void hzp_said_destroy(struct hzp_said *said)
{
    if (!said)
        return;
    hzp_lock_fini(&said->lock);
    free(said);
}

static bool counts(struct hzp_state *s, int64_t number)
{
    return hzp_state_learned(s, number, INT64_MAX) != HZP_EXAMPLE_NEVER;
}

static void tell(struct hzp_state *s, const struct hzp_sample *sample, int32_t prompt,
                 int64_t earlier, json_t *ret)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {NULL, 0, 0};
    int32_t from = HZP_MAX(prompt - SHOWN_TOKENS, 0);
    if (json_array_size(ret) < TOLD && s->config.tok &&
        hzp_tokenizer_decode(s->config.tok, sample->token + from, (size_t)(prompt - from), true,
                             &text) >= 0) {
        json_auto_t *shown =
            hzp_text_json(text.data, text.bytes); /* it may begin within a character */
        json_array_append_new(
            ret,
            json_pack("{s:I, s:I, s:o}", "example", (json_int_t)sample->sequence_number, "earlier",
                      (json_int_t)earlier, "message",
                      json_sprintf("example %" PRId64 " gives another answer than example "
                                   "%" PRId64 " to \"%s\"",
                                   sample->sequence_number, earlier, json_string_value(shown))));
    }
}

/* Enters the sample's last answer.  A text that is learned whole answers nothing. */
static void enter(struct hzp_state *s, const struct hzp_sample *sample, bool told, json_t *ret)
{
    int32_t begin, end;
    hzp_lesson_answer(sample, &begin, &end);
    if (begin <= 1 || begin == end)
        return;
    struct place now = {.number = sample->sequence_number};
    now.prompt = hzp_fnv(HZP_FNV, sample->token, (size_t)begin * sizeof(*sample->token));
    now.answer =
        hzp_fnv(HZP_FNV, sample->token + begin, (size_t)(end - begin) * sizeof(*sample->token));
    struct place *was = &s->said->place[now.prompt % PLACES];
    bool same = was->number && was->prompt == now.prompt;
    if (same && was->number >= now.number)
        return;
    if (told && same && was->answer != now.answer && counts(s, was->number))
        tell(s, sample, begin, was->number, ret);
    if (!same || was->answer != now.answer || !counts(s, was->number))
        *was = now;
}

json_t *hzp_state_contradictions(struct hzp_state *s, int64_t first, int64_t last)
{
    struct hzp_sample *sample[PIECE];
    struct hzp_said *said = s->said;
    json_t *ret = json_array();
    HZP_LOCKED(&said->lock);
    for (int64_t at = HZP_MAX(said->through + 1, last - PLACES + 1); at <= last; at += PIECE) {
        int32_t n = hzp_sample_log_read_range(s->log, at, HZP_MIN(at + PIECE - 1, last), PIECE,
                                              sample, NULL);
        for (int32_t i = 0; i < n; i++) {
            if (counts(s, sample[i]->sequence_number))
                enter(s, sample[i], sample[i]->sequence_number >= first, ret);
            hzp_sample_destroy(sample[i]);
        }
    }
    said->through = HZP_MAX(said->through, last);
    return ret;
}
