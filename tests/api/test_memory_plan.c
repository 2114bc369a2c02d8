/* SPDX-License-Identifier: Apache-2.0 */
/* The memory plan: its parts add up, and a plan that does not fit is refused with its
   arithmetic. */
#include "api/cli/options.h"
#include "api/engine/memory_plan.h"
#include "serve/kvpool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct hzp_model_config config = {.family = "llama",
                                               .layers = 4,
                                               .width = 64,
                                               .inner = 128,
                                               .vocab = 500,
                                               .heads = {.heads = 4, .kv_heads = 2, .dim = 16},
                                               .positions = 1000,
                                               .disk_type = HZP_BF16,
                                               .tied = true,
                                               .norm_eps = 1e-5f,
                                               .rope_theta = 1e4,
                                               .bos = -1};

static struct hzp_layout layout;
static struct hzp_options options;
static struct hzp_memory_plan plan;
static struct hzp_err_text err;
static bool rides;
static size_t lanes;
static bool copies, gate;
static size_t host_limit;
static struct hzp_driver_memory driver;
static int32_t shapes;

static int make(size_t limit)
{
    memset(&err, 0, sizeof(err));
    const struct hzp_engine_settings *e = &options.engine;
    struct hzp_memory_request request = {.model = &e->model,
                                         .serving = &e->serving,
                                         .training = e->no_train ? NULL : &e->training,
                                         .slots = e->no_train ? 1 : (int32_t)e->serving.slots,
                                         .limit = limit,
                                         .lanes = lanes,
                                         .copies = copies,
                                         .gate = gate,
                                         .host_limit = host_limit,
                                         .driver = driver,
                                         .shapes = shapes,
                                         .rides = rides};
    return hzp_memory_plan(&request, &layout, &plan, &err);
}

static int set_up(void **state)
{
    hzp_layout_make(&config, &layout);
    hzp_options_defaults(HZP_COMMAND_SERVE, &options);
    options.engine.training.micro_rows = config.positions; /* no example is longer */
    return 0;
}

static int tear_down(void **state)
{
    hzp_layout_free(&layout);
    return 0;
}

static void it_adds_up(void **state)
{
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    size_t total = 0;
    for (int i = 0; i < plan.lines; i++)
        total += plan.line[i].bytes;
    assert_int_equal(plan.total, total);
    assert_int_equal(plan.dtype, HZP_BF16);
    assert_int_equal(plan.line[0].bytes, 2 * layout.elements * 2);
    assert_true(plan.serves && plan.trains);
    assert_int_equal(plan.positions, 1000);
    /* all running sequences at full length: no request waits for pages */
    assert_int_equal(plan.kv_pages, 64 * 63);
    assert_true(plan.batch.rows_max >= plan.batch.segs_max);
}

/* The copy for checkpoints is planned where there is room for it, and is no reason to refuse. */
static void copies_where_it_fits(void **state)
{
    options.engine.serving.kv_tokens = 10000; /* else the cache takes less where less is left */
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    size_t without = plan.total;
    assert_false(plan.copies);
    copies = true;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_true(plan.copies);
    assert_string_equal(plan.line[plan.lines - 1].what, "checkpoint");
    /* weights, residuals and two moments */
    assert_int_equal(plan.total, without + layout.elements * (2 + 2 + 4 + 4));
    assert_int_equal(make(without), HZP_OK);
    assert_false(plan.copies);
    assert_int_equal(plan.total, without);
    host_limit = (size_t)1 << 32; /* a GPU's memory is full, the host's is not */
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_int_equal(plan.pages.lines, options.engine.serving.running_max + 1);
    without += hzp_page_table_bytes(&plan.pages); /* such a device keeps one */
    assert_int_equal(make(without), HZP_OK);
    assert_true(plan.copies);
    assert_int_equal(plan.total, without);
    host_limit = layout.elements;
    assert_int_equal(make(without), HZP_OK);
    assert_false(plan.copies);
    copies = false;
    host_limit = 0;
    options.engine.serving.kv_tokens = 0;
}

