/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/group.h"

#include "weights/tensor_slice.h"

/* ---- options ---- */

/* Whether the model can be cut into so many slices.  That of a configuration that cannot be read is
 * not known: whoever reads the model says what is wrong with the file. */
static int check_model(const struct hzp_engine_settings *s, int ranks, struct hzp_err_text *reterr)
{
    struct hzp_model_config config;
    struct hzp_err_text why = {0};
    if (!s->model.dir || hzp_config_read(s->model.dir, &config, NULL) < 0 ||
        hzp_tensor_slice_check(&config, ranks, &why) == HZP_OK)
        return HZP_OK;
    return hzp_wrong(reterr, "--tensor", "%d: %s", ranks, why.text);
}

int hzp_group_check(const struct hzp_engine_settings *s, int ranks, struct hzp_err_text *reterr)
{
    int tensor = (int)s->ranks.tensor;
    if (tensor <= 1)
        return HZP_OK;
    if (ranks % tensor)
        return hzp_wrong(reterr, "--tensor", "%d: there are %d ranks, which are not groups of %d",
                         tensor, ranks, tensor);
    if (!s->no_train && hzp_settings_moments(&s->training) == HZP_Q8)
        return hzp_wrong(reterr, "--moments",
                         "q8 cannot be used with --tensor: a rank's slice of a matrix has no whole "
                         "blocks of moments; bf16 can");
    return check_model(s, tensor, reterr);
}

/* ---- the start ---- */

int hzp_group_tell_start(struct hzp_link *link, struct hzp_group_start *start,
                         struct hzp_err_text *reterr)
{
    return hzp_link_broadcast(link, 0, start, sizeof(*start), sizeof(*start), reterr);
}

/* ---- numbers ---- */

static int gather(struct hzp_link *link, const int64_t *own, int count, int64_t *all,
                  struct hzp_err_text *reterr)
{
    return hzp_link_gather(link, own, (size_t)count * sizeof(*own), all, (uint64_t)count, reterr);
}

int hzp_group_compare(struct hzp_link *link, const struct hzp_group_number *number, int count,
                      struct hzp_err_text *reterr)
{
    int64_t own[HZP_GROUP_NUMBERS_MAX] = {0};
    int ranks = hzp_link_ranks(link);
    HZP_ASSERT(count <= HZP_GROUP_NUMBERS_MAX);
    for (int i = 0; i < count; i++)
        own[i] = number[i].value;
    HZP_FREED int64_t *all = hzp_xcalloc((size_t)ranks * (size_t)count, sizeof(*all));
    HZP_TRY(gather(link, own, count, all, reterr));
    for (int k = count; k < ranks * count; k++)
        if (all[k] != all[k % count])
            return hzp_fail(reterr, HZP_EINVAL,
                            "rank %d has %s %" PRId64 ", rank 0 has %" PRId64
                            ": ranks that compute each step together need the same",
                            k / count, number[k % count].name, all[k], all[k % count]);
    return HZP_OK;
}

int hzp_group_agree_learning(struct hzp_link *link, bool learns, struct hzp_err_text *reterr)
{
    const struct hzp_group_number number = {"learning (1: yes, 0: --no-train)", learns};
    return hzp_group_compare(link, &number, 1, reterr);
}

int hzp_group_compare_word(struct hzp_link *link, const char *name, const char *word,
                           struct hzp_err_text *reterr)
{
    enum { WORDS = 2 };
    int ranks = hzp_link_ranks(link);
    int64_t own[WORDS] = {0};
    snprintf((char *)own, sizeof(own), "%s", word);
    HZP_FREED int64_t *all = hzp_xcalloc((size_t)ranks * WORDS, sizeof(*all));
    HZP_TRY(gather(link, own, WORDS, all, reterr));
    for (int k = 1; k < ranks; k++)
        if (memcmp(&all[k * WORDS], all, sizeof(own)) != 0)
            return hzp_fail(reterr, HZP_EINVAL,
                            "rank %d has %s %.15s, rank 0 has %.15s: ranks that compute each step "
                            "together need the same",
                            k, name, (const char *)&all[k * WORDS], (const char *)all);
    return HZP_OK;
}

int hzp_group_differs(struct hzp_link *link, int64_t value, int *ret_rank, int64_t ret_value[2],
                      struct hzp_err_text *reterr)
{
    int ranks = hzp_link_ranks(link);
    HZP_FREED int64_t *all = hzp_xcalloc((size_t)ranks, sizeof(*all));
    int r = gather(link, &value, 1, all, reterr);
    *ret_rank = 0;
    for (int k = 1; r == HZP_OK && k < ranks && !*ret_rank; k++)
        if (all[k] != all[0])
            *ret_rank = k;
    ret_value[0] = all[0];
    ret_value[1] = all[*ret_rank];
    return r;
}

int hzp_group_least(struct hzp_link *link, int64_t *value, struct hzp_err_text *reterr)
{
    int ranks = hzp_link_ranks(link);
    HZP_FREED int64_t *all = hzp_xcalloc((size_t)ranks, sizeof(*all));
    HZP_TRY(gather(link, value, 1, all, reterr));
    for (int k = 0; k < ranks; k++)
        *value = HZP_MIN(*value, all[k]);
    return HZP_OK;
}
