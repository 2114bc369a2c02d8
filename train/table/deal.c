/* SPDX-License-Identifier: Apache-2.0 */
#include "train/table/deal.h"

#include <string.h>

enum { HEAD = 3 /* words */ };

size_t hzp_deal_bytes(int32_t count, bool weighted)
{
    size_t n = (size_t)count;
    return (HEAD + (weighted ? 2 : 1) * n) * sizeof(int32_t) + HZP_ROUND_UP(n, sizeof(int32_t));
}

char *hzp_deal_put(char *at, const struct hzp_sample *sample, int32_t bin)
{
    bool weighted = sample->weight != NULL;
    const int32_t head[HEAD] = {sample->count, bin, weighted};
    size_t n = (size_t)sample->count, words = n * sizeof(int32_t);
    char *tokens = at + sizeof(head), *learn = tokens + (weighted ? 2 : 1) * words;
    memcpy(at, head, sizeof(head));
    memcpy(tokens, sample->token, words);
    if (weighted)
        memcpy(tokens + words, sample->weight, words);
    memset(learn, 0, HZP_ROUND_UP(n, sizeof(int32_t)));
    memcpy(learn, sample->learn, n);
    return at + hzp_deal_bytes(sample->count, weighted);
}

const char *hzp_deal_get(const char *at, const char *end, int32_t bins, struct hzp_deal_doc *ret)
{
    int32_t head[HEAD];
    if (end - at < (ptrdiff_t)sizeof(head))
        return NULL;
    memcpy(head, at, sizeof(head));
    if (head[0] < 2 || head[1] < 0 || head[1] >= bins || (head[2] != 0 && head[2] != 1) ||
        (size_t)(end - at) < hzp_deal_bytes(head[0], head[2]))
        return NULL;
    ret->count = head[0];
    ret->bin = head[1];
    ret->token = (const int32_t *)(const void *)(at + sizeof(head));
    const int32_t *behind = ret->token + ret->count;
    ret->weight = head[2] ? (const float *)(const void *)behind : NULL;
    ret->learn = (const uint8_t *)(behind + (head[2] ? ret->count : 0));
    return at + hzp_deal_bytes(ret->count, head[2]);
}
