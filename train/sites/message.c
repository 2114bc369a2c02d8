/* SPDX-License-Identifier: Apache-2.0 */
#include "train/sites/message.h"

#include "device/philox.h"

static const uint32_t magic = 0x535a4831; /* "1HZS" */

static uint64_t sum_words(const void *data, size_t bytes)
{
    const char *at = data;
    uint64_t sum = bytes;
    for (size_t i = 0; i < bytes; i += sizeof(sum)) {
        uint64_t word = 0;
        memcpy(&word, at + i, HZP_MIN(sizeof(word), bytes - i));
        sum += hzp_audit_mix(i, word);
    }
    return sum;
}

uint64_t hzp_site_id(const float *agreed, size_t count)
{
    return sum_words(agreed, count * sizeof(*agreed));
}

static size_t payload_bytes(const struct hzp_site_header *h)
{
    size_t each = h->kind == HZP_SITE_PIECE    ? hzp_site_block_bytes(h->coding)
                  : h->kind == HZP_SITE_COMMIT ? sizeof(struct hzp_site_entry)
                                               : 0;
    return (size_t)h->count * each;
}

static uint64_t check_of(struct hzp_site_header h, const char *payload)
{
    h.check = 0;
    return hzp_audit_mix(sum_words(&h, sizeof(h)), sum_words(payload, payload_bytes(&h)));
}

size_t hzp_site_seal(void *data, const struct hzp_site_header *header, uint64_t *ret_check)
{
    struct hzp_site_header h = *header;
    h.magic = magic;
    h.version = HZP_SITE_VERSION;
    h.check = check_of(h, (char *)data + sizeof(h));
    memcpy(data, &h, sizeof(h));
    if (ret_check)
        *ret_check = h.check;
    return sizeof(h) + payload_bytes(&h);
}

/* NULL: its numbers are in their ranges. */
static const char *wrong_number(const struct hzp_site_header *h, const struct hzp_site_limits *l)
{
    bool hello = h->kind == HZP_SITE_HELLO, piece = h->kind == HZP_SITE_PIECE;
    int32_t most = hello                        ? 1
                   : piece                      ? HZP_SITE_PIECE_MAX
                   : h->kind == HZP_SITE_COMMIT ? l->sites
                                                : 0;
    int64_t blocks, last = INT32_MAX;
    if (h->kind < HZP_SITE_HELLO || h->kind > HZP_SITE_COMMIT)
        return "kind";
    if (h->coding > HZP_SITE_INT8)
        return "coding";
    if (h->from >= l->sites)
        return "sender";
    if (h->round < !hello || h->round > INT64_MAX / 2)
        return "round";
    if (h->part < 0 || h->part >= l->parts->parts + hello)
        return "part";
    if (h->number < 0 || (piece && h->number > (int64_t)HZP_SITE_WEIGHT * HZP_SITE_RAMP))
        return "weight";
    if (h->count < 0 || h->count > most)
        return "count";
    if (piece) {
        hzp_site_part(l->parts, h->part, &blocks);
        last = blocks - h->count;
    }
    return h->first < 0 || h->first > last ? "place" : NULL;
}

/* Ascending sites, each with a weight. */
static bool right_entries(const char *payload, int32_t count, int sites)
{
    struct hzp_site_entry entry;
    int64_t before = -1;
    for (int32_t i = 0; i < count; i++) {
        memcpy(&entry, payload + (size_t)i * sizeof(entry), sizeof(entry));
        if (entry.from <= before || entry.from >= sites || entry.weight < 1 ||
            entry.weight > (int64_t)HZP_SITE_WEIGHT * HZP_SITE_RAMP)
            return false;
        before = entry.from;
    }
    return true;
}

int hzp_site_read(const void *data, size_t bytes, const struct hzp_site_limits *limits,
                  struct hzp_site_header *ret, const void **ret_payload,
                  struct hzp_err_text *reterr)
{
    const char *payload = (const char *)data + sizeof(*ret), *wrong;
    if (bytes < sizeof(*ret))
        return hzp_fail(reterr, HZP_EFORMAT, "it has %zu bytes", bytes);
    memcpy(ret, data, sizeof(*ret));
    *ret_payload = payload;
    if (ret->magic != magic || ret->version != HZP_SITE_VERSION)
        return hzp_fail(reterr, HZP_EFORMAT, "it is no message of sites, version %d",
                        HZP_SITE_VERSION);
    if (ret->mesh != limits->mesh)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "its sender has another model, other addresses or another rule");
    if ((wrong = wrong_number(ret, limits)))
        return hzp_fail(reterr, HZP_EFORMAT, "its %s cannot be", wrong);
    if (bytes != sizeof(*ret) + payload_bytes(ret) || ret->check != check_of(*ret, payload))
        return hzp_fail(reterr, HZP_EFORMAT, "it was damaged");
    if (ret->kind == HZP_SITE_COMMIT && !right_entries(payload, ret->count, limits->sites))
        return hzp_fail(reterr, HZP_EFORMAT, "its list of sites cannot be");
    return HZP_OK;
}
