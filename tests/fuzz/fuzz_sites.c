/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as messages between sites: they are refused, or the rounds take them, in any order.
 * Each message is two bytes of length, one that says whether its check is made right, and its
 * bytes. */
#include "tests/fuzz/smoke.h"
#include "train/sites/rounds.h"

#include <string.h>

static bool send_none(void *ctx, int site, const void *data, size_t bytes)
{
    struct hzp_site_header h;
    const void *payload;
    struct hzp_rounds_config *config = ctx;
    if (hzp_site_read(data, bytes, &config->limits, &h, &payload, NULL) < 0)
        abort(); /* what a site says, another can read */
    return bytes % 3 > 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hzp_site_parts parts;
    struct hzp_site_rounds *r;
    hzp_site_parts_make(9, 0.5, 1, &parts);
    struct hzp_rounds_config config = {.limits = {7, 3, &parts},
                                       .self = 1,
                                       .coding = HZP_SITE_INT8,
                                       .every = 1,
                                       .quorum = 2,
                                       .join = 1,
                                       .limit_ns = 5000000000,
                                       .send = send_none,
                                       .ctx = &config};
    if (hzp_rounds_create(&config, &r) < 0)
        abort();
    uint64_t now = 1000000000;
    for (int64_t updates = 1; size >= 3; updates++) {
        size_t bytes = HZP_MIN((size_t)data[0] + (size_t)256 * (data[1] % 16), size - 3);
        char message[HZP_SITE_MESSAGE_MAX] = {0};
        memcpy(message, data + 3, bytes);
        if (data[2] & 1 && bytes >= sizeof(struct hzp_site_header)) {
            struct hzp_site_header h;
            memcpy(&h, message, sizeof(h));
            h.mesh = 7;
            h.kind = (uint8_t)(h.kind % 6);
            h.count = h.count & 7;
            h.coding &= 1;
            bytes = hzp_site_seal(message, &h, NULL);
        }
        hzp_rounds_receive(r, message, bytes, now, NULL);
        const uint32_t *block;
        int64_t count;
        float *w = hzp_rounds_wants(r, &block, &count);
        if (w && data[2] & 2) {
            memset(w, 0, (size_t)count * HZP_SITE_BLOCK * sizeof(*w));
            hzp_rounds_sampled(r);
        }
        hzp_rounds_note(r, updates, updates);
        hzp_rounds_turn(r, now);
        if (hzp_rounds_ready(r, true) && data[2] & 4)
            hzp_rounds_applied(r, data[2] & 8);
        now += (uint64_t)(data[2] >> 4) * 100000000;
        size_t used = 3 + HZP_MIN((size_t)data[0] + (size_t)256 * (data[1] % 16), size - 3);
        data += used;
        size -= used;
    }
    hzp_rounds_destroy(r);
    hzp_site_parts_free(&parts);
    return 0;
}

/* Two bytes of length, the flags, and the header: magic, version, kind, coding, sender, then words
 * of eight bytes. */
#define HEADER(kind, coding, from, round, number, first, part, count)                              \
    "\x48\0\xff\0\0\0\0\1" kind coding from                                                        \
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" round                       \
    "\0\0\0\0\0\0\0" number "\0\0\0\0\0\0\0" first "\0\0\0\0\0\0\0" part "\0\0\0" count "\0\0\0"
#define HELLO(from) HEADER("\1", "\0", from, "\0", "\3", "\0", "\2", "\0")

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT(HELLO("\0") HELLO("\2")),
    /* this site leads: the others say hello, and have learned nothing */
    FUZZ_TEXT(HELLO("\2") HELLO("\2") HEADER("\4", "\1", "\2", "\1", "\0", "\0", "\0", "\0")
                  HELLO("\2")),
    /* site 0 leads: a round begins, it sends no blocks, and commits to its own */
    FUZZ_TEXT(HELLO("\0") HEADER("\2", "\0", "\0", "\1", "\0", "\0", "\0", "\0")
                  HEADER("\4", "\0", "\0", "\1", "\0", "\0", "\0", "\0")
                      HEADER("\5", "\0", "\0", "\1", "\0", "\0", "\0", "\0")),
    FUZZ_TEXT(HELLO("\0") HEADER("\2", "\0", "\0", "\1", "\0", "\0", "\0", "\0")
                  HEADER("\3", "\0", "\2", "\1", "\0", "\0", "\0", "\0")),
};

FUZZ_MAIN(seeds)
