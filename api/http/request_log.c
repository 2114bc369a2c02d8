/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/request_log.h"

#include "api/http/completion.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void hzp_request_id(const char *given, char ret[HZP_REQUEST_ID_MAX + 1])
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "-_.:~+/=";
    size_t n = given ? strspn(given, allowed) : 0;
    if (n && n <= HZP_REQUEST_ID_MAX && !given[n]) {
        memcpy(ret, given, n + 1);
        return;
    }
    uint64_t word[2] = {hzp_now_ns(), 0};
    if (getrandom(word, sizeof(word), 0) < 0)
        word[1] = (uintptr_t)ret;
    snprintf(ret, HZP_REQUEST_ID_MAX + 1, "%016llx%016llx", (unsigned long long)word[0],
             (unsigned long long)word[1]);
}

static void log_end(const struct hzp_request_info *info, int status, const char *more)
{
    bool polled = !strcmp(info->method, "GET") && status && status < 400;
    hzp_log(polled ? HZP_LOG_DEBUG : HZP_LOG_INFO, "http",
            "request id=%s key=%s method=%s route=%s status=%d ms=%.1f%s", info->id, info->key,
            info->method, info->route, status, (double)(hzp_now_ns() - info->begin_ns) * 1e-6,
            more);
}

void hzp_request_log(const struct hzp_request_info *info, int status)
{
    log_end(info, status, status ? "" : " finish=abort");
}

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
    const char *finish = "stop"; /* of several, the first that is something else */
    for (int32_t i = 0; i < c->choices && !strcmp(finish, "stop"); i++)
        finish = hzp_choice_end(c, &c->choice[i]);
    describe_tokens(info, c, tokens, sizeof(tokens));
    struct hzp_usage usage = hzp_completion_usage(c);
    snprintf(more, sizeof(more), " stream=%d choices=%d prompt_tokens=%lld tokens=%lld%s finish=%s",
             c->params.stream, c->choices, (long long)usage.prompt, (long long)usage.generated,
             tokens, finish);
    log_end(info, status, more);
}
