/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of the job that runs, as rows that clients take and whose columns they write. */
#include "api/rollout/rollouts_state.h"
#include "base/words.h"

/* Those from REWARD on are not ready with the answer, and can be written. */
enum { PROMPT, TEXT, ANSWER, PROMPT_TOKENS, TOKENS, LOGPROBS, VERSIONS, MASK, MESSAGES };
enum { REWARD = MESSAGES + 1, ADVANTAGE, REFERENCE, TURN };
static const char names[] = "prompt text answer prompt_tokens tokens logprobs versions mask "
                            "messages reward advantage reference_logprobs turn";
/* What a row has while its turn waits for what follows. */
enum { ASKED = 1 << PROMPT | 1 << ANSWER | 1 << PROMPT_TOKENS | 1 << MESSAGES | 1 << TURN };

struct hzp_rollout_job *hzp_rollout_running(const struct hzp_rollouts *r)
{
    for (int32_t i = 0; i < r->jobs; i++)
        if (r->job[i]->slot)
            return r->job[i];
    return NULL;
}

int32_t hzp_rollout_rows(struct hzp_rollouts *r)
{
    struct hzp_rollout_job *job = hzp_rollout_running(r);
    int32_t rows = 0;
    for (int32_t i = 0; job && i < job->table.room * job->spec.n; i++) {
        const struct hzp_rollout_group *group = &job->table.group[i / job->spec.n];
        const struct hzp_rollout_member *member = &group->member[i % job->spec.n];
        const struct hzp_rollout_answer *a = hzp_rollout_at(job, i);
        struct hzp_row *row = &r->rows.row[i];
        bool ready = group->state == HZP_GROUP_READY, asked = a->stage == HZP_TURN_ASKED;
        bool there = (ready || group->state == HZP_GROUP_OPEN) &&
                     member->state != HZP_MEMBER_LOST && (a->judged || a->text || asked);
        if (!there || row->number != a->sample)
            *row = (struct hzp_row){.number = 0};
        if (!there)
            continue;
        row->number = a->sample;
        row->order = (int64_t)a->rq->out[0].version; /* further tokens may be of newer ones */
        row->tokens = a->rq->prompt_count + atomic_load(&a->rq->out_count);
        row->ready = ((1u << REWARD) - 1) | (ready ? HZP_ROW_WHOLE : 0) |
                     (uint32_t)a->judged << REWARD |
                     (uint32_t)(ready && isfinite(member->advantage)) << ADVANTAGE |
                     (uint32_t)(a->reference != NULL) << REFERENCE;
        if (!a->said)
            row->ready &= ~(1u << MESSAGES);
        if (asked)
            row->ready = job->spec.turns.client ? ASKED : 0;
        rows++;
    }
    return rows;
}

int32_t hzp_rollout_find(struct hzp_rollouts *r, int64_t sample)
{
    int32_t i = hzp_rollout_rows(r) ? r->rows.groups * r->rows.members - 1 : -1;
    while (i >= 0 && r->rows.row[i].number != sample)
        i--;
    return i;
}

/* ---- taking ---- */

json_t *hzp_rollout_text(const struct hzp_rollouts *r, const struct hzp_request *rq, bool prompt)
{
    struct hzp_textbuf text = {NULL, 0, 0};
    bool ended = atomic_load(&rq->state) == HZP_REQUEST_STOPPED && rq->stop_token >= 0;
    int32_t count, first = prompt ? 0 : rq->prompt_count + hzp_rollout_turn_first(rq);
    HZP_FREED int32_t *token = hzp_rollout_tokens(rq, &count);
    int32_t n = (prompt ? rq->prompt_count : count - ended) - first;
    hzp_tokenizer_decode(r->config.tok, token + first, (size_t)n, true, &text);
    json_t *ret = hzp_text_json(text.data ? text.data : "", text.bytes); /* as UTF-8 */
    hzp_textbuf_fini(&text);
    return ret;
}

