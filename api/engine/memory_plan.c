/* SPDX-License-Identifier: Apache-2.0 */
#include "api/engine/memory_plan.h"

#include "base/log.h"
#include "serve/kvpool.h"
#include "serve/request.h"
#include "train/history/snapshot.h"

/* The shortest maximum sequence length that is accepted without --context: a server with less is
 * not useful. */
enum { CONTEXT_MIN = 64 };
enum { PART_SIZE = 40 };

const char *hzp_size_text(size_t bytes, char *text)
{
    static const char unit[] = "KMGT";
    double value = (double)bytes / 1000;
    int u = 0;
    while (value >= 1000 && u < 3) {
        value /= 1000;
        u++;
    }
    snprintf(text, 16, "%.*f %cB", value < 10 ? 2 : value < 100 ? 1 : 0, value, unit[u]);
    return text;
}

static void add(struct hzp_memory_plan *plan, const char *what, size_t bytes, const char *how, ...)
    HZP_PRINTF(4, 5);

static void add(struct hzp_memory_plan *plan, const char *what, size_t bytes, const char *how, ...)
{
    HZP_ASSERT(plan->lines < HZP_MEMORY_LINES_MAX);
    struct hzp_memory_line *line = &plan->line[plan->lines++];
    line->what = what;
    line->bytes = bytes;
    va_list args;
    va_start(args, how);
    vsnprintf(line->how, sizeof(line->how), how, args);
    va_end(args);
    plan->total += bytes;
}

/* The line is of the host's memory. */
static void leave_out(struct hzp_memory_plan *plan, struct hzp_memory_line *line)
{
    line->host = true;
    plan->total -= line->bytes;
}

/* The smallest acceptable maximum sequence length in tokens. */
static int64_t least_positions(const struct hzp_memory_request *q,
                               const struct hzp_memory_plan *plan)
{
    return q->model->context ? q->model->context : HZP_MIN(plan->positions, CONTEXT_MIN);
}

/* Backing pages that go with so many pages.  Tiers copy whole pages, records of steps name them to
 * the ranks of a tensor group, and a table on the device has one number for each. */
static int32_t backs_of(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                        const struct hzp_memory_plan *plan, int64_t pages)
{
    const struct hzp_serving_settings *s = q->serving;
    struct hzp_kvpool_use use = {.positions = plan->positions,
                                 .page_rows = (int32_t)s->page_rows,
                                 .running_max = (int32_t)s->running_max,
                                 .step_rows = hzp_settings_rows(s)};
    bool whole = q->host_limit || s->prefix_host || s->prefix_dir || layout->slice.ranks > 1;
    return whole ? 0 : hzp_kvpool_backs(&layout->config, &use, (int32_t)pages);
}

static size_t kv_bytes(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                       const struct hzp_memory_plan *plan, int64_t pages)
{
    return hzp_kvpool_backed_bytes(&layout->config, plan->kv, (int32_t)pages,
                                   backs_of(q, layout, plan, pages),
                                   (int32_t)q->serving->page_rows);
}

/* The most pages that so many bytes hold; no more than eight times what they would without backing
 * pages, because a page takes some of the host's memory, too, and where each layer has a window it
 * would take nothing else. */