static const struct hzp_memory_line *line_of(const char *what)
{
    for (int i = 0; i < plan.lines; i++)
        if (strcmp(plan.line[i].what, what) == 0)
            return &plan.line[i];
    return NULL;
}

/* In host memory are the moments, the residuals and their copy, and nothing else; a device that has
 * no memory of its own has them where they were. */
static void moments_beside_the_device(void **state)
{
    static const size_t moment[] = {2 * 4, 2 * 2};
    const size_t much = (size_t)1 << 32;
    options.engine.serving.kv_tokens = 10000;
    for (int64_t type = 0; type < 2; type++) {
        options.engine.training.moment_type = type;
        host_limit = much;
        gate = true;
        assert_int_equal(make(much), HZP_OK);
        size_t total = plan.total, apart = 2 * layout.elements * (moment[type] + 2);
        assert_int_equal(plan.host, 0);
        assert_false(plan.train.host_state);
        options.engine.training.moments_in = 1;
        assert_int_equal(make(much), HZP_OK);
        assert_int_equal(plan.host, apart);
        assert_int_equal(plan.total, total - apart);
        assert_true(plan.train.host_state);
        size_t least = plan.total - 1;
        assert_true(line_of("moments")->host && line_of("gate")->host && !line_of("weights")->host);
        host_limit = apart;
        assert_int_equal(make(much), HZP_OK);
        host_limit--;
        assert_int_equal(make(much), HZP_EINVAL);
        assert_string_equal(err.param, "--moments");
        host_limit = 0;
        assert_int_equal(make(much), HZP_OK);
        assert_int_equal(plan.host, 0);
        assert_false(plan.train.host_state);
        host_limit = much; /* the sum is of the device's memory */
        assert_int_equal(make(least), HZP_ENOMEM);
        assert_null(strstr(err.text, " + moments "));
        assert_null(strstr(err.text, "in=host"));
        options.engine.training.moments_in = 0;
        assert_int_equal(make(least), HZP_ENOMEM);
        assert_non_null(strstr(err.text, " + moments "));
        assert_non_null(strstr(err.text, type ? "--moments q8, --moments bf16,in=host"
                                              : "--moments bf16, --moments f32,in=host"));
    }
    host_limit = 0;
    gate = false;
}