/* Where a column's number is, or its first one, if the row has it. */
static double *cell(struct hzp_rollout_job *job, int32_t row, int column)
{
    struct hzp_rollout_answer *a = hzp_rollout_at(job, row);
    return column == REWARD ? &a->reward
           : column == ADVANTAGE
               ? &job->table.group[row / job->spec.n].member[row % job->spec.n].advantage
               : a->reference;
}

/* A column's value in the row of this index, which has it. */
static json_t *value_of(const struct hzp_rollouts *r, struct hzp_rollout_job *job, int32_t row,
                        int column)
{
    const char *answer = job->spec.prompt[job->slot[row / job->spec.n].prompt].reference;
    const struct hzp_request *rq = hzp_rollout_at(job, row)->rq;
    int32_t n = column == PROMPT_TOKENS ? rq->prompt_count : atomic_load(&rq->out_count);
    if (column <= TEXT)
        return hzp_rollout_text(r, rq, column == PROMPT);
    if (column == ANSWER)
        return answer ? json_string(answer) : json_null();
    if (column == MESSAGES)
        return hzp_rollout_messages(job, row);
    if (column == TURN)
        return hzp_rollout_turn(hzp_rollout_at(job, row));
    if (column == REWARD || column == ADVANTAGE)
        return json_real(*cell(job, row, column));
    json_t *ret = json_array();
    for (int32_t i = 0; i < n; i++) {
        const struct hzp_output *out = &rq->out[i];
        double number = column == PROMPT_TOKENS ? rq->prompt[i]
                        : column == TOKENS      ? out->token
                        : column == VERSIONS    ? (double)out->version
                        : column == MASK        ? hzp_rollout_wrote(rq, i)
                        : column == LOGPROBS    ? HZP_MIN(out->logprob, 0)
                                                : cell(job, row, column)[i];
        json_array_append_new(ret, column == LOGPROBS || column == REFERENCE
                                       ? json_real(number)
                                       : json_integer((json_int_t)number));
    }
    return ret;
}

int hzp_rollouts_take(struct hzp_rollouts *r, struct hzp_rows_query *query, const char *columns,
                      int64_t done, json_t **ret, struct hzp_err_text *reterr)
{
    int32_t row[HZP_ROLLOUT_TAKE_MAX], n = 0;
    if (!hzp_is_consumer(query->consumer))
        return hzp_wrong(reterr, "consumer", "must be a name of 1 to %d bytes",
                         HZP_CONSUMER_NAME - 1);
    for (size_t bytes; *columns; columns += bytes + (columns[bytes] == ',')) {
        bytes = strcspn(columns, ",");
        int column = hzp_word_at(names, columns, bytes);
        if (column < 0)
            return hzp_wrong(reterr, "columns", "must be some of %s, with commas between them",
                             names);
        query->columns |= 1u << column;
    }
    HZP_LOCKED(&r->lock);
    struct hzp_rollout_job *job = hzp_rollout_running(r);
    hzp_rollout_rows(r);
    if (done)
        HZP_TRY(hzp_rows_done(&r->rows, done, hzp_now_ns(), reterr));
    HZP_TRY(n = hzp_rows_take(&r->rows, query, hzp_now_ns(), row, reterr));
    json_t *rows = json_array();
    for (int32_t i = 0; i < n; i++) {
        json_t *one = json_pack("{s:I, s:I, s:i}", "sample", (json_int_t)r->rows.row[row[i]].number,
                                "group", (json_int_t)job->table.group[row[i] / job->spec.n].number,
                                "member", (int)(row[i] % job->spec.n));
        const char *name = names;
        for (int c = 0; c <= TURN; c++, name += strcspn(name, " ") + 1)
            if (query->columns >> c & 1)
                json_object_setn_new(one, name, strcspn(name, " "), value_of(r, job, row[i], c));
        json_array_append_new(rows, one);
    }
    *ret = json_pack("{s:s, s:o, s:o, s:f, s:o}", "object", "list", "rollout",
                     job ? json_sprintf("rollout-%" PRIu64, job->id) : json_null(), "lease",
                     n ? json_integer(r->rows.last_lease) : json_null(), "seconds",
                     (double)query->lease_ns * 1e-9, "data", rows);
    return HZP_OK;
}

