/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of several turns.  Where the model has ended its turn, the environment (the operator's
 * command, or a client) says which messages follow: what tools answer to its calls, say.  What the
 * template writes for them, up to the beginning of the next turn, goes behind the answer's tokens,
 * which stay as they were drawn: nothing that the model wrote is tokenised again.  The next turn is
 * a request that begins with all of them.  What was given has the version 0, and is not learned.
 *
 * A job with tools asks behind turns with calls only; one without asks behind each.  Nothing
 * follows a turn that max_tokens cut off, the last one that is allowed, or one for which what
 * follows has no room. */
#include "api/rollout/rollouts_state.h"
#include "text/chat/reply.h"
#include "text/tokenizer/detokenizer.h"

enum { TAIL = 32 /* tokens before a turn that say how it is read */ };

int32_t hzp_rollout_written(const struct hzp_request *rq)
{
    int32_t n = 0;
    for (int32_t i = atomic_load(&rq->out_count) - 1; i >= 0; i--)
        n += hzp_rollout_wrote(rq, i);
    return n;
}

int32_t hzp_rollout_turn_first(const struct hzp_request *rq)
{
    int32_t i = atomic_load(&rq->out_count);
    while (i > 0 && hzp_rollout_wrote(rq, i - 1))
        i--;
    return i;
}

int32_t *hzp_rollout_tokens(const struct hzp_request *rq, int32_t *ret_count)
{
    int32_t first = rq->prompt_count, n = atomic_load(&rq->out_count);
    int32_t *ret = hzp_xcalloc((size_t)(first + n), sizeof(*ret));
    memcpy(ret, rq->prompt, (size_t)first * sizeof(*ret));
    for (int32_t i = 0; i < n; i++)
        ret[first + i] = rq->out[i].token;
    *ret_count = first + n;
    return ret;
}

/* ---- what the model wrote ---- */

/* Appends the text of tokens [from, to), as it goes on behind those before; marks of calls stay. */
static int turn_text(const struct hzp_rollouts *r, const struct hzp_reply_rules *rules,
                     const int32_t *token, int32_t from, int32_t to, struct hzp_textbuf *out)
{
    struct hzp_detokenizer detok;
    hzp_detokenizer_init(&detok, r->config.tok, true);
    detok.keep = rules->mark;
    detok.keeps = rules->marks;
    for (int32_t i = HZP_MAX(from - TAIL, 0); i < to; i++) {
        HZP_TRY(hzp_detokenizer_feed(&detok, token[i], out));
        out->bytes = i < from ? 0 : out->bytes;
    }
    return hzp_detokenizer_flush(&detok, out);
}

/* The message of the newest turn; *ret_called: it ends with calls.  NULL: no memory. */
static json_t *read_turn(const struct hzp_rollouts *r, const json_t *tools,
                         const struct hzp_request *rq, bool *ret_called)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf before = {0}, text = {0};
    HZP_ENDED(hzp_reply_rules_fini) struct hzp_reply_rules rules = {.calls = HZP_CALLS_NONE};
    struct hzp_reply *reply = NULL;
    int32_t count, from = rq->prompt_count + hzp_rollout_turn_first(rq);
    HZP_FREED int32_t *token = hzp_rollout_tokens(rq, &count);
    int32_t first = HZP_MAX(from - TAIL, 0);
    bool ended = atomic_load(&rq->state) == HZP_REQUEST_STOPPED && rq->stop_token >= 0;
    int code =
        hzp_tokenizer_decode(r->config.tok, token + first, (size_t)(from - first), false, &before);
    hzp_reply_rules_set(&rules, r->config.chat, before.bytes ? before.data : "", before.bytes,
                        tools);
    hzp_reply_rules_find_marks(&rules, r->config.tok);
    if (code >= 0)
        code = turn_text(r, &rules, token, from, count - ended, &text);
    if (code >= 0)
        code = hzp_reply_create(&rules, &reply);
    if (code >= 0)
        code = hzp_reply_feed(reply, text.bytes ? text.data : "", text.bytes, true);
    *ret_called = hzp_reply_called(reply);
    json_t *ret = code < 0 ? NULL : hzp_reply_message(reply);
    hzp_reply_destroy(reply);
    return ret;
}

