/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/replicas/world.h"

#include "base/thread.h"

static void open_engine(struct world *w)
{
    struct hzp_model_config config = {.family = "llama",
                                      .layers = 2,
                                      .width = 32,
                                      .inner = 48,
                                      .vocab = VOCAB,
                                      .heads = {.heads = 2, .kv_heads = 1, .dim = 16},
                                      .positions = POSITIONS,
                                      .norm_eps = 1e-5f,
                                      .rope_theta = 10000,
                                      .disk_type = HZP_F32,
                                      .bos = -1};
    struct hzp_scheduler_config scheduler = {.running_max = 4,
                                             .waiting_max = 4,
                                             .waiting_tokens_max = 1 << 20,
                                             .edits_max = 4 * VOCAB,
                                             .pin_ns = HANG_NS};
    struct hzp_batch_config batch = {.rows_max = 32,
                                     .segs_max = 4,
                                     .page_stride = POSITIONS / PAGE_ROWS,
                                     .logits_max = 32,
                                     .hidden_cols = 32,
                                     .masks_max = 4,
                                     .mask_words = hzp_mask_words(VOCAB),
                                     .edits_max = 4 * VOCAB};
    struct fixture_config fixture = {
        .device = "ref",
        .threads = 1,
        .config = config,
        .store = {.type = HZP_F32, .slots = 3, .max_staleness = 1, .first_id = 1}};
    fixture_open(&w->m, &fixture);
    struct hzp_version *draft = fixture_begin(&w->m);
    fixture_units_random(w->m.dev, hzp_version_units(w->m.weights, draft), 11, 0.25f);
    draft->record.learned_through = LEARNED;
    fixture_publish(&w->m, draft, 0);
    MUST(hzp_kvpool_create(w->m.model, PAGES, PAGE_ROWS, &w->pool));
    MUST(hzp_serve_space_create(w->m.model, batch.rows_max, batch.logits_max, &w->space));
    MUST(hzp_batch_create(w->m.dev, &batch, &w->batch));
    MUST(hzp_scheduler_create(&scheduler, w->m.model, w->pool, &w->scheduler));
}

void open_world(struct world *w, double silent_s)
{
    open_world_of(w, 2, silent_s);
}

void open_world_of(struct world *w, int ranks, double silent_s)
{
    memset(w, 0, sizeof(*w));
    open_engine(w);
    snprintf(w->folder, sizeof(w->folder), "/tmp/hzpserve-front-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->at.endpoint, sizeof(w->at.endpoint), "ipc://%s/replicas", w->folder);
    struct hzp_front_config config = {
        .at = &w->at, .record = RECORD, .ranks = ranks, .silent_s = silent_s};
    MUST(hzp_front_create(&config, &w->front, NULL));
    struct hzp_loop_config loop = {
        .model = w->m.model,
        .space = w->space,
        .batch = w->batch,
        .source = {hzp_scheduler_source(w->scheduler), hzp_front_source(w->front)},
        .sources = 2};
    MUST(hzp_loop_create(&loop, &w->loop));
    w->hello = (struct hzp_hello){.ranks = ranks,
                                  .vocab = VOCAB,
                                  .positions = POSITIONS,
                                  .width = 32,
                                  .layers = 2,
                                  .running_max = 4,
                                  .waiting_max = 4,
                                  .page_rows = PAGE_ROWS,
                                  .kv_pages = PAGES,
                                  .version = 1,
                                  .checksum = 77};
    struct hzp_front_parts parts = {.scheduler = w->scheduler,
                                    .loop = w->loop,
                                    .weights = w->m.weights,
                                    .model = w->m.model,
                                    .own = w->hello};
    MUST(hzp_front_start(w->front, &parts));
    w->hello.rank = 1;
    MUST(hzp_pipe_connect(&w->at, HZP_MESSAGE_MAX, &w->pipe, NULL));
}

void close_world(struct world *w)
{
    hzp_front_destroy(w->front);
    hzp_pipe_close(w->pipe);
    hzp_message_fini(&w->out);
    hzp_loop_destroy(w->loop);
    hzp_scheduler_destroy(w->scheduler);
    hzp_batch_destroy(w->batch);
    hzp_serve_space_destroy(w->space);
    hzp_kvpool_destroy(w->pool);
    fixture_close(&w->m);
    unlink(w->at.endpoint + strlen("ipc://"));
    rmdir(w->folder);
}

void say(struct world *w)
{
    assert_int_equal(hzp_pipe_send(w->pipe, NULL, w->out.data, w->out.bytes), HZP_OK);
}

void hear(struct world *w, char letter, const char **ret, size_t *ret_bytes)
{
    uint64_t end = hzp_now_ns() + HANG_NS;
    while (hzp_now_ns() < end) {
        hzp_pipe_wait(w->pipe, 50);
        while (hzp_pipe_receive(w->pipe, NULL, ret, ret_bytes))
            if (**ret == letter)
                return;
    }
    fail_msg("no message %c", letter);
}

void come_up(struct world *w)
{
    const char *data;
    size_t bytes;
    hzp_hello_write(&w->out, &w->hello, RECORD);
    say(w);
    hear(w, 'W', &data, &bytes);
}

void publish_step(struct world *w, int64_t learned, int64_t updates)
{
    hzp_weights_reclaim(w->m.weights, UINT64_MAX); /* no step is in flight */
    struct hzp_version *draft = fixture_begin(&w->m);
    fixture_units_random(w->m.dev, hzp_version_units(w->m.weights, draft), 11, 0.25f);
    draft->record.learned_through = learned;
    draft->record.optimizer_step += updates;
    fixture_publish(&w->m, draft, 0);
}