/* What docs/measurements/2026-11-long-examples.md shows: 8B on a GPU of 80 GB. */
static void eight_billion_in_80_gb(void **state)
{
    static const char *const type[] = {"f32", "bf16", "q8"};
    static const size_t beside[] = {80, 48, 35}; /* GB, rounded down */
    const size_t gb = 1000 * 1000 * 1000;
    const struct hzp_model_config big = {.family = "llama",
                                         .layers = 32,
                                         .width = 4096,
                                         .inner = 14336,
                                         .vocab = 128256,
                                         .heads = {.heads = 32, .kv_heads = 8, .dim = 128},
                                         .positions = 8192,
                                         .disk_type = HZP_BF16,
                                         .norm_eps = 1e-5f,
                                         .rope_theta = 5e5,
                                         .bos = -1};
    struct hzp_training_settings *t = &options.engine.training;
    hzp_layout_free(&layout);
    hzp_layout_make(&big, &layout);
    host_limit = 128 * gb;
    t->micro_rows = 512;
    for (t->moment_type = 0; t->moment_type < 3; t->moment_type++) {
        t->moments_in = 0;
        assert_int_equal(make(80 * gb), HZP_ENOMEM);
        if (make(200 * gb) < 0)
            fail_msg("%s", err.text);
        printf("--moments %s\n", type[t->moment_type]);
        hzp_memory_plan_print(&plan, stdout);
        t->moments_in = 1;
        if (make(80 * gb) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(plan.host / gb, beside[t->moment_type]);
        printf("--moments %s,in=host\n", type[t->moment_type]);
        hzp_memory_plan_print(&plan, stdout);
    }
    host_limit = 0;
}

/* A table of more entries than 32 bits number is refused, where there is one. */
static void too_many_pages_are_refused(void **state)
{
    struct hzp_serving_settings *s = &options.engine.serving;
    const struct hzp_serving_settings before = *s;
    const size_t much = (size_t)1 << 50;
    layout.config.positions = 1 << 20;
    s->page_rows = 1;
    s->kv_tokens = 1 << 20;
    s->running_max = 4096;
    assert_int_equal(make(much), HZP_OK);
    host_limit = much;
    assert_int_equal(make(much), HZP_EINVAL);
    assert_non_null(strstr(err.text, "--max-running 4096"));
    s->running_max = 2046;
    assert_int_equal(make(much), HZP_OK);
    assert_int_equal(plan.pages.stride, 1 << 20);
    host_limit = 0;
    layout.config.positions = config.positions;
    *s = before;
}

/* What the driver takes has a line: all of the partitions, of graphs at most a 32nd of the memory
 * but always a set.  What is left for the KV cache is that much less, and where it does not fit the
 * error says so. */
static void the_driver_takes_its_part(void **state)
{
    size_t limit = (size_t)1 << 28, set;
    options.engine.serving.kv_memory = 0;
    assert_int_equal(make(limit), HZP_OK);
    assert_null(line_of("driver"));
    assert_int_equal(plan.graphs, 0);
    int32_t pages = plan.kv_pages;
    driver = (struct hzp_driver_memory){.splits = 5000000, .graph = 20000, .node = 30000};
    assert_int_equal(make(limit), HZP_OK);
    assert_int_equal(plan.graphs, limit / 32);
    assert_int_equal(line_of("driver")->bytes, driver.splits + plan.graphs);
    assert_true(plan.kv_pages <= pages && plan.total <= limit);
    driver.node = 3; /* all of them fit */
    assert_int_equal(make(limit), HZP_OK);
    assert_true(plan.graphs < limit / 32);
    size_t alone = plan.graphs;
    shapes = 2; /* steps with training have graphs of their own */
    assert_int_equal(make(limit), HZP_OK);
    assert_int_equal(plan.graphs, 2 * alone);
    shapes = 0;
    driver.node = 300000; /* not even one for each slot fits a 32nd */
    set = hzp_driver_graphs(&driver, options.engine.serving.slots, 4 * 9 + 6);
    assert_int_equal(make(limit), HZP_OK);
    assert_int_equal(plan.graphs, set);
    driver.cuts = 7; /* a step's graph is eight of the driver's */
    assert_int_equal(make(limit), HZP_OK);
    assert_int_equal(plan.graphs, set + (size_t)options.engine.serving.slots * 7 * driver.graph);
    driver.splits = limit;
    assert_int_equal(make(limit), HZP_ENOMEM);
    assert_non_null(strstr(err.text, "driver"));
    driver = (struct hzp_driver_memory){0};
}

/* Where training rides, the batch has room for the rows of all running sequences behind a
   micro-batch's. */
static void riding_takes_room(void **state)
{
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    size_t without = plan.total;
    assert_int_equal(plan.train.ride_rows, 0);
    rides = true;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    rides = false;
    assert_int_equal(plan.train.ride_rows, options.engine.serving.running_max);
    assert_true(plan.total > without);
}

/* The lanes' memory is subtracted from the KV cache, and listed in the plan. */
static void lanes_are_counted(void **state)
{
    size_t limit = (size_t)24 << 20, kv = 0, less = 0;
    options.engine.no_train = 1;
    assert_int_equal(make(limit), HZP_OK);
    kv = plan.line[plan.lines - 1].bytes;
    lanes = (size_t)16 << 20;
    assert_int_equal(make(limit), HZP_OK);
    assert_string_equal(plan.line[1].what, "lanes");
    assert_int_equal(plan.line[1].bytes, lanes);
    less = plan.line[plan.lines - 1].bytes;
    assert_true(less < kv && plan.total <= limit);
    lanes = limit;
    assert_int_equal(make(limit), HZP_ENOMEM);
    assert_non_null(strstr(err.text, "lanes 25.2 MB"));
    lanes = 0;
    options.engine.no_train = 0;
}

/* One more byte for each projection parameter of each slot, and four for each of their rows (its
   scale). */
static void fp8_is_counted(void **state)
{
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    size_t without = plan.total, serving = 0;
    options.engine.model.fp8 = 1;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    options.engine.model.fp8 = 0;
    assert_true(plan.fp8);
    assert_string_equal(plan.line[1].what, "fp8");
    size_t qkv = 128, rows = qkv + 64 + 256 + 64;
    size_t codes = qkv * 64 + 64 * 64 + 256 * 64 + 64 * 128;
    assert_int_equal(plan.line[1].bytes, 2 * 4 * (codes + 4 * rows));
    for (int i = 0; i < plan.lines; i++)
        if (!strcmp(plan.line[i].what, "serving"))
            serving = plan.line[i].bytes;
    /* the steps' rows in e4m3, and their scales; the pages get the remainder */
    assert_true(serving >= (size_t)plan.batch.rows_max * (128 + 4));
    assert_true(plan.total > without);
}

/* A page takes one byte for each key and value instead of two, and four for each head's scale. */
static void an_fp8_cache_is_counted(void **state)
{
    options.engine.serving.kv_memory = 1 << 20;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    int32_t pages = plan.kv_pages;
    size_t page = hzp_kvpool_bytes(&config, HZP_BF16, 1, 16);
    options.engine.model.kv_fp8 = 1;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    options.engine.model.kv_fp8 = 0;
    options.engine.serving.kv_memory = 0;
    size_t heads = 2 * 16 * (size_t)config.layers * (size_t)config.heads.kv_heads;
    size_t narrow = hzp_kvpool_bytes(&config, HZP_E4M3, 1, 16);
    assert_int_equal(page, heads * (size_t)config.heads.dim * 2);
    assert_int_equal(narrow, heads * ((size_t)config.heads.dim + 4));
    assert_int_equal(plan.kv, HZP_E4M3);
    assert_int_equal(plan.kv_pages, (1 << 20) / (int32_t)narrow);
    assert_true(plan.kv_pages > pages);
    for (int i = 0; i < plan.lines; i++)
        if (!strcmp(plan.line[i].what, "KV cache")) {
            assert_int_equal(plan.line[i].bytes,
                             hzp_kvpool_bytes(&config, HZP_E4M3, plan.kv_pages, 16));
            assert_non_null(strstr(plan.line[i].how, "in fp8"));
        }
}

static size_t kv_line(const char *how)
{
    for (int i = 0; i < plan.lines; i++)
        if (!strcmp(plan.line[i].what, "KV cache")) {
            assert_non_null(strstr(plan.line[i].how, how));
            return plan.line[i].bytes;
        }
    return 0;
}

/* Layers with windows have fewer pages, so the same bytes hold more, where requests may be much
 * longer and nothing needs whole pages. */
static void windows_take_less(void **state)
{
    size_t most = 8 << 20;
    options.engine.serving.kv_memory = (int64_t)most;
    for (int32_t l = 1; l < config.layers; l++)
        layout.config.layer_kind[l] = 1;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    int32_t pages = plan.kv_pages;
    assert_int_equal(plan.kv_backs, 0);

    layout.config.kind[1].window = 64;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_in_range(plan.kv_backs, hzp_kvpool_window_pages(64, 16), plan.kv_pages - 1);
    assert_true(plan.kv_pages > 2 * pages);
    size_t bytes = kv_line("; 3 layers with windows of 64 have ");
    assert_int_equal(
        bytes, hzp_kvpool_backed_bytes(&layout.config, HZP_BF16, plan.kv_pages, plan.kv_backs, 16));
    assert_true(bytes <= most && bytes + hzp_kvpool_bytes(&config, HZP_BF16, 1, 16) > most);

    options.engine.serving.prefix_dir = "/tmp";
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_true(plan.kv_pages == pages && !plan.kv_backs);
    options.engine.serving.prefix_dir = NULL;
    host_limit = most; /* a device with memory, and a table of pages, of its own */
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_true(plan.kv_pages == pages && !plan.kv_backs);
    host_limit = 0;
    layout.config.kind[1].window = 900; /* hardly shorter than a request */
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_true(plan.kv_pages == pages && !plan.kv_backs);

    layout.config.kind[1].window = 64;
    layout.config.layer_kind[0] = 1; /* no layer has a part of each page */
    options.engine.serving.kv_memory *= 64;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_in_range(plan.kv_pages, 64 * pages, 8 * 64 * pages);
    options.engine.serving.kv_memory = 0;
}

static void options_steer_it(void **state)
{
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    size_t with_training = plan.total;
    options.engine.no_train = 1;
    options.engine.serving.kv_tokens = 100;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_true(plan.total < with_training && !plan.trains);
    assert_int_equal(plan.kv_pages, 7);
    assert_int_equal(plan.positions, 112); /* no sequence is longer than the cache */
    options.engine.serving.kv_tokens = 0;
    options.engine.serving.kv_memory = 1 << 20;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    size_t kv = hzp_kvpool_bytes(&config, HZP_BF16, plan.kv_pages, 16);
    assert_true(kv <= 1 << 20 && kv + hzp_kvpool_bytes(&config, HZP_BF16, 1, 16) > 1 << 20);
    options.engine.model.dtype = 2;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_int_equal(plan.dtype, HZP_F32);
}

static void the_cache_takes_what_is_left(void **state)
{
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    size_t rest = 0, cache = 0;
    for (int i = 0; i < plan.lines; i++)
        *(strcmp(plan.line[i].what, "KV cache") ? &rest : &cache) += plan.line[i].bytes;
    size_t limit = rest * 3 / 2;
    assert_int_equal(make(limit), HZP_OK);
    assert_true(plan.total <= limit && plan.total > rest);
    assert_true(plan.total - rest < cache);
    assert_int_equal(make(rest), HZP_ENOMEM);
}

static void a_cache_too_small_is_refused(void **state)
{
    options.engine.serving.kv_tokens = 1;
    assert_int_equal(make((size_t)1 << 32), HZP_EINVAL);
    assert_string_equal(err.param, "--kv-tokens");
    assert_non_null(strstr(err.text, "1 x 16 tokens"));
    assert_non_null(strstr(err.text, "4 x 16 tokens"));
    options.engine.serving.kv_tokens = 49;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    options.engine.model.context = 200;
    options.engine.serving.kv_tokens = 192;
    assert_int_equal(make((size_t)1 << 32), HZP_EINVAL);
    assert_non_null(strstr(err.text, "--context 200 needs at least 13 x 16"));
    options.engine.serving.kv_tokens = 193;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_int_equal(plan.positions, 200);
    options.engine.serving.kv_tokens = 1; /* a small cache is allowed on request */
    options.engine.model.context = 16;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    assert_int_equal(plan.positions, 16);
    options.engine.model.context = options.engine.serving.kv_tokens = 0;
    options.engine.serving.kv_memory = (int64_t)hzp_kvpool_bytes(&config, HZP_BF16, 1, 16);
    assert_int_equal(make((size_t)1 << 32), HZP_EINVAL);
    assert_string_equal(err.param, "--kv-memory");
}

static void little_memory_is_no_short_context(void **state)
{
    size_t rest = 0;
    assert_int_equal(make((size_t)1 << 32), HZP_OK);
    for (int i = 0; i < plan.lines; i++)
        rest += strcmp(plan.line[i].what, "KV cache") ? plan.line[i].bytes : 0;
    size_t page = hzp_kvpool_bytes(&config, HZP_BF16, 1, 16);
    assert_int_equal(make(rest + 4 * page - 1), HZP_ENOMEM);
    assert_non_null(strstr(err.text, "KV cache 32.8 KB"));
    assert_int_equal(make(rest + 4 * page), HZP_OK);
    assert_int_equal(plan.positions, 64);
    options.engine.model.context = 200;
    assert_int_equal(make(rest + 4 * page), HZP_ENOMEM);
    assert_int_equal(make(rest + 13 * page), HZP_OK);
    assert_int_equal(plan.positions, 200);
}

/* The longest example is the context, with as little computed again as a part of the memory allows;
 * where there is none to spare, a micro-batch's rows. */
static void long_examples_take_a_part(void **state)
{
    struct hzp_training_settings *t = &options.engine.training;
    const enum hzp_recompute modes[] = {HZP_RECOMPUTE_NONE, HZP_RECOMPUTE_MLP, HZP_RECOMPUTE_LAYER};
    int at = 0;
    t->micro_rows = 100;
    options.engine.serving.kv_tokens = 1000;
    size_t limit = (size_t)1 << 30;
    for (; at < 3; limit -= limit / 50) {
        assert_int_equal(make(limit), HZP_OK);
        if (plan.train.recompute_long != modes[at])
            at++;
        if (at == 3 || plan.train.long_rows < 1000)
            break;
        assert_int_equal(plan.train.recompute_long, modes[at]);
    }
    assert_int_equal(at, 2);
    assert_in_range(plan.train.long_rows, 101, 999);
    assert_int_equal(plan.recipe.long_rows, plan.train.long_rows);
    size_t total = plan.total;
    assert_int_equal(make(total), HZP_OK);
    size_t least = plan.total;
    assert_int_equal(make(least - 1), HZP_OK);
    assert_true(plan.total < least && plan.train.long_rows < 1000);

    t->recompute = 1 + HZP_RECOMPUTE_NONE; /* as long as fits without */
    assert_int_equal(make((size_t)1 << 30), HZP_OK);
    assert_int_equal(plan.train.long_rows, 1000);
    assert_int_equal(make(limit), HZP_OK);
    assert_int_equal(plan.train.recompute_long, HZP_RECOMPUTE_NONE);
    assert_in_range(plan.train.long_rows, 101, 999);
    size_t kept = plan.total;
    t->recompute = 1 + HZP_RECOMPUTE_LAYER; /* every micro-batch recomputes */
    assert_int_equal(make(limit), HZP_OK);
    assert_int_equal(plan.train.recompute, HZP_RECOMPUTE_LAYER);
    assert_true(plan.total < kept);
    options.engine.serving.kv_tokens = 0;
    t->recompute = 0;
}

static void too_much_is_refused(void **state)
{
    options.engine.serving.kv_tokens = 100 * 1000 * 1000;
    assert_int_equal(make((size_t)1 << 30), HZP_EINVAL); /* the option alone is too much */
    assert_string_equal(err.param, "--kv-tokens");
    assert_non_null(strstr(err.text, "KV cache"));
    assert_non_null(strstr(err.text, "only 1.07 GB"));
    assert_non_null(strstr(err.text, "--no-train"));
    options.engine.serving.kv_tokens = 0;
    options.engine.serving.kv_memory = 10;
    assert_int_equal(make((size_t)1 << 30), HZP_EINVAL);
    assert_string_equal(err.param, "--kv-memory");
    options.engine.serving.kv_memory = 0;
    options.engine.model.context = 1001;
    assert_int_equal(make((size_t)1 << 30), HZP_EINVAL);
    assert_string_equal(err.param, "--context");
}

/* The advice is what the command can do, and what costs nothing of the service comes first. */
static void advice_is_of_the_command(void **state)
{
    struct hzp_engine_settings *e = &options.engine;
    assert_int_equal(make(1 << 16), HZP_ENOMEM);
    assert_non_null(strstr(err.text, "available; use --moments bf16, a smaller --kv-memory, "
                                     "smaller --micro-rows, smaller --step-rows, --no-train"));
    e->training.moment_type = 1;
    e->serving.slots = 3;
    assert_int_equal(make(1 << 16), HZP_ENOMEM);
    assert_non_null(
        strstr(err.text, "available; use --moments q8, a smaller --kv-memory, fewer --slots, "));
    e->training.moment_type = 2;
    assert_int_equal(make(1 << 16), HZP_ENOMEM);
    assert_non_null(strstr(err.text, "available; use a smaller --kv-memory, fewer --slots, "));
    e->training.moment_type = 0;
    e->serving.slots = 2;
    struct hzp_memory_request train = {
        .model = &e->model, .training = &e->training, .slots = 1, .limit = 1 << 16};
    assert_int_equal(hzp_memory_plan(&train, &layout, &plan, &err), HZP_ENOMEM);
    assert_non_null(strstr(err.text, "available; use --moments bf16, smaller --micro-rows"));
    assert_null(strstr(err.text, "--kv-memory"));
    e->no_train = true;
    assert_int_equal(make(1 << 16), HZP_ENOMEM);
    assert_null(strstr(err.text, "--moments"));
    e->no_train = false;
}

static size_t training_bytes(void)
{
    for (int i = 0; i < plan.lines; i++)
        if (!strcmp(plan.line[i].what, "training"))
            return plan.line[i].bytes;
    return 0;
}

/* Logits of 128k words and 4 x 4096 rows are never in memory as a whole: only as many rows as
 * head_rows says, less than the head's own gradient. */
static void logits_are_bounded(void **state)
{
    struct hzp_model_config wide = config;
    const size_t vocab = 128256, width = 4096, rows = 4 * 4096;
    wide.vocab = (int32_t)vocab;
    wide.width = (int32_t)width;
    wide.layers = 1;
    wide.positions = rows;
    hzp_layout_free(&layout);
    hzp_layout_make(&wide, &layout);
    options.engine.training.micro_rows = rows;
    assert_int_equal(make((size_t)1 << 40), HZP_OK);
    size_t head_rows = (size_t)plan.train.head_rows, each = vocab * 4, with = training_bytes();
    assert_int_equal(plan.train.rows_max, rows);
    assert_true(head_rows * each <= vocab * width * 4 / 2);
    assert_true(head_rows * each < rows * each / 7);

    /* logits appear in the plan only there: without the vocabulary the rest is the same */
    hzp_layout_free(&layout);
    wide.vocab = 256;
    hzp_layout_make(&wide, &layout);
    assert_int_equal(make((size_t)1 << 40), HZP_OK);
    size_t other = (size_t)plan.train.head_rows, picked = width * (3 * 4 + 2) + 4;
    assert_true(with - head_rows * (each + picked) <=
                training_bytes() - other * (256 * 4 + picked) + (1 << 16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_adds_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(copies_where_it_fits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(moments_beside_the_device, set_up, tear_down),
        cmocka_unit_test_setup_teardown(eight_billion_in_80_gb, set_up, tear_down),
        cmocka_unit_test_setup_teardown(too_many_pages_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_driver_takes_its_part, set_up, tear_down),
        cmocka_unit_test_setup_teardown(riding_takes_room, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lanes_are_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(fp8_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_fp8_cache_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(windows_take_less, set_up, tear_down),
        cmocka_unit_test_setup_teardown(options_steer_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_cache_takes_what_is_left, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_cache_too_small_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_examples_take_a_part, set_up, tear_down),
        cmocka_unit_test_setup_teardown(little_memory_is_no_short_context, set_up, tear_down),
        cmocka_unit_test_setup_teardown(too_much_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(advice_is_of_the_command, set_up, tear_down),
        cmocka_unit_test_setup_teardown(logits_are_bounded, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