/* ---- writing ---- */

/* What follows the turn of the sample in this row. */
static int put_turn(struct hzp_rollouts *r, int32_t at, const json_t *messages, int64_t lease,
                    struct hzp_err_text *reterr)
{
    const struct hzp_row *row = &r->rows.row[at];
    if (!(row->ready >> TURN & 1))
        return hzp_fail(reterr, HZP_EUNSUP, "sample %" PRId64 " waits for no turn of a client's",
                        row->number);
    if (lease)
        HZP_TRY(hzp_rows_check(&r->rows, row, lease, hzp_now_ns(), reterr));
    int code = hzp_rollout_give(r, row->number, messages, reterr);
    if (code < 0 && code != HZP_ENOENT)
        snprintf(reterr->param, sizeof(reterr->param), "value");
    return code;
}

int hzp_sample_numbers(const json_t *value, int32_t count, double *ret, struct hzp_err_text *reterr)
{
    bool good = !count || json_array_size(value) == (size_t)count;
    for (int32_t i = 0; good && i < HZP_MAX(count, 1); i++) {
        const json_t *one = count ? json_array_get(value, (size_t)i) : value;
        ret[i] = count ? (double)(float)hzp_json_real(one) : hzp_json_real(one);
        good = hzp_json_is_number(one) && fabs(ret[i]) <= 1e6 && !(count && ret[i] > 0);
    }
    return good ? HZP_OK
           : count
               ? hzp_wrong(reterr, "value", "must be a list of %d numbers from -1e6 to 0", count)
               : hzp_wrong(reterr, "value", "must be a number from -1e6 to 1e6");
}

int hzp_rollouts_put(struct hzp_rollouts *r, int64_t sample, const char *name, const json_t *value,
                     int64_t lease, struct hzp_err_text *reterr)
{
    int column = hzp_word_at(names, name, strlen(name));
    HZP_LOCKED(&r->lock);
    struct hzp_rollout_job *job = hzp_rollout_running(r);
    int32_t at = column < REWARD ? -1 : hzp_rollout_find(r, sample);
    if (at < 0)
        return hzp_fail(reterr, HZP_ENOENT, "there is no sample %" PRId64 " whose %.40s is written",
                        sample, name);
    if (column == TURN)
        return put_turn(r, at, value, lease, reterr);
    struct hzp_rollout_answer *a = hzp_rollout_at(job, at);
    const struct hzp_row *row = &r->rows.row[at];
    bool has = row->ready >> column & 1;
    bool open = column == REWARD ? a->awaits
                : column == ADVANTAGE
                    ? job->spec.advantage == HZP_ADVANTAGE_CLIENT && row->ready & HZP_ROW_WHOLE
                    : job->spec.client_reference;
    int32_t n = column == REFERENCE ? atomic_load(&a->rq->out_count) : 0;
    size_t bytes = (size_t)HZP_MAX(n, 1) * sizeof(double);
    double *given = hzp_xcalloc(1, bytes);
    int code = hzp_sample_numbers(value, n, given, reterr);
    if (code >= 0 && has && memcmp(cell(job, at, column), given, bytes) != 0)
        code = hzp_fail_param(reterr, HZP_EUNSUP, "value",
                              "sample %" PRId64 " has another %s already", sample, name);
    else if (code >= 0 && !has && !open)
        code = hzp_fail(reterr, HZP_EUNSUP,
                        "sample %" PRId64 " takes no %s from a client: the job makes it itself, or "
                        "its group is not complete",
                        sample, name);
    else if (code >= 0 && !has && lease)
        code = hzp_rows_check(&r->rows, row, lease, hzp_now_ns(), reterr);
    if (code >= 0 && !has) {
        if (column == REFERENCE)
            a->reference = hzp_xcalloc(1, bytes);
        memcpy(cell(job, at, column), given, bytes);
        a->judged |= column == REWARD;
        a->awaits &= column != REWARD;
    }
    free(given);
    return code;
}
