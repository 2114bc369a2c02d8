/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/step_link.h"

/* Bytes of the first broadcast: enough for a step that decodes some eighty sequences. */
enum { FIRST = 8192, DREW = 4 };

struct hzp_step_link {
    struct hzp_step_link_config config;
    struct hzp_step_pages pages;
    uint64_t step; /* the newest record's */
    struct {
        uint64_t step, hash;
    } drew[DREW];    /* step n is drew[n % DREW] */
    uint64_t newest; /* the newest of those steps */
    struct {
        char *data;               /* [room] */
        hzp_ticket first, second; /* its parts; 0: not posted */
    } record[2];                  /* step n is record[n % 2] */
    size_t room;
};

struct hzp_step_link *hzp_step_link_create(const struct hzp_step_link_config *config)
{
    struct hzp_step_link *l = hzp_xcalloc(1, sizeof(*l));
    size_t room = hzp_step_record_room(&config->max, &config->limits);
    l->config = *config;
    l->room = HZP_MAX(room, (size_t)FIRST);
    for (int i = 0; i < HZP_COUNT(l->record); i++)
        l->record[i].data = hzp_xcalloc(1, l->room);
    hzp_step_pages_init(&l->pages, config->limits.lines, config->max.page_stride);
    return l;
}

void hzp_step_link_destroy(struct hzp_step_link *l)
{
    if (!l)
        return;
    hzp_step_pages_fini(&l->pages);
    for (int i = 0; i < HZP_COUNT(l->record); i++)
        free(l->record[i].data);
    free(l);
}

const struct hzp_step_limits *hzp_step_link_limits(const struct hzp_step_link *l)
{
    return &l->config.limits;
}

/* Posts bytes [from, from + bytes) of the record of a step; *ret is 0 if there are none. */
static int post(struct hzp_step_link *l, uint64_t step, size_t from, size_t bytes, hzp_ticket *ret,
                struct hzp_err_text *reterr)
{
    struct hzp_transfer transfer = {.op = HZP_BROADCAST,
                                    .type = HZP_WIRE_BYTE,
                                    .count = bytes,
                                    .recv = l->record[step % 2].data + from,
                                    .idle = true,
                                    .host = true,
                                    .tag = 2 * step + (from > 0)};
    *ret = 0;
    return bytes ? hzp_link_post(l->config.link, &transfer, ret, reterr) : HZP_OK;
}

/* Until both parts of the record of a step have been sent or received. */
static int wait_for(struct hzp_step_link *l, uint64_t step, struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_link_wait(l->config.link, l->record[step % 2].first, reterr));
    return hzp_link_wait(l->config.link, l->record[step % 2].second, reterr);
}

int hzp_step_link_send(struct hzp_step_link *l, struct hzp_step_record *record,
                       const struct hzp_batch *batch, struct hzp_err_text *reterr)
{
    const uint64_t step = l->step + 1;
    HZP_ASSERT(record->step == step);
    record->drawn_step = l->newest;
    record->drawn = l->newest ? l->drew[l->newest % DREW].hash : 0;
    HZP_TRY(wait_for(l, step, reterr)); /* the record of step - 2 has the same memory */
    size_t bytes = hzp_step_record_write(record, batch, &l->config.limits, &l->pages,
                                         l->record[step % 2].data);
    HZP_TRY(post(l, step, 0, FIRST, &l->record[step % 2].first, reterr));
    HZP_TRY(post(l, step, FIRST, bytes > FIRST ? bytes - FIRST : 0, &l->record[step % 2].second,
                 reterr));
    l->step = step;
    return record->end ? wait_for(l, step, reterr) : HZP_OK;
}

void hzp_step_link_drew(struct hzp_step_link *l, uint64_t step, const struct hzp_batch *batch)
{
    l->drew[step % DREW].step = step;
    l->drew[step % DREW].hash = hzp_step_drawn(batch);
    l->newest = step;
}

/* Posts the receive of the next record, if that was not done yet. */
static int expect(struct hzp_step_link *l, struct hzp_err_text *reterr)
{
    const uint64_t step = l->step + 1;
    hzp_ticket *first = &l->record[step % 2].first;
    return *first ? HZP_OK : post(l, step, 0, FIRST, first, reterr);
}

int hzp_step_link_arrived(struct hzp_step_link *l, struct hzp_err_text *reterr)
{
    HZP_TRY(expect(l, reterr));
    return hzp_link_poll(l->config.link, l->record[(l->step + 1) % 2].first, reterr);
}

static int receive(struct hzp_step_link *l, size_t *ret_bytes, struct hzp_err_text *reterr)
{
    const uint64_t step = l->step + 1;
    HZP_TRY(expect(l, reterr));
    HZP_TRY(hzp_link_wait(l->config.link, l->record[step % 2].first, reterr));
    HZP_TRY(hzp_step_record_bytes(l->record[step % 2].data, l->room, ret_bytes, reterr));
    HZP_TRY(post(l, step, FIRST, *ret_bytes > FIRST ? *ret_bytes - FIRST : 0,
                 &l->record[step % 2].second, reterr));
    HZP_TRY(wait_for(l, step, reterr));
    l->record[step % 2].first = 0;
    return HZP_OK;
}

int hzp_step_link_compare(const struct hzp_step_link *l, const struct hzp_step_record *record,
                          struct hzp_err_text *reterr)
{
    uint64_t n = record->drawn_step;
    if (!n)
        return HZP_OK;
    if (l->drew[n % DREW].step != n)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "the record of step %llu tells of the tokens of step %llu, which this rank "
                        "does not know",
                        (unsigned long long)record->step, (unsigned long long)n);
    if (l->drew[n % DREW].hash != record->drawn)
        return hzp_fail(reterr, HZP_EINVAL,
                        "drew other tokens in step %llu than rank 0: they do not compute the same",
                        (unsigned long long)n);
    return HZP_OK;
}

int hzp_step_link_receive(struct hzp_step_link *l, const struct hzp_batch *before,
                          struct hzp_step_record *ret, struct hzp_batch *batch,
                          struct hzp_err_text *reterr)
{
    size_t bytes;
    HZP_TRY(receive(l, &bytes, reterr));
    HZP_TRY(hzp_step_record_read(l->record[(l->step + 1) % 2].data, bytes, &l->config.limits,
                                 &l->pages, before, ret, batch, reterr));
    if (ret->step != l->step + 1)
        return hzp_fail(reterr, HZP_EFORMAT,
                        "the record of step %llu comes after that of step %llu",
                        (unsigned long long)ret->step, (unsigned long long)l->step);
    l->step++;
    return ret->end ? HZP_OK : expect(l, reterr);
}

int hzp_step_link_check(const struct hzp_step_link *l, struct hzp_err_text *reterr)
{
    return hzp_link_check(l->config.link, reterr);
}

int hzp_step_link_check_late(const struct hzp_step_link *l, struct hzp_err_text *reterr)
{
    int r = hzp_step_link_check(l, reterr);
    for (int looks = 100; looks > 0 && r == HZP_OK; looks--) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        r = hzp_step_link_check(l, reterr);
    }
    return r;
}

void hzp_step_link_fail(struct hzp_step_link *l, const char *why)
{
    hzp_link_abort(l->config.link, hzp_link_rank(l->config.link), why);
}