static int64_t pages_in(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                        const struct hzp_memory_plan *plan, size_t bytes)
{
    size_t page = hzp_kvpool_bytes(&layout->config, plan->kv, 1, (int32_t)q->serving->page_rows);
    int64_t low = (int64_t)(bytes / page), high = INT32_MAX / q->serving->page_rows;
    if (low >= high || !hzp_kvpool_window(&layout->config))
        return low;
    high = HZP_MIN(high, 8 * low);
    while (low < high) {
        int64_t mid = low + (high - low + 1) / 2;
        if (kv_bytes(q, layout, plan, mid) <= bytes)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* Pages of the KV cache: the configured size; by default enough for all running sequences, but at
 * most a quarter of the device's memory, and at most what the rest of the plan, made before, leaves
 * of nine tenths of it; in any case at least the pages of one sequence. */
static int64_t kv_pages(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                        const struct hzp_memory_plan *plan)
{
    int64_t page = q->serving->page_rows;
    if (q->serving->kv_tokens)
        return HZP_DIV_UP(q->serving->kv_tokens, page);
    if (q->serving->kv_memory)
        return pages_in(q, layout, plan, (size_t)q->serving->kv_memory);
    int64_t wanted = q->serving->running_max * HZP_DIV_UP(plan->positions, page);
    size_t most = plan->limit / 10 * 9;
    size_t left = HZP_MIN(most - HZP_MIN(plan->total, most), plan->limit / 4);
    int64_t least = least_positions(q, plan);
    int64_t most_pages = pages_in(q, layout, plan, left);
    return HZP_MAX(HZP_MIN(wanted, most_pages), HZP_DIV_UP(least, page));
}

/* Checks that the cache holds one sequence of the requested, or a useful, length. */
static int check_longest(const struct hzp_memory_request *q, size_t page_bytes, int64_t pages,
                         const struct hzp_memory_plan *plan, struct hzp_err_text *reterr)
{
    int64_t page = q->serving->page_rows, least = HZP_DIV_UP(least_positions(q, plan), page);
    const char *by = q->serving->kv_tokens ? "--kv-tokens" : "--kv-memory";
    char bytes[16], what[64] = "a sequence";
    if (pages >= least)
        return HZP_OK;
    if (q->model->context)
        snprintf(what, sizeof(what), "--context %lld", (long long)q->model->context);
    return hzp_wrong(
        reterr, by,
        "gives a KV cache of %lld x %lld tokens, %s needs at least %lld x %lld tokens, %s",
        (long long)pages, (long long)page, what, (long long)least, (long long)page,
        hzp_size_text((size_t)least * page_bytes, bytes));
}

/* ", 6 layers' own; 22 layers' 1024, of windows of 512 tokens", or ", 2.36 MB each". */
static void add_kv(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                   struct hzp_memory_plan *plan, size_t page_bytes)
{
    const struct hzp_model_config *config = &layout->config;
    char text[16], how[64];
    int32_t windows = 0;
    for (int32_t l = 0; l < config->layers; l++)
        windows += hzp_config_kind(config, l)->window > 0;
    if (plan->kv_backs)
        snprintf(how, sizeof(how), "; %d layers with windows of %d have %d", windows,
                 hzp_kvpool_window(config), plan->kv_backs);
    else
        snprintf(how, sizeof(how), ", %s each", hzp_size_text(page_bytes, text));
    add(plan, "KV cache", kv_bytes(q, layout, plan, plan->kv_pages), "%d pages of %lld tokens%s%s",
        plan->kv_pages, (long long)q->serving->page_rows, plan->kv == HZP_E4M3 ? " in fp8" : "",
        how);
}

static int plan_kv(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                   struct hzp_memory_plan *plan, struct hzp_err_text *reterr)
{
    const struct hzp_model_config *config = &layout->config;
    size_t page_bytes = hzp_kvpool_bytes(config, plan->kv, 1, (int32_t)q->serving->page_rows);
    int64_t pages = kv_pages(q, layout, plan);
    if (pages < 1)
        return hzp_wrong(reterr, "--kv-memory", "does not hold one page of %lld tokens",
                         (long long)q->serving->page_rows);
    if (pages > INT32_MAX / q->serving->page_rows) {
        const char *by = q->serving->kv_tokens ? "--kv-tokens" : "--kv-memory";
        return hzp_wrong(reterr, by,
                         ": a KV cache of %lld pages is larger than this program can address",
                         (long long)pages);
    }
    HZP_TRY(check_longest(q, page_bytes, pages, plan, reterr));
    plan->kv_pages = (int32_t)pages;
    plan->positions = (int32_t)HZP_MIN(plan->positions, pages * q->serving->page_rows);
    plan->kv_backs = backs_of(q, layout, plan, pages);
    add_kv(q, layout, plan, page_bytes);
    return HZP_OK;
}

/* Segments of a step: one of each sequence, and one guess of each, or all of one of them. */
static int32_t segs_of(const struct hzp_serving_settings *serving)
{
    int64_t most = serving->running_max, guesses = HZP_MAX(HZP_MIN(most, 64), serving->draft_max);
    return (int32_t)(most + (serving->draft ? guesses : 0));
}

/* Partitions of the SMs, as measured, and graphs: as many as the steps of two batches have sizes,
 * shapes and slots of weights, but no more than a part of the memory.  Steps of several ranks have
 * none (nanobatch/run/graphs.h). */
static void plan_driver(const struct hzp_memory_request *q, int32_t rows, int32_t logits,
                        const struct hzp_layout *layout, struct hzp_memory_plan *plan)
{
    enum { LAYER_ITEMS = 9, FP8_ITEMS = 4, OTHER_ITEMS = 6, GRAPHS_PART = 32 };
    const struct hzp_driver_memory *driver = &q->driver;
    struct hzp_batch_config batch = {
        .rows_max = rows, .segs_max = segs_of(q->serving), .logits_max = logits};
    int32_t count = hzp_graphs_count(&batch, q->slots, 2, HZP_MAX(q->shapes, 1));
    int32_t items =
        layout->config.layers * (LAYER_ITEMS + (plan->fp8 ? FP8_ITEMS : 0)) + OTHER_ITEMS;
    if (!driver->splits && !driver->node)
        return;
    count = HZP_MIN(count, (int32_t)HZP_GRAPHS_MAX);
    bool graphs_made = layout->slice.ranks <= 1;
    size_t all = graphs_made ? hzp_driver_graphs(driver, count, items) : 0;
    size_t least = graphs_made ? hzp_driver_graphs(driver, q->slots, items) : 0;
    plan->graphs = HZP_MIN(all, HZP_MAX(q->limit / GRAPHS_PART, least));
    char splits[16], graphs[16];
    add(plan, "driver", driver->splits + plan->graphs,
        "partitions of the SMs %s; graphs %s: %.0f %% of %d with %d items",
        hzp_size_text(driver->splits, splits), hzp_size_text(plan->graphs, graphs),
        all ? 100 * (double)plan->graphs / (double)all : 100, count, items);
}

/* The table of pages of a device with memory of its own: a line for each running slot, and one for
 * the sequence that computes a prefix again after a swap. */
static void plan_pages(const struct hzp_memory_request *q, int32_t rows,
                       struct hzp_memory_plan *plan)
{
    int32_t page_rows = (int32_t)q->serving->page_rows;
    int32_t segs = (int32_t)q->serving->running_max;
    int32_t stride = HZP_DIV_UP(plan->positions, page_rows);
    if (!q->host_limit)
        return;
    plan->pages = (struct hzp_page_table_config){
        .lines = segs + 1,
        .stride = stride,
        .changes_max = hzp_page_table_room(segs, rows, page_rows, stride)};
    add(plan, "page table", hzp_page_table_bytes(&plan->pages),
        "%d sequences of up to %d pages; %d may change in a step", segs, stride,
        plan->pages.changes_max);
}

/* Entries of the table have 32-bit numbers. */
static int check_pages(const struct hzp_memory_request *q, const struct hzp_memory_plan *plan,
                       struct hzp_err_text *reterr)
{
    const struct hzp_page_table_config *pages = &plan->pages;
    if (pages->stride <= INT32_MAX / pages->lines)
        return HZP_OK;
    return hzp_wrong(reterr, "--max-running",
                     "%lld sequences of up to %d pages of %lld tokens are more pages than this "
                     "program can number; --context makes them shorter",
                     (long long)q->serving->running_max, pages->stride,
                     (long long)q->serving->page_rows);
}

static int plan_serving(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                        struct hzp_memory_plan *plan, struct hzp_err_text *reterr)
{
    const struct hzp_model_config *config = &layout->config;
    int32_t rows = hzp_settings_rows(q->serving);
    int32_t segs = segs_of(q->serving), logits = HZP_MAX(segs, 32);
    add(plan, "serving", hzp_serve_space_bytes(layout, plan->dtype, plan->fp8, rows, logits),
        "activations of %d rows, logits of %d", rows, logits);
    plan_driver(q, rows, logits, layout, plan);
    if (q->links && q->host_limit)
        add(plan, "link", (size_t)q->links * HZP_LINK_NCCL_BYTES, "what other ranks have sent");
    plan_pages(q, rows, plan);
    HZP_TRY(plan_kv(q, layout, plan, reterr));
    /* Room for four sequences in a step that edit as many logits as they can. */
    int64_t edits =
        4 * (int64_t)HZP_MIN(config->vocab, plan->positions + HZP_BIASES_MAX + HZP_STOP_IDS_MAX);
    plan->batch = (struct hzp_batch_config){
        .rows_max = rows,
        .segs_max = segs,
        .page_stride = (int32_t)HZP_DIV_UP(plan->positions, q->serving->page_rows),
        .logits_max = logits,
        .edits_max = (int32_t)HZP_MIN(edits, 1 << 24),
        .masks_max = segs, /* one for each running sequence, and for each guess */
        .mask_words = hzp_mask_words(config->vocab),
        .hidden_cols = config->width,
        .hidden_type = plan->dtype,
        .layers = config->layers};
    plan->pages.stride = plan->batch.page_stride; /* the KV cache may hold fewer positions */
    return q->host_limit ? check_pages(q, plan, reterr) : HZP_OK;
}

/* ", 1/4 on each rank", or "" if a rank has everything; text
 * [PART_SIZE]. */
static const char *part_text(const struct hzp_memory_request *q, int32_t shards, char *text)
{
    text[0] = '\0';
    if (q->shards.stages > 1)
        snprintf(text, PART_SIZE, ", of stage %d of %d", q->shards.rank, q->shards.stages);
    else if (shards > 1)
        snprintf(text, PART_SIZE, ", 1/%d on each rank", shards);
    return text;
}

/* Bytes of what ranks share. */
static struct hzp_groups_bytes sharded_bytes(const struct hzp_memory_request *q,
                                             const struct hzp_layout *layout,
                                             const struct hzp_memory_plan *plan)
{
    struct hzp_shards shards = hzp_shards_of(&q->shards);
    struct hzp_groups_model model = hzp_groups_model(&shards, layout);
    model.type = plan->dtype;
    model.moment_type = plan->recipe.moment_type;
    model.slots = q->slots;
    return hzp_groups_bytes(&shards.groups, &model);
}

/* The longest document, a micro-batch of its own, and what is computed again for it.  Of a server's
 * memory a sixteenth may go to that, of a trainer's a quarter, or what usual micro-batches take if
 * that is more.  Ranks may have different memory, so there it is a usual one's. */
static void plan_longest(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                         struct hzp_memory_plan *plan)
{
    struct hzp_train_space_config space = plan->train;
    size_t usual = hzp_train_space_bytes(layout, plan->dtype, &space);
    size_t most = usual + plan->limit / (plan->serves ? 16 : 4);
    bool any = !q->training->recompute;
    int32_t low = space.rows_max, high = low;
    if (layout->slice.ranks > 1 || hzp_shards_of(&q->shards).groups.ranks > 1 ||
        q->shards.stages > 1)
        return;
    for (int mode = any ? HZP_RECOMPUTE_NONE : space.recompute; high < plan->positions; mode++) {
        space.recompute_long = (enum hzp_recompute)mode;
        for (high = plan->positions; low < high;) {
            space.long_rows = low + (high - low + 1) / 2;
            if (hzp_train_space_bytes(layout, plan->dtype, &space) <= most)
                low = space.long_rows;
            else
                high = space.long_rows - 1;
        }
        if (!any || mode == HZP_RECOMPUTE_LAYER)
            break;
    }
    plan->train.long_rows = plan->recipe.long_rows = low;
    plan->train.recompute_long = plan->recipe.recompute_long = space.recompute_long;
}

/* "activations of 512 rows, of 2048 for a long example but its MLPs'; logits of .." */
static void add_activations(struct hzp_memory_plan *plan, size_t bytes)
{
    static const char *const but[] = {"", " (no MLP's)", " (inputs of layers)"};
    const struct hzp_train_space_config *t = &plan->train;
    char longer[48] = "";
    if (t->long_rows > t->rows_max)
        snprintf(longer, sizeof(longer), ", or of %d%s", t->long_rows, but[t->recompute_long]);
    char kept[48] = "";
    if (t->shards.stages > 1)
        snprintf(kept, sizeof(kept), ", of %d micro-batches", hzp_stages_kept(&t->shards));
    add(plan, "training", bytes, "activations of %d rows%s%s%s, logits of %d",
        t->rows_max + t->ride_rows, but[t->recompute], longer, kept, t->head_rows);
}

static void plan_training(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                          bool longer, struct hzp_memory_plan *plan)
{
    uint64_t quantum = hzp_settings_quantum(q->training);
    plan->train = hzp_learner_space_config(&plan->recipe, &layout->config, quantum);
    if (q->rides) /* steps with more rows cannot carry the end of a micro-batch */
        plan->train.ride_rows = (int32_t)q->serving->running_max;
    plan->train.shards = q->shards;
    plan->train.backup = q->gate;
    plan->train.host_state = q->training->moments_in && q->host_limit;
    if (longer)
        plan_longest(q, layout, plan);
    struct hzp_groups_bytes b = sharded_bytes(q, layout, plan);
    size_t bytes = hzp_train_space_bytes(layout, plan->dtype, &plan->train);
    bool q8 = plan->recipe.moment_type == HZP_Q8;
    size_t copy = q->gate ? b.state : 0;
    bool host = plan->train.host_state;
    const char *in = host ? "in host memory: " : "";
    size_t rest = bytes - HZP_MIN(bytes, b.grads + b.fresh + (host ? 0 : b.state + copy));
    const struct hzp_groups g = hzp_shards_of(&q->shards).groups;
    int32_t sums = q->shards.ordered ? g.ranks : g.z2;
    char part[PART_SIZE];
    add(plan, "gradients", b.grads, "one of F32 per parameter%s", part_text(q, sums, part));
    if (b.fresh)
        add(plan, "fresh", b.fresh, "gradients of one micro-batch, a ring of two layers");
    int first = plan->lines;
    add(plan, "moments", b.state - b.residuals, "%stwo of %s per parameter%s%s", in,
        q8                                     ? "8 bits"
        : plan->recipe.moment_type == HZP_BF16 ? "BF16"
                                               : "F32",
        q8 ? ", of the embedding in F32" : "", part_text(q, g.z1, part));
    if (b.residuals)
        add(plan, "residuals", b.residuals, "%sthe lower half of the F32 master weights%s", in,
            part_text(q, g.z1, part));
    if (copy)
        add(plan, "gate", copy, "%sa copy of moments and residuals, for drafts that fail", in);
    for (int i = first; host && i < plan->lines; i++) {
        plan->host += plan->line[i].bytes;
        leave_out(plan, &plan->line[i]);
    }
    if (q->host_limit && g.ranks > 1)
        add(plan, "exchange", hzp_collectives_stage_bytes(layout) + HZP_LINK_NCCL_BYTES,
            "a whole unit for checkpoints, and what other ranks have sent");
    if (layout->slice.ranks > 1 && layout->slice.rank == 0)
        add(plan, "exchange", hzp_trainer_slices_bytes(layout, layout->slice.ranks),
            "a whole unit for checkpoints, and the ranks' slices of it");
    add_activations(plan, rest);
}

/* The copy that checkpoints are written from: a version and its state, whole also with ranks. */
static void plan_copy(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                      struct hzp_memory_plan *plan)
{
    size_t ranks =
        (size_t)HZP_MAX(layout->slice.ranks, 1); /* for a tensor group a little too much */
    size_t bytes = ranks * hzp_snapshot_bytes(layout, plan->dtype, plan->recipe.moment_type);
    size_t most = (q->host_limit ? q->host_limit : q->limit) / 10 * 9;
    size_t used = q->host_limit ? plan->host : plan->total;
    plan->copies = used < most && bytes <= most - used;
    if (!plan->copies)
        return;
    add(plan, "checkpoint", bytes, "%sa copy of a version and its state",
        q->host_limit ? "in host memory: " : "");
    if (q->host_limit)
        leave_out(plan, &plan->line[plan->lines - 1]);
}

/* The option that asks for a KV cache larger than all memory there is; NULL: none does. */
static const char *too_large(const struct hzp_memory_request *q, const struct hzp_memory_plan *plan)
{
    for (int i = 0; q->serving && i < plan->lines; i++)
        if (!strcmp(plan->line[i].what, "KV cache") && plan->line[i].bytes > plan->limit)
            return q->serving->kv_tokens   ? "--kv-tokens"
                   : q->serving->kv_memory ? "--kv-memory"
                                           : NULL;
    return NULL;
}

/* What the command can do about it, what costs least first; text is for the next option. */
static void advise(const struct hzp_memory_request *q, const struct hzp_memory_plan *plan,
                   char *text, size_t size)
{
    enum hzp_dtype moments = plan->recipe.moment_type;
    bool alone = plan->trains && !q->links && hzp_shards_of(&q->shards).groups.ranks == 1;
    const struct {
        bool helps;
        const char *option;
    } advice[] = {
        {plan->trains && moments == HZP_F32, "--moments bf16"},
        {plan->trains && moments == HZP_BF16, "--moments q8"},
        {alone && q->host_limit && !plan->host, moments == HZP_BF16 ? "--moments bf16,in=host"
                                                : moments == HZP_Q8 ? "--moments q8,in=host"
                                                                    : "--moments f32,in=host"},
        {plan->dtype != HZP_BF16, "--dtype bf16"},
        {plan->serves, "a smaller --kv-memory"},
        {plan->serves && q->slots > 2, "fewer --slots"},
        {plan->trains, "smaller --micro-rows"},
        {plan->serves, "smaller --step-rows"},
        {plan->serves && plan->trains, "--no-train"},
    };
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < HZP_COUNT(advice) && n < size; i++)
        if (advice[i].helps)
            n +=
                (size_t)snprintf(text + n, size - n, "%s%s", n ? ", " : "; use ", advice[i].option);
}

/* "weights 248 MB + KV cache 1.00 GB + ... = 9.10 GB, but only 8.00 GB are available; ..." */
static int refuse(const struct hzp_memory_request *q, const struct hzp_memory_plan *plan,
                  struct hzp_err_text *reterr)
{
    const char *option = too_large(q, plan);
    char sum[320] = "", size[16], total[16], limit[16], advice[200];
    size_t at = 0;
    for (int i = 0; i < plan->lines; i++)
        if (!plan->line[i].host)
            at += (size_t)snprintf(sum + at, sizeof(sum) - HZP_MIN(at, sizeof(sum) - 1), "%s%s %s",
                                   i ? " + " : "", plan->line[i].what,
                                   hzp_size_text(plan->line[i].bytes, size));
    advise(q, plan, advice, sizeof(advice));
    return hzp_fail_param(reterr, option ? HZP_EINVAL : HZP_ENOMEM, option ? option : "",
                          "%s%snot enough memory: %s = %s, but only %s are available%s",
                          option ? option : "", option ? ": " : "", sum,
                          hzp_size_text(plan->total, total), hzp_size_text(plan->limit, limit),
                          advice);
}

static int plan_all(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                    bool longer, struct hzp_memory_plan *ret, struct hzp_err_text *reterr)
{
    const struct hzp_model_config *config = &layout->config;
    memset(ret, 0, sizeof(*ret));
    ret->limit = q->limit;
    ret->dtype = hzp_settings_dtype(q->model, config);
    ret->kv = q->model->kv_fp8 ? HZP_E4M3 : ret->dtype;
    ret->serves = q->serving != NULL;
    ret->trains = q->training != NULL;
    ret->fp8 = ret->serves && (q->model->fp8 || q->serving->draft == HZP_DRAFT_FP8);
    ret->slots = q->slots;
    if (q->model->context > config->positions)
        return hzp_wrong(reterr, "--context", "%lld exceeds the %d positions of the model",
                         (long long)q->model->context, config->positions);
    ret->positions = q->model->context ? (int32_t)q->model->context : config->positions;
    if (ret->trains)
        ret->recipe = hzp_settings_recipe(q->training, config);

    char text[16];
    size_t slots = (size_t)q->slots;
    struct hzp_groups_bytes sharded = sharded_bytes(q, layout, ret);
    char part[PART_SIZE];
    add(ret, "weights", sharded.weights, "%d version%s of %s in %s%s", q->slots,
        slots == 1 ? "" : "s", hzp_size_text(sharded.weights / slots, text),
        ret->dtype == HZP_BF16 ? "BF16" : "F32",
        part_text(q, hzp_shards_of(&q->shards).groups.z3, part));
    if (sharded.gathered)
        add(ret, "gathered", sharded.gathered, "weights of other ranks, a ring of three layers");
    if (ret->fp8)
        add(ret, "fp8", slots * hzp_fp8_bytes(layout),
            "of each version, the projections for serving: %s in E4M3",
            hzp_size_text(hzp_fp8_bytes(layout), text));
    if (q->lanes)
        add(ret, "lanes", q->lanes, "workspace and staging of the device's lanes");
    if (ret->trains)
        plan_training(q, layout, longer, ret);
    if (ret->serves)
        HZP_TRY(plan_serving(q, layout, ret, reterr));
    if (ret->trains && q->copies)
        plan_copy(q, layout, ret);
    if (ret->total > q->limit)
        return refuse(q, ret, reterr);
    char limit[16];
    if (ret->host > q->host_limit) /* 0 only where there is none */
        return hzp_wrong(reterr, "--moments",
                         "in=host takes %s of the host's memory, of which half, %s, may be used; "
                         "bf16 and q8 take less",
                         hzp_size_text(ret->host, text), hzp_size_text(q->host_limit, limit));
    return HZP_OK;
}

int hzp_memory_plan(const struct hzp_memory_request *q, const struct hzp_layout *layout,
                    struct hzp_memory_plan *ret, struct hzp_err_text *reterr)
{
    struct hzp_err_text err = {{0}, {0}};
    if (plan_all(q, layout, true, ret, &err) == HZP_OK)
        return HZP_OK;
    return plan_all(q, layout, false, ret, reterr); /* long examples only where there is memory */
}

void hzp_memory_plan_print(const struct hzp_memory_plan *plan, FILE *out)
{
    char text[16];
    fprintf(out, "memory plan\n");
    for (int i = 0; i < plan->lines; i++)
        fprintf(out, "  %-10s %10s   %s\n", plan->line[i].what,
                hzp_size_text(plan->line[i].bytes, text), plan->line[i].how);
    fprintf(out, "  %-10s %10s", "total", hzp_size_text(plan->total, text));
    fprintf(out, "   of %s\n", hzp_size_text(plan->limit, text));
    if (plan->host)
        fprintf(out, "  %-10s %10s   of the host's, locked\n", "beside",
                hzp_size_text(plan->host, text));
}

void hzp_memory_plan_log(const struct hzp_memory_plan *plan)
{
    for (int i = 0; i < plan->lines; i++)
        hzp_log(HZP_LOG_INFO, "engine", "memory part=\"%s\" bytes=%zu how=\"%s\"",
                plan->line[i].what, plan->line[i].bytes, plan->line[i].how);
    hzp_log(HZP_LOG_INFO, "engine", "memory total_bytes=%zu limit_bytes=%zu host_bytes=%zu",
            plan->total, plan->limit, plan->host);
}
