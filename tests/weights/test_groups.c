/* SPDX-License-Identifier: Apache-2.0 */
/* tests/weights/test_groups.c - for every valid choice of groups of up to 64 ranks: shards tile,
 * nest and follow the order of the groups' members; and the sizes of memory and wire. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/fixture/units.h"
#include "weights/groups.h"

#include <stdlib.h>
#include <string.h>

static struct hzp_model_config config = {.family = "llama",
                                         .layers = 3,
                                         .width = 64,
                                         .inner = 96,
                                         .vocab = 500,
                                         .heads = {.heads = 4, .kv_heads = 2, .dim = 16},
                                         .positions = 64,
                                         .norm_eps = 1e-5f,
                                         .rope_theta = 10000,
                                         .tied = true,
                                         .disk_type = HZP_F32,
                                         .bos = -1};

/* Calls check for every valid triple of every number of ranks. */
static int each(int32_t ranks_max, void (*check)(const struct hzp_groups *g))
{
    int n = 0;
    for (int32_t ranks = 1; ranks <= ranks_max; ranks++)
        for (int32_t z1 = 1; z1 <= ranks; z1++)
            for (int32_t z2 = 1; z2 <= z1; z2++)
                for (int32_t z3 = 1; z3 <= z2; z3++) {
                    struct hzp_groups g = {ranks, z1, z2, z3};
                    bool valid = ranks % z1 == 0 && z1 % z2 == 0 && z2 % z3 == 0;
                    struct hzp_err_text text = {{0}, {0}};
                    assert_int_equal(hzp_groups_check(&g, &text), valid ? HZP_OK : HZP_EINVAL);
                    assert_int_equal(text.text[0] != 0, !valid);
                    if (!valid)
                        continue;
                    check(&g);
                    n++;
                }
    return n;
}

/* The positions of a level are 0 .. shards - 1, each held by ranks / shards ranks. */
static void check_positions(const struct hzp_groups *g)
{
    for (int level = 0; level < HZP_LEVEL_COUNT; level++) {
        int32_t holders[64] = {0}, shards = hzp_groups_shards(g, (enum hzp_level)level);
        for (int32_t r = 0; r < g->ranks; r++) {
            int32_t at = hzp_groups_position(g, (enum hzp_level)level, r);
            assert_true(at >= 0 && at < shards);
            holders[at]++;
        }
        for (int32_t i = 0; i < shards; i++)
            assert_int_equal(holders[i], g->ranks / shards);
    }
}

static void check_nesting(const struct hzp_groups *g)
{
    size_t room = hzp_groups_granule(g, true) * 3;
    for (int32_t r = 0; r < g->ranks; r++) {
        struct hzp_extent outer = {0, room};
        for (int level = 0; level < HZP_LEVEL_COUNT; level++) {
            struct hzp_extent span = hzp_groups_extent(g, (enum hzp_level)level, r, room);
            assert_true(span.first >= outer.first);
            assert_true(span.first + span.count <= outer.first + outer.count);
            assert_true(g->ranks == 1 || span.count % HZP_BLOCK_ELEMENTS == 0);
            outer = span;
        }
    }
}

/* What the members of a group hold, in their order, is one contiguous part: a gather or scatter
 * moves it without another permutation.  Every member lists the same group. */
static void check_group(const struct hzp_groups *g, enum hzp_group group, enum hzp_level inner,
                        enum hzp_level outer)
{
    size_t room = hzp_groups_granule(g, true) * 2;
    for (int32_t r = 0; r < g->ranks; r++) {
        int member[64], again[64];
        int32_t n = hzp_groups_members(g, group, r, member), me = -1;
        struct hzp_extent whole = hzp_groups_extent(g, outer, r, room);
        if (outer == inner) /* a group that has everything together */
            whole = (struct hzp_extent){0, room};
        assert_int_equal(whole.count, (size_t)n * hzp_groups_extent(g, inner, r, room).count);
        for (int32_t i = 0; i < n; i++) {
            struct hzp_extent span = hzp_groups_extent(g, inner, member[i], room);
            assert_int_equal(span.first, whole.first + (size_t)i * span.count);
            assert_int_equal(hzp_groups_members(g, group, member[i], again), n);
            assert_memory_equal(member, again, (size_t)n * sizeof(*member));
            me = member[i] == r ? i : me;
        }
        assert_true(me >= 0);
    }
}