/* The model has ended its turn. */
static void end_turn(const struct hzp_rollouts *r, const struct hzp_rollout_spec *spec,
                     struct hzp_rollout_answer *a)
{
    const struct hzp_rollout_turns *turns = &spec->turns;
    bool called, stopped = atomic_load(&a->rq->state) == HZP_REQUEST_STOPPED;
    json_t *message = read_turn(r, turns->tools, a->rq, &called);
    bool more = stopped && ++a->turns < turns->most && (called || !json_array_size(turns->tools));
    if (!a->said)
        a->said = json_array();
    json_array_append_new(a->said, message);
    a->stage = !message ? HZP_TURN_LOST : more ? HZP_TURN_ASKED : HZP_TURN_OVER;
    a->asked_in = 0;
    a->deadline_ns = hzp_now_ns() + (uint64_t)((double)turns->seconds * 1e9);
}

/* ---- what follows ---- */

static const struct hzp_rollout_prompt *prompt_of(const struct hzp_rollout_job *job, int32_t row)
{
    return &job->spec.prompt[job->slot[row / job->spec.n].prompt];
}

json_t *hzp_rollout_messages(struct hzp_rollout_job *job, int32_t row)
{
    json_t *ret = hzp_json_copy(prompt_of(job, row)->messages);
    json_auto_t *said = hzp_json_copy(hzp_rollout_at(job, row)->said);
    json_array_extend(ret, said);
    return ret;
}

static json_t *calls_of(const struct hzp_rollout_answer *a)
{
    return json_object_get(json_array_get(a->said, json_array_size(a->said) - 1), "tool_calls");
}

json_t *hzp_rollout_turn(const struct hzp_rollout_answer *a)
{
    json_t *calls = hzp_json_copy(calls_of(a));
    return json_pack("{s:i, s:o}", "number", (int)a->turns, "calls", calls ? calls : json_array());
}

/* The tokens of what the template writes behind the answer: tokenised behind the token that ended
 * it, as in a text of both. */
static int encode(const struct hzp_rollouts *r, int32_t end_token, const struct hzp_textbuf *text,
                  struct hzp_tokens *out, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf both = {0};
    size_t bytes;
    const char *end = hzp_tokenizer_spelling(r->config.tok, end_token, &bytes);
    HZP_TRY(hzp_textbuf_append(&both, end, bytes));
    HZP_TRY(hzp_textbuf_append(&both, text->data, text->bytes));
    HZP_TRY(hzp_tokenizer_encode(r->config.tok, both.data, both.bytes, HZP_TOKENIZER_PARSE_SPECIAL,
                                 INT32_MAX, out, reterr));
    if (out->n && out->ids[0] == end_token) {
        memmove(out->ids, out->ids + 1, --out->n * sizeof(*out->ids));
        return HZP_OK;
    }
    out->n = 0;
    return hzp_tokenizer_encode(r->config.tok, text->data, text->bytes, HZP_TOKENIZER_PARSE_SPECIAL,
                                INT32_MAX, out, reterr);
}

/* The answer of this sample, which is ASKED, its job and its row; NULL: there is none any more. */
static struct hzp_rollout_answer *find_asked(struct hzp_rollouts *r, int64_t sample,
                                             struct hzp_rollout_job **ret_job, int32_t *ret_row)
{
    struct hzp_rollout_job *job = *ret_job = hzp_rollout_running(r);
    int32_t row = *ret_row = hzp_rollout_find(r, sample);
    struct hzp_rollout_answer *a = row < 0 ? NULL : hzp_rollout_at(job, row);
    return a && a->stage == HZP_TURN_ASKED ? a : NULL;
}

/* Takes as long as messages are long, so the lock is released: it works on copies. */
static int encode_turn(struct hzp_rollouts *r, const struct hzp_rollout_job *job, int32_t row,
                       const struct hzp_rollout_answer *a, const json_t *messages,
                       struct hzp_tokens *out, struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
    json_auto_t *prompt = hzp_json_copy(prompt_of(job, row)->messages);
    json_auto_t *tools = hzp_json_copy(job->spec.turns.tools), *calls = hzp_json_copy(calls_of(a));
    const struct hzp_chat_request request = {.messages = prompt, .tools = tools};
    int32_t end_token = a->rq->stop_token;
    hzp_lock_release(&r->lock);
    int code = json_array_size(messages) ? hzp_chat_turn(r->config.chat, &request, calls, messages,
                                                         r->ends, &text, reterr)
                                         : HZP_OK;
    if (code >= 0 && text.bytes)
        code = encode(r, end_token, &text, out, reterr);
    /* What the template does not show would be kept, too. */
    if (code >= 0 && json_dumpb(messages, NULL, 0, JSON_COMPACT) >
                         HZP_ROLLOUT_BESIDE * (out->n + HZP_ROLLOUT_BESIDE))
        code = hzp_wrong(reterr, "messages", "have more than the model's chat template shows");
    hzp_lock_take(&r->lock);
    return code;
}

