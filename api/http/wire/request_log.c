/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/request_log.h"

#include "base/log.h"
#include "base/thread.h"

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

void hzp_request_log_more(const struct hzp_request_info *info, int status, const char *more)
{
    bool polled = !strcmp(info->method, "GET") && status && status < 400;
    hzp_log(polled ? HZP_LOG_DEBUG : HZP_LOG_INFO, "http",
            "request id=%s key=%s method=%s route=%s status=%d ms=%.1f%s", info->id, info->key,
            info->method, info->route, status, (double)(hzp_now_ns() - info->begin_ns) * 1e-6,
            more);
}

void hzp_request_log(const struct hzp_request_info *info, int status)
{
    hzp_request_log_more(info, status, status ? "" : " finish=abort");
}
