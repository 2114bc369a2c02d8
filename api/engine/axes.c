/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/axes.h"

/* A link between `count` of all ranks: first, first + each, and so on. */
static int open_axis(struct hzp_link *all, int first, int each, int count, struct hzp_link **ret,
                     struct hzp_err_text *reterr)
{
    int rank[HZP_LINK_RANKS_MAX];
    for (int i = 0; i < count; i++)
        rank[i] = first + i * each;
    HZP_TRY(hzp_link_split(all, ret, reterr));
    return hzp_link_narrow(*ret, rank, count, reterr);
}

static int open_axes(const struct hzp_axes_config *c, struct hzp_axes *a,
                     struct hzp_err_text *reterr)
{
    int ranks = c->slice.ranks, groups = hzp_link_ranks(c->all) / ranks;
    if (groups == 1) {
        a->group = c->all;
        return HZP_OK;
    }
    int first = hzp_link_rank(c->all) - c->slice.rank;
    HZP_TRY(open_axis(c->all, first, 1, ranks, &a->group, reterr));
    HZP_TRY(open_axis(c->all, c->slice.rank, ranks, groups, &a->work, reterr));
    return hzp_rank_link_open(a->work, c->dev, c->ranks, false, HZP_RANK_STEPS, &a->data, reterr);
}

/* Plans say whether serving's collectives have a lane of their own; training's have none. */
int hzp_axes_open(const struct hzp_axes_config *c, struct hzp_axes *ret,
                  struct hzp_err_text *reterr)
{
    ret->all = c->all;
    HZP_TRY(open_axes(c, ret, reterr));
    HZP_TRY(hzp_link_split(ret->group, &ret->steps, reterr));
    HZP_TRY(hzp_rank_link_open(ret->group, c->dev, c->ranks, false,
                               c->own_lane ? HZP_RANK_LANE : HZP_RANK_STEPS, &ret->tensor, reterr));
    ret->tensor_train = ret->tensor;
    return c->learns ? hzp_rank_link_open(ret->group, c->dev, c->ranks, false, HZP_RANK_STEPS,
                                          &ret->tensor_train, reterr)
                     : HZP_OK;
}

int32_t hzp_axes_count(const struct hzp_axes *a)
{
    return (a->tensor != NULL) + (a->tensor_train != a->tensor) + (a->data != NULL);
}

void hzp_axes_check(struct hzp_axes *a)
{
    struct hzp_link *link[] = {a->tensor, a->tensor_train, a->data};
    for (int i = 0; i < HZP_COUNT(link); i++)
        if (link[i])
            hzp_link_check(link[i], NULL);
}

void hzp_axes_close_steps(struct hzp_axes *a)
{
    if (a->tensor_train != a->tensor)
        hzp_link_close(a->tensor_train);
    if (a->tensor != a->all)
        hzp_link_close(a->tensor);
    hzp_link_close(a->data);
    hzp_link_close(a->steps);
    a->steps = a->tensor = a->tensor_train = a->data = NULL;
}

void hzp_axes_close(struct hzp_axes *a)
{
    hzp_link_close(a->work);
    if (a->group != a->all)
        hzp_link_close(a->group);
    a->work = a->group = NULL;
}
