/* SPDX-License-Identifier: Apache-2.0 */
#include "train/deal.h"

#include <string.h>

size_t hzp_deal_bytes(int32_t count)
{
    size_t n = (size_t)count;
    return (2 + n) * sizeof(int32_t) + HZP_ROUND_UP(n, sizeof(int32_t));
}

char *hzp_deal_put(char *at, const struct hzp_sample *sample, int32_t bin)
{
    const int32_t head[2] = {sample->count, bin};
    size_t n = (size_t)sample->count;
    char *tokens = at + sizeof(head), *learn = tokens + n * sizeof(int32_t);
    memcpy(at, head, sizeof(head));
    memcpy(tokens, sample->token, n * sizeof(int32_t));
    memset(learn, 0, HZP_ROUND_UP(n, sizeof(int32_t)));
    memcpy(learn, sample->learn, n);
    return at + hzp_deal_bytes(sample->count);
}

const char *hzp_deal_get(const char *at, const char *end, int32_t bins, struct hzp_deal_doc *ret)
{
    int32_t head[2];
    if (end - at < (ptrdiff_t)sizeof(head))
        return NULL;
    memcpy(head, at, sizeof(head));
    if (head[0] < 2 || head[1] < 0 || head[1] >= bins ||
        (size_t)(end - at) < hzp_deal_bytes(head[0]))
        return NULL;
    ret->count = head[0];
    ret->bin = head[1];
    ret->token = (const int32_t *)(const void *)(at + sizeof(head));
    ret->learn = (const uint8_t *)(ret->token + ret->count);
    return at + hzp_deal_bytes(ret->count);
}