int hzp_rollout_give(struct hzp_rollouts *r, int64_t sample, const json_t *messages,
                     struct hzp_err_text *reterr)
{
    HZP_ENDED(hzp_tokens_fini) struct hzp_tokens given = {NULL, 0, 0};
    struct hzp_rollout_job *job;
    int32_t row;
    struct hzp_rollout_answer *a = find_asked(r, sample, &job, &row);
    if (!json_is_array(messages))
        return hzp_wrong(reterr, "messages", "must be a list, empty where nothing follows");
    if (a)
        HZP_TRY(encode_turn(r, job, row, a, messages, &given, reterr));
    a = a ? find_asked(r, sample, &job, &row) : NULL;
    if (!a)
        return hzp_fail(reterr, HZP_ENOENT, "there is no sample %" PRId64 " whose turn is asked",
                        sample);
    size_t room = (size_t)(job->spec.max_tokens - atomic_load(&a->rq->out_count));
    bool more = given.n && given.n < room;
    json_auto_t *said = more ? hzp_json_copy(messages) : NULL;
    struct hzp_tokens before = a->given;
    json_array_extend(a->said, said);
    a->given = given;
    given = before;
    job->turns += more;
    a->stage = more ? HZP_TURN_GIVEN : HZP_TURN_OVER;
    a->sample = ++r->last_sample; /* its row is another one: who had the turn can have the answer */
    return HZP_OK;
}

/* ---- the environment ---- */

static void take_line(struct hzp_rollouts *r, int64_t sample, const json_t *line)
{
    struct hzp_err_text err = {.text = ""};
    struct hzp_rollout_job *job;
    char why[160];
    int32_t row;
    int code = line ? hzp_rollout_give(r, sample, json_object_get(line, "messages"), &err) : HZP_OK;
    struct hzp_rollout_answer *a = find_asked(r, sample, &job, &row);
    if (!a) /* it was given, or no request waits for it any more */
        return;
    a->stage = HZP_TURN_LOST;
    if (line && code < 0) {
        snprintf(why, sizeof(why), "has answered wrongly: %.120s", err.text);
        hzp_judge_reject(r->tools, why);
    }
}

/* False: the command takes no further question now. */
static bool ask(struct hzp_rollouts *r, struct hzp_rollout_job *job, int32_t row)
{
    struct hzp_rollout_answer *a = hzp_rollout_at(job, row);
    if (a->asked_in && a->asked_in == hzp_judge_round(r->tools))
        return true;
    json_auto_t *question = json_pack("{s:o, s:o, s:s?}", "turn", hzp_rollout_turn(a), "messages",
                                      hzp_rollout_messages(job, row), "answer",
                                      (const char *)prompt_of(job, row)->reference);
    bool asked = hzp_judge_ask(r->tools, a->sample, question, (double)job->spec.turns.seconds);
    a->asked_in = asked ? hzp_judge_round(r->tools) : 0;
    return asked;
}

int hzp_rollout_converse(struct hzp_rollouts *r, struct hzp_rollout_job *job,
                         struct hzp_err_text *reterr)
{
    const struct hzp_rollout_turns *turns = &job->spec.turns;
    bool client = turns->client, more = true;
    int64_t sample;
    json_t *line;
    while (turns->most && !client && hzp_judge_next(r->tools, &sample, &line)) {
        take_line(r, sample, line);
        json_decref(line);
    }
    for (int32_t i = 0; turns->most && i < job->table.room * job->spec.n; i++) {
        struct hzp_rollout_answer *a = hzp_rollout_at(job, i);
        int32_t at = i / job->spec.n, m = i % job->spec.n;
        bool open = job->table.group[at].member[m].state == HZP_MEMBER_OPEN;
        if (!open || !a->rq || !hzp_request_final(a->rq) || !hzp_rollout_is_answer(a->rq))
            continue;
        if (a->stage == HZP_TURN_WRITING)
            end_turn(r, &job->spec, a);
        if (a->stage == HZP_TURN_ASKED && !client)
            more = more && ask(r, job, i);
        else if (a->stage == HZP_TURN_ASKED && hzp_now_ns() > a->deadline_ns)
            a->stage = HZP_TURN_LOST;
        if (a->stage != HZP_TURN_GIVEN)
            continue;
        int code = hzp_rollout_submit(r, job, at, m, reterr);
        if (code < 0 && code != HZP_EBUSY)
            return code;
        a->stage = code < 0 ? HZP_TURN_GIVEN : HZP_TURN_WRITING;
    }
    return turns->most && !client ? hzp_judge_check(r->tools, reterr) : HZP_OK;
}
