/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/completion_log.c - the line of the log for a completion. */
#include "api/http/routes/completion.h"
#include "api/http/wire/request_log.h"

/* Writes TTFT and versions of the completion's tokens; "" if it has none.  There is no TTFT where
 * another process computed the first token. */
static void describe_tokens(const struct hzp_request_info *info, const struct hzp_completion *c,
                            char *ret, size_t size)
{
    uint64_t first_ns = UINT64_MAX, oldest = UINT64_MAX, newest = 0;
    bool again = false;
    for (int32_t i = 0; i < c->choices; i++) {
        const struct hzp_choice *choice = &c->choice[i];
        if (!choice->seen)
            continue;
        const struct hzp_output *out = choice->rq->out;
        first_ns = HZP_MIN(first_ns, out[0].at_ns - HZP_MIN(out[0].at_ns, info->begin_ns));
        again |= !out[0].at_ns;
        oldest = HZP_MIN(oldest, out[0].version);
        newest = HZP_MAX(newest, out[choice->seen - 1].version);
    }
    char ttft[48] = "";
    if (!again)
        snprintf(ttft, sizeof(ttft), " ttft_ms=%.1f", (double)first_ns * 1e-6);
    ret[0] = 0;
    if (newest && newest == oldest)
        snprintf(ret, size, "%s versions=%llu", ttft, (unsigned long long)newest);
    else if (newest)
        snprintf(ret, size, "%s versions=%llu-%llu", ttft, (unsigned long long)oldest,
                 (unsigned long long)newest);
}

void hzp_request_completed(const struct hzp_request_info *info, int status,
                           const struct hzp_completion *c)
{
    char tokens[96], more[256];
    const char *finish = "stop"; /* with several, the first that is something else */
    for (int32_t i = 0; i < c->choices && !strcmp(finish, "stop"); i++)
        finish = hzp_choice_end(c, &c->choice[i]);
    describe_tokens(info, c, tokens, sizeof(tokens));
    struct hzp_usage usage = hzp_completion_usage(c);
    snprintf(more, sizeof(more), " stream=%d choices=%d prompt_tokens=%lld tokens=%lld%s finish=%s",
             c->params.stream, c->choices, (long long)usage.prompt, (long long)usage.generated,
             tokens, finish);
    hzp_request_log_more(info, status, more);
}
