/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/answer.h"

#include "base/hash.h"

static const char resume_header[] = "x-hzpserve-resume";

/* Reads a header's number of seconds.  False: it is none. */
static bool read_seconds(const char *text, int64_t *ret)
{
    char *end;
    errno = 0;
    *ret = strtoll(text, &end, 10);
    return isdigit((unsigned char)*text) && !*end && !errno;
}

/* ---- writing ---- */

static int write_choice(struct hzp_answer *a, struct hzp_choice *choice)
{
    char line[128];
    for (; choice->noted < choice->seen; choice->noted++) {
        const struct hzp_output *out = &choice->rq->out[choice->noted];
        int bytes = snprintf(line, sizeof(line), ": hzp t %d %d %d %" PRIu64 " %" PRIu64 " %a\n",
                             choice->index, out->token, out->rank, out->version,
                             out->prompt_version, (double)out->logprob);
        HZP_TRY(hzp_textbuf_append(&a->out, line, (size_t)bytes));
    }
    if (!choice->closed || choice->noted_end)
        return HZP_OK;
    choice->noted_end = true;
    int bytes = snprintf(line, sizeof(line), ": hzp c %d\n", choice->index);
    return hzp_textbuf_append(&a->out, line, (size_t)bytes);
}

int hzp_journal_write(struct hzp_answer *a, bool events)
{
    size_t before = a->out.bytes;
    for (int32_t i = 0; i < a->c->choices; i++)
        HZP_TRY(write_choice(a, &a->c->choice[i]));
    if (a->out.bytes == before && !events && !a->done)
        return HZP_OK;
    const char *line = a->done ? ": hzp d\n" : ": hzp g\n";
    return hzp_textbuf_append(&a->out, line, strlen(line));
}

/* ---- reading ---- */

static int wrong(struct hzp_err_text *reterr, const char *what)
{
    return hzp_wrong(reterr, resume_header, ": %s", what);
}

/* A blank and a number, in one line. */
static bool read_number(const char **at, int64_t low, int64_t high, int64_t *ret)
{
    char *end;
    const char *digit = *at + 1 + ((*at)[0] == ' ' && (*at)[1] == '-');
    if (**at != ' ' || !isdigit((unsigned char)*digit))
        return false;
    errno = 0;
    *ret = strtoll(*at + 1, &end, 10);
    *at = end;
    return !errno && *ret >= low && *ret <= high;
}

/* The numbers of a line t behind the choice's. */
static bool read_output(const char **at, int32_t vocab, struct hzp_output *ret)
{
    int64_t token, rank, version, prompt_version;
    char *end;
    if (!read_number(at, 0, vocab - 1, &token) || !read_number(at, INT32_MIN, INT32_MAX, &rank) ||
        !read_number(at, 0, INT64_MAX, &version) ||
        !read_number(at, 0, INT64_MAX, &prompt_version) || **at != ' ' ||
        isspace((unsigned char)(*at)[1]))
        return false;
    *ret = (struct hzp_output){.token = (int32_t)token,
                               .rank = (int32_t)rank,
                               .version = (uint64_t)version,
                               .prompt_version = (uint64_t)prompt_version,
                               .logprob = strtof(*at + 1, &end)};
    bool any = end > *at + 1;
    *at = end;
    return any && !isnan(ret->logprob);
}

/* Reads a line from *at on.  NULL, or what is wrong with it. */
static const char *read_line(struct hzp_completion *c, const char **at)
{
    static const char token_line[] = ": hzp t", end_line[] = ": hzp c";
    size_t prefix = sizeof(token_line) - 1;
    bool token = !strncmp(*at, token_line, prefix);
    int64_t index;
    if (!token && strncmp(*at, end_line, prefix) != 0)
        return "a line is neither a token's nor a choice's end";
    *at += prefix;
    if (!read_number(at, 0, c->choices - 1, &index))
        return "there is no such choice";
    struct hzp_choice *choice = &c->choice[index];
    struct hzp_request *rq = choice->rq;
    if (choice->closed)
        return "the choice has ended";
    choice->closed = !token;
    if (token) {
        int32_t n = atomic_load(&rq->out_count); /* nothing but this writes it before submit */
        if (n == rq->max_tokens)
            return "a choice has more than max_tokens";
        if (!read_output(at, c->engine->parts.config.vocab, &rq->out[n]))
            return "a token's numbers are malformed";
        atomic_store(&rq->out_count, n + 1);
    }
    return *(*at)++ == '\n' ? NULL : "a line has more than it should";
}

/* The choice ended in another process, which has shown its end. */
static void close_choice(struct hzp_completion *c, struct hzp_choice *choice)
{
    struct hzp_request *rq = choice->rq;
    choice->seen = choice->sent_tokens = atomic_load(&rq->out_count);
    choice->finish = choice->seen == rq->max_tokens ? HZP_FINISH_LENGTH : HZP_FINISH_STOP;
    choice->opened = true;
    c->open--;
}

static int resume(struct hzp_answer *a, struct hzp_err_text *reterr)
{
    struct hzp_completion *c = a->c;
    const char *at = a->x->body, *end = at + a->x->journal, *fault = NULL;
    if (!c->params.stream)
        return wrong(reterr, "the answer is not a stream");
    /* The last line ends within the journal, so none is read beyond it. */
    if (at < end && end[-1] != '\n')
        return wrong(reterr, "the last line is not whole");
    while (at < end && !fault)
        fault = read_line(c, &at);
    if (fault)
        return wrong(reterr, fault);
    for (int32_t i = 0; i < c->choices; i++) {
        struct hzp_choice *choice = &c->choice[i];
        choice->rq->submitted_ns = hzp_now_ns();
        choice->rq->again = true;
        if (choice->closed)
            close_choice(c, choice);
        else if (choice->rq->max_tokens &&
                 atomic_load(&choice->rq->out_count) == choice->rq->max_tokens)
            return wrong(reterr, "a choice has max_tokens, but not its end");
    }
    hzp_stream_replay(a);
    for (int32_t i = 0; i < c->choices; i++) {
        struct hzp_choice *choice = &c->choice[i];
        if (choice->finish != HZP_FINISH_NONE && !choice->closed)
            return wrong(reterr, "a choice's tokens have ended it, which is not said");
        choice->noted = choice->seen;
        choice->noted_end = choice->closed;
    }
    return HZP_OK;
}

int hzp_journal_begin(struct hzp_answer *a, struct hzp_err_text *reterr)
{
    struct hzp_exchange *x = a->x;
    if (!x->server->relayed)
        return HZP_OK;
    const char *created = hzp_exchange_header(x, "x-hzpserve-created");
    int64_t seconds;
    if (created && read_seconds(created, &seconds))
        a->created = seconds;
    uint64_t seed = hzp_fnv(HZP_FNV, a->id, strlen(a->id));
    seed = hzp_fnv(seed, &a->created, sizeof(a->created));
    for (int32_t i = 0; i < a->c->choices; i++)
        if (a->c->choice[i].reply) /* ids of calls are told more than once */
            a->c->choice[i].reply->id_seed = hzp_fnv(seed, &i, sizeof(i)) | 1;
    return x->resumed ? resume(a, reterr) : HZP_OK;
}
