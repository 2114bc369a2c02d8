/* SPDX-License-Identifier: Apache-2.0 */
/* weights/tensor_save.c - rank 0 names the unit that it needs next, or its code when it has ended:
 * files may need a unit twice. */
#include "weights/tensor_save.h"

#include "base/arena.h"
#include "weights/model_dir.h"
#include "weights/tensor_slice.h"

#include <stdlib.h>

enum { TAG = 0x7361 };

struct save {
    struct hzp_device *dev;
    const struct hzp_units *units;
    struct hzp_link *link;
    struct hzp_layout whole;
    char *parts; /* [ranks] slices of the largest unit; others than rank 0: the same, to receive */
    char *unit;  /* rank 0: the whole one */
};

static int transfer(struct save *s, const struct hzp_transfer *t, struct hzp_err_text *reterr)
{
    hzp_ticket ticket;
    HZP_TRY(hzp_link_post(s->link, t, &ticket, reterr));
    return hzp_link_wait(s->link, ticket, reterr);
}

/* Rank 0 says which unit, or -1 - its negative code. */
static int tell(struct save *s, int64_t *what, struct hzp_err_text *reterr)
{
    struct hzp_transfer t = {.op = HZP_BROADCAST,
                             .type = HZP_WIRE_U64,
                             .count = 1,
                             .recv = what,
                             .host = true,
                             .tag = TAG};
    return transfer(s, &t, reterr);
}

/* Every rank's slice of unit u comes to s->parts. */
static int gather(struct save *s, int32_t u, struct hzp_err_text *reterr)
{
    struct hzp_unit_view view = hzp_unit_view(s->units, u);
    const void *mine;
    void *owned;
    int r = hzp_unit_read(s->dev, &view, &mine, &owned);
    if (r < 0) { /* the others wait for this rank's slice */
        hzp_link_abort(s->link, s->units->layout->slice.rank, "cannot copy a unit to host memory");
        return hzp_fail(reterr, r, "cannot copy unit %d to host memory", u);
    }
    struct hzp_transfer t = {.op = HZP_ALL_GATHER,
                             .type = HZP_WIRE_BYTE,
                             .count = hzp_unit_bytes(&view),
                             .send = mine,
                             .recv = s->parts,
                             .host = true,
                             .tag = TAG + 1};
    r = transfer(s, &t, reterr);
    free(owned);
    return r;
}

static int read_unit(void *ctx, int32_t u, const void **ret, struct hzp_err_text *reterr)
{
    struct save *s = ctx;
    const struct hzp_layout *mine = s->units->layout;
    size_t size = hzp_dtype_size(s->units->type);
    int64_t what = u;
    HZP_TRY(tell(s, &what, reterr));
    HZP_TRY(gather(s, u, reterr));
    for (int32_t rank = 0; rank < mine->slice.ranks; rank++) {
        /* slices differ in nothing but where they lie */
        struct hzp_layout slice;
        struct hzp_model_config config = s->whole.config;
        hzp_layout_make_slice(&config, (struct hzp_tensor_slice){rank, mine->slice.ranks}, &slice);
        hzp_tensor_slice_join(&s->whole, &slice, u, size,
                              s->parts + (size_t)rank * mine->unit[u].elements * size, s->unit);
        hzp_layout_free(&slice);
    }
    *ret = s->unit;
    return HZP_OK;
}

/* Sends what rank 0 asks for; returns its code. */
static int serve(struct save *s, struct hzp_err_text *reterr)
{
    for (;;) {
        int64_t what = 0;
        HZP_TRY(tell(s, &what, reterr));
        if (what < 0)
            return (int)(what + 1);
        HZP_ASSERT(what < s->units->layout->units);
        HZP_TRY(gather(s, (int32_t)what, reterr));
    }
}

static size_t largest(const struct hzp_layout *l)
{
    size_t ret = 0;
    for (int32_t u = 0; u < l->units; u++)
        ret = HZP_MAX(ret, l->unit[u].elements);
    return ret;
}

int hzp_tensor_save(const char *dir, struct hzp_device *dev, const struct hzp_units *units,
                    const struct hzp_model_config *whole, struct hzp_link *link,
                    const char *source_dir, struct hzp_err_text *reterr)
{
    struct save s = {.dev = dev, .units = units, .link = link};
    const struct hzp_tensor_slice *slice = &units->layout->slice;
    size_t size = hzp_dtype_size(units->type);
    HZP_ASSERT(hzp_link_ranks(link) == slice->ranks && hzp_link_rank(link) == slice->rank);
    bool writes = slice->rank == 0;
    hzp_layout_make(whole, &s.whole);
    s.parts = malloc((size_t)slice->ranks * largest(units->layout) * size);
    s.unit = writes ? calloc(largest(&s.whole), size) : NULL;
    int r = HZP_OK;
    if (!s.parts || (writes && !s.unit)) {
        r = hzp_fail(reterr, HZP_ENOMEM, "no memory for the slices of a unit");
        hzp_link_abort(link, slice->rank, "has no memory for the slices of a unit");
    } else if (!writes) {
        r = serve(&s, reterr);
    } else {
        struct hzp_unit_source source = {read_unit, &s};
        r = hzp_model_save_from(dir, &s.whole, units->type, &source, source_dir, reterr);
        int64_t what = (int64_t)r - 1;
        int told = tell(&s, &what, r < 0 ? NULL : reterr);
        r = r < 0 ? r : told;
    }
    free(s.parts);
    free(s.unit);
    hzp_layout_free(&s.whole);
    return r;
}
