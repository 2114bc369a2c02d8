/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/test_chains.c - what a micro-batch launches: every kernel of its forward and
 * backward pass, by name, and that none of them only moves the residual stream.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "nanobatch/model/backward.h"
#include "nanobatch/run/exec.h"
#include "tests/cudafake/ops.h"
#include "tests/fixture/model.h"

enum { LAYERS = 2, WIDTH = 128, VOCAB = 96, ROWS = 24, HEAD_ROWS = 16, NAMES = 40 };

struct world {
    struct fixture_model m;
    struct hzp_version *version;
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_exec *exec;
    struct hzp_plan plan;
};

static void world_open(struct world *w, enum hzp_dtype type)
{
    struct hzp_model_config config = {.family = "llama",
                                      .layers = LAYERS,
                                      .width = WIDTH,
                                      .inner = 192,
                                      .vocab = VOCAB,
                                      .heads = {4, 2, 64},
                                      .positions = ROWS,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 10000,
                                      .disk_type = HZP_BF16};
    struct hzp_train_space_config space = {
        .rows_max = ROWS, .head_rows = HEAD_ROWS, .moment_type = HZP_F32};
    memset(w, 0, sizeof(*w));
    struct fixture_config fixture = {
        .dev = fake_open(1, NULL, NULL), .config = config, .store = {.type = type}};
    fixture_open(&w->m, &fixture);
    w->version = fixture_publish_random(&w->m, 5, 0.2f);
    assert_int_equal(hzp_train_space_create(w->m.model, &space, &w->space), HZP_OK);
    assert_int_equal(hzp_micro_create(w->m.dev, ROWS, &w->micro), HZP_OK);
    assert_int_equal(hzp_exec_create(w->m.dev, &w->exec), HZP_OK);
    hzp_plan_init(&w->plan);
}

static void world_close(struct world *w)
{
    struct hzp_device *dev = w->m.dev;
    hzp_plan_fini(&w->plan);
    hzp_exec_destroy(w->exec);
    hzp_micro_destroy(w->micro);
    hzp_train_space_destroy(w->space);
    fixture_close(&w->m);
    fake_close(dev);
}

/* One document. */
static void fill_micro(struct world *w, int32_t tokens)
{
    int32_t token[ROWS + 1];
    uint8_t learn[ROWS + 1];
    for (int32_t i = 0; i < tokens; i++) {
        token[i] = i;
        learn[i] = 1;
    }
    hzp_micro_clear(w->micro);
    assert_int_equal(hzp_micro_add(w->micro, token, learn, tokens), HZP_OK);
}

/* Runs a micro-batch of one document, of which more rows are learned than the head takes at
 * once. */
static void run_micro(struct world *w, int32_t tokens)
{
    struct hzp_exec_times times;
    fill_micro(w, tokens);
    hzp_plan_clear(&w->plan);
    hzp_micro_build(&w->plan, w->m.model, w->version, w->micro, w->space, true);
    assert_int_equal(hzp_exec_run(w->exec, &w->plan, NULL, &times), HZP_OK);
}

static int first; /* call of the micro-batch */

/* How often a kernel of this name, or with "product" a product of the library, was launched. */
static int launches(const char *name)
{
    int count = 0;
    for (int i = first; i < fake_calls(); i++) {
        const struct fake_call *call = fake_call_at(i);
        if (call->kind == FAKE_KERNEL)
            count += strcmp(call->name, name) == 0;
        else if (call->kind == FAKE_PRODUCT)
            count += strcmp(name, "product") == 0;
    }
    return count;
}

static void print_launches(void)
{
    const char *seen[NAMES];
    int names = 0, total = launches("product");
    print_message("product %d\n", total);
    for (int i = first; i < fake_calls(); i++) {
        const struct fake_call *call = fake_call_at(i);
        int n = 0;
        if (call->kind != FAKE_KERNEL)
            continue;
        total++;
        while (n < names && strcmp(seen[n], call->name) != 0)
            n++;
        if (n < names || names == NAMES)
            continue;
        seen[names++] = call->name;
        print_message("%s %d\n", call->name, launches(call->name));
    }
    print_message("all %d\n", total);
}

/* Casts between buffers of one type: they carry no new value. */
static int copies(const struct hzp_plan *plan)
{
    int count = 0;
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_cast_args *a = plan->item[i].args;
        count += plan->item[i].op == HZP_OP_cast && a->x.type == a->y.type;
    }
    return count;
}

/* A layer has four products forward and eight backward, the head three a chunk.  In BF16 the
 * gradient of the stream is rounded for the products twice a layer; nothing else is cast. */
static void check(enum hzp_dtype type, int casts)
{
    enum { HEADS = 2 };
    struct world w;
    world_open(&w, type);
    first = fake_calls();
    run_micro(&w, ROWS);
    print_launches();
    assert_int_equal(copies(&w.plan), 0);
    assert_int_equal(launches("cast"), casts);
    assert_int_equal(launches("product"), 12 * LAYERS + 3 * HEADS);
    world_close(&w);
}

static void test_bf16(void **state)
{
    check(HZP_BF16, 2 * LAYERS);
}

static void test_f32(void **state)
{
    check(HZP_F32, 0);
}

/* Products that the library runs from call `from` on, and of these those with the algorithm that it
 * advises first, which is not the quickest here. */
static int products(int from, int *ret_advised)
{
    int count = 0;
    *ret_advised = 0;
    for (int i = from; i < fake_calls(); i++)
        if (fake_call_at(i)->kind == FAKE_PRODUCT) {
            count++;
            *ret_advised += fake_call_at(i)->algo == 0;
        }
    return count;
}

/* The start's chain has each shape of product once: four of a layer forward and eight backward, and
 * three of each size of the head's chunks.  A micro-batch of another number of rows, which comes
 * when nothing is timed any more, gets their algorithms; one of far fewer rows does not. */
static void test_products(void **state)
{
    static const int times[] = {9000, 2000};
    struct hzp_exec_times ran;
    struct hzp_plan chain;
    struct world w;
    int advised;
    setenv("HZP_CUDA_TUNE", "", 1);
    fake_set_algo_times(times, HZP_COUNT(times));
    world_open(&w, HZP_BF16);
    hzp_plan_init(&chain);
    fill_micro(&w, ROWS + 1);
    hzp_micro_products(&chain, w.m.model, w.version, w.micro, w.space);
    assert_int_equal(chain.items, 12 + 3);
    for (int32_t i = 0; i < chain.items; i++)
        assert_int_equal(((const struct hzp_matmul_args *)chain.item[i].args)->accumulate, 0);
    assert_int_equal(hzp_exec_run(w.exec, &chain, NULL, &ran), HZP_OK);
    hzp_device_steady(w.m.dev);
    for (int32_t rows = ROWS; rows > 4; rows -= 5) {
        int from = fake_calls();
        run_micro(&w, rows + 1);
        int count = products(from, &advised);
        assert_true(count >= 12 * LAYERS + 3);
        if (rows >= ROWS / 2 + 2) /* the head's chunks have half as many rows, rounded up */
            assert_int_equal(advised, 0);
        else
            assert_true(advised > 0);
    }
    hzp_plan_fini(&chain);
    world_close(&w);
    setenv("HZP_CUDA_TUNE", "0", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bf16), cmocka_unit_test(test_f32),
                                       cmocka_unit_test(test_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