static void check_groups(const struct hzp_groups *g)
{
    check_group(g, HZP_GROUP_PARAMS, HZP_LEVEL_PARAMS, HZP_LEVEL_PARAMS);
    check_group(g, HZP_GROUP_GRADS, HZP_LEVEL_GRADS, HZP_LEVEL_GRADS);
    check_group(g, HZP_GROUP_STATE, HZP_LEVEL_STATE, HZP_LEVEL_STATE);
    check_group(g, HZP_GROUP_SUM, HZP_LEVEL_STATE, HZP_LEVEL_GRADS);
    check_group(g, HZP_GROUP_REFRESH, HZP_LEVEL_STATE, HZP_LEVEL_PARAMS);
    check_group(g, HZP_GROUP_COPIES, HZP_LEVEL_RANKS, HZP_LEVEL_STATE);
    check_group(g, HZP_GROUP_RANKS, HZP_LEVEL_RANKS, HZP_LEVEL_RANKS);
    int member[64];
    assert_int_equal(hzp_groups_members(g, HZP_GROUP_RANKS, 0, member), g->ranks);
}

static void test_shards(void **state)
{
    assert_true(each(64, check_positions) > 1000);
    each(40, check_nesting);
    each(24, check_groups);
}

/* --- Sizes ------------------------------------------------------------------------------------ */

/* What the units of all buffers take, as they are laid out, is what the formula says. */
static void check_bytes(const struct hzp_groups *g)
{
    static const enum hzp_dtype types[] = {HZP_F32, HZP_BF16};
    for (int i = 0; i < HZP_COUNT(types); i++) {
        struct hzp_layout layout;
        hzp_layout_make(&config, &layout);
        hzp_layout_pad(&layout, hzp_groups_granule(g, false));
        const struct hzp_shards shards = {.groups = *g};
        struct hzp_groups_model model = hzp_groups_model(&shards, &layout);
        model.type = types[i];
        model.moment_type = HZP_F32;
        model.slots = 2;
        struct hzp_groups_bytes b = hzp_groups_bytes(g, &model);
        size_t largest = 0, tied = layout.unit[0].room;
        for (int32_t u = 1; u < layout.units; u++)
            largest = HZP_MAX(largest, layout.unit[u].room);
        assert_int_equal(model.largest, largest);
        assert_int_equal(model.tied, tied);
        assert_int_equal(b.weights,
                         2 * hzp_units_shard_bytes(&layout, types[i], &shards, HZP_LEVEL_PARAMS));
        assert_int_equal(b.grads,
                         hzp_units_shard_bytes(&layout, HZP_F32, &shards, HZP_LEVEL_GRADS));
        size_t state = 2 * hzp_units_shard_bytes(&layout, HZP_F32, &shards, HZP_LEVEL_STATE);
        if (types[i] == HZP_BF16)
            state += hzp_units_shard_bytes(&layout, HZP_I16, &shards, HZP_LEVEL_STATE);
        assert_int_equal(b.state, state);
        model.moment_type = HZP_Q8;
        size_t codes = hzp_units_shard_bytes(layout.codes, HZP_Q8, &shards, HZP_LEVEL_STATE);
        size_t scales = hzp_units_shard_bytes(layout.scales, HZP_F32, &shards, HZP_LEVEL_STATE);
        size_t planned = hzp_groups_bytes(g, &model).state - b.residuals;
        /* scales are padded to 16 in each unit */
        assert_in_range(planned, 2 * (codes + scales) - 128 * (size_t)layout.units,
                        2 * (codes + scales));
        assert_int_equal(b.fresh, g->z2 > 1 ? 8 * largest + 4 * tied : 0);
        assert_int_equal(b.gathered,
                         g->z3 > 1 ? hzp_dtype_size(types[i]) * (3 * largest + tied) : 0);
        hzp_layout_free(&layout);
    }
}

static void test_bytes(void **state)
{
    each(16, check_bytes);
}

/* The shards of all ranks, put side by side, are the whole unit, and their checksums add up to its
 * checksum. */
static void check_parts(const struct hzp_groups *g)
{
    struct hzp_layout layout;
    hzp_layout_make(&config, &layout);
    hzp_layout_pad(&layout, hzp_groups_granule(g, false));
    struct hzp_units whole = fixture_units(&layout, HZP_BF16), part;
    fixture_units_random(NULL, &whole, 7, 1);
    struct hzp_shards shards = {.groups = *g};
    uint64_t checksum, sum = 0, one;
    size_t elements = 0;
    assert_int_equal(hzp_units_checksum(NULL, &whole, &checksum), HZP_OK);
    void *memory = malloc(hzp_units_shard_bytes(&layout, HZP_BF16, &shards, HZP_LEVEL_STATE));
    for (int32_t r = 0; r < g->z1; r++) {
        shards.rank = r;
        hzp_units_init_shards(&part, &layout, HZP_BF16, memory, &shards, HZP_LEVEL_STATE);
        for (int32_t u = 0; u < layout.units; u++) {
            struct hzp_unit_view from = hzp_unit_view(&whole, u), to = hzp_unit_view(&part, u);
            elements += to.part.count;
            memcpy(to.base, (char *)from.base + 2 * to.part.first, hzp_unit_bytes(&to));
            if (to.part.count)
                assert_ptr_equal(hzp_unit_piece(&to, to.part.first, 1).ptr, to.base);
        }
        assert_int_equal(hzp_units_checksum(NULL, &part, &one), HZP_OK);
        sum += one;
        hzp_units_free(&part);
    }
    assert_int_equal(elements, layout.elements);
    assert_true(sum == checksum);
    free(memory);
    fixture_units_free(&whole);
    hzp_layout_free(&layout);
}

static void test_parts(void **state)
{
    each(8, check_parts);
}

/* --- Choosing --------------------------------------------------------------------------------- */

static const struct hzp_groups_model bf16 = {
    .type = HZP_BF16, .moment_type = HZP_F32, .slots = 2, .micros = 4};

static struct hzp_groups choose(struct hzp_groups given, size_t limit, int expected, char *text)
{
    struct hzp_layout layout;
    struct hzp_err_text err = {{0}, {0}};
    hzp_layout_make(&config, &layout);
    assert_int_equal(hzp_groups_choose(&given, &layout, &bf16, limit, NULL, &err), expected);
    if (text)
        strcpy(text, err.text);
    hzp_layout_free(&layout);
    return given;
}

static void test_choose(void **state)
{
    struct hzp_layout layout;
    hzp_layout_make(&config, &layout);
    /* Plenty of memory: only the optimizer state is sharded, which costs nothing on the wire. */
    struct hzp_groups g = choose((struct hzp_groups){.ranks = 4}, SIZE_MAX, HZP_OK, NULL);
    assert_true(g.z3 == 1 && g.z2 == 1 && g.z1 == 4);
    struct hzp_groups one = choose((struct hzp_groups){.ranks = 1}, SIZE_MAX, HZP_OK, NULL);
    assert_true(one.z3 == 1 && one.z2 == 1 && one.z1 == 1);
    /* Less and less of it: never less sent, never more memory than allowed, until nothing fits. */
    size_t limit = SIZE_MAX;
    double sent = 0;
    int steps = 0;
    for (;; steps++) {
        const struct hzp_shards shards = {.groups = g};
        struct hzp_groups_model m = hzp_groups_model(&shards, &layout), model = bf16;
        model.elements = m.elements;
        model.largest = m.largest;
        model.tied = m.tied;
        size_t bytes = hzp_groups_bytes(&g, &model).total;
        double update = hzp_groups_wire(&g, &model).update;
        assert_true(bytes <= limit && update >= sent);
        sent = update;
        limit = bytes - 1;
        struct hzp_groups next = {.ranks = 4};
        int r = hzp_groups_choose(&next, &layout, &bf16, limit, NULL, NULL);
        if (r == HZP_ENOMEM)
            break;
        assert_int_equal(r, HZP_OK);
        g = next;
    }
    assert_true(steps > 0);
    hzp_layout_free(&layout);
}

static void test_choose_given(void **state)
{
    char text[512];
    struct hzp_groups g = choose((struct hzp_groups){.ranks = 8, .z2 = 4}, SIZE_MAX, HZP_OK, NULL);
    assert_true(g.z2 == 4 && g.z1 % 4 == 0 && g.z3 == 1);
    choose((struct hzp_groups){.ranks = 8, .z2 = 3}, SIZE_MAX, HZP_EINVAL, text);
    assert_non_null(strstr(text, "--shard z2 3 does not divide --ranks 8"));
    choose((struct hzp_groups){.ranks = 8, .z1 = 4, .z2 = 8}, SIZE_MAX, HZP_EINVAL, text);
    assert_non_null(strstr(text, "--shard z2 8 does not divide --shard z1 4"));
    choose((struct hzp_groups){.ranks = 0}, SIZE_MAX, HZP_EINVAL, text);
    assert_non_null(strstr(text, "--ranks 0"));
    choose((struct hzp_groups){.ranks = 4}, 1000, HZP_ENOMEM, text);
    assert_non_null(strstr(text, "not enough memory for the shards"));
}

/* By hand, for P elements of two bytes with four micro-batches: z3 2, z2 4, z1 8 of 16 ranks. */
static void test_wire(void **state)
{
    struct hzp_groups g = {16, 8, 4, 2};
    struct hzp_groups_model m = bf16;
    m.elements = 1 << 20;
    const double p = 1 << 20;
    struct hzp_groups_wire wire = hzp_groups_wire(&g, &m);
    double micro = 2 * 2 * p / 2 + 4 * p * 3 / 4;
    assert_true(wire.micro == micro);
    assert_true(wire.update == 4 * micro + 4 * p / 4 / 2 + 2 * 4 * p / 8 / 2 + 2 * p / 2 * 3 / 4);
    struct hzp_groups one = {1, 1, 1, 1};
    assert_true(hzp_groups_wire(&one, &m).update == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards), cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_parts),  cmocka_unit_test(test_choose),
        cmocka_unit_test(test_wire),   cmocka_unit_test(test_choose_given),
    };
    return cmocka_run_group_tests_name("groups", tests, NULL, NULL);
}
