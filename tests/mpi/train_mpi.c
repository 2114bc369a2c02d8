/* SPDX-License-Identifier: Apache-2.0 */
/* Training on several processes: run by mpirun, one process a rank.
 *
 *     train_mpi Z1 Z2 Z3 f32|bf16
 *
 * Rank 0 first makes a run of one rank in the ordered mode, and saves it; then all ranks train,
 * rank 0 saves again, and the two files have the same bytes.  The first version and the state that
 * the second half begins with come to the others over the link. */
#include "tests/mpi/connect.h"
#include "tests/train/ranks.h"

#include <stdio.h>
#include <unistd.h>

enum { HALF = 8, UPDATES = 20 };

static char dir[] = "/tmp/hzp-train-mpi-XXXXXX";
static struct hzp_err_text text;

static struct tiny_config config_of(char **argument, int ranks)
{
    struct tiny_config config = tiny_defaults();
    config.type = strcmp(argument[4], "bf16") ? HZP_F32 : HZP_BF16;
    config.recipe.update_tokens = 90;
    config.recipe.micro_rows = 14;
    config.queue.passes = 30;
    config.layers = 3;
    config.shards = (struct hzp_shards){
        .groups = {ranks, atoi(argument[1]), atoi(argument[2]), atoi(argument[3])},
        .ordered = true};
    return config;
}

static char *read_file(size_t *ret_size)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        fail_msg("%s cannot be read", path);
    *ret_size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*ret_size);
    if (fread(data, *ret_size, 1, file) != 1)
        fail_msg("%s cannot be read", path);
    fclose(file);
    return data;
}

static void run_to(struct tiny *t, int32_t reports)
{
    struct hzp_trainer_stats stats;
    while (t->reports < reports) {
        if (hzp_loop_turn(t->loop) > 0)
            continue;
        hzp_trainer_read_stats(t->trainer, &stats);
        if (stats.failure[0])
            fail_msg("%s", stats.failure);
        hzp_loop_sleep(t->loop, 10000000);
    }
}

static void save(struct tiny *t)
{
    TINY_MUST(hzp_trainer_save(t->trainer, hzp_weights_current(t->weights), dir, "a note", &text));
}

/* One rank's runs: all updates, whose file is returned, and the first HALF, saved in dir.  Returns
 * the latter. */
static struct tiny *run_alone(struct tiny_config config, char **ret_end, size_t *ret_size)
{
    config.shards.groups = (struct hzp_groups){0};
    struct tiny *t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 40);
    run_to(t, UPDATES);
    save(t);
    *ret_end = read_file(ret_size);
    tiny_close(t);
    t = tiny_open(&config);
    tiny_publish(t);
    tiny_push(t, 1, 40);
    run_to(t, HALF);
    save(t);
    return t;
}

static void lead(struct tiny_config config, struct hzp_link *link)
{
    char *end, *again;
    size_t size, again_size;
    if (!mkdtemp(dir))
        fail_msg("%s cannot be made", dir);
    struct tiny *half = run_alone(config, &end, &size);
    config.link = link;
    config.shards.rank = 0;
    struct tiny *t = tiny_open(&config);
    hzp_trainer_set_loop(t->trainer, t->loop);
    for (int32_t u = 0; u < t->fixture.layout.units && config.shards.groups.z3 == 1; u++) {
        struct hzp_unit_view from = hzp_unit_view(tiny_units(half), u);
        memcpy(hzp_version_unit(t->weights, t->draft, u).base, from.base, hzp_unit_bytes(&from));
    }
    int32_t left = UPDATES;
    if (config.shards.groups.z3 == 1) { /* goes on where one rank has stopped */
        const struct hzp_sample *draw[256];
        TINY_MUST(hzp_trainer_load(t->trainer, t->draft, dir, true, NULL, &text));
        left -= HALF;
        tiny_push(t, 1, 40);
        for (int i = 0; i < HALF; i++) {
            hzp_sample_queue_draw(t->queue, config.recipe.update_tokens, draw, 256);
            hzp_sample_queue_done(t->queue);
        }
    } else {
        tiny_push(t, 1, 40);
    }
    tiny_publish(t);
    TINY_MUST(hzp_trainer_send_start_state(t->trainer, &text));
    run_to(t, left);
    ranks_rest(t);
    save(t);
    again = read_file(&again_size);
    if (size != again_size || memcmp(end, again, size))
        fail_msg("the checkpoints of one rank and of %d differ", hzp_link_ranks(link));
    hzp_trainer_dismiss_ranks(t->trainer);
    hzp_trainer_set_loop(t->trainer, NULL);
    tiny_close(t);
    tiny_close(half);
    free(end);
    free(again);
    char path[96];
    snprintf(path, sizeof(path), "%s/trainer.safetensors", dir);
    unlink(path);
    rmdir(dir);
}

static void follow(const struct tiny_config *config, struct hzp_link *link)
{
    struct other o;
    struct hzp_learner_by_link_stats stats;
    other_open(&o, config, link);
    TINY_MUST(
        hzp_learner_by_link_receive(o.learner, hzp_weights_current(o.fixture.weights), &text));
    hzp_loop_stop(o.loop, false);
    TINY_MUST(hzp_loop_run(o.loop));
    hzp_learner_by_link_read_stats(o.learner, &stats);
    if (!stats.stopped)
        fail_msg("the learner ended by itself: %s", stats.failure);
    if (stats.optimizer_step != UPDATES)
        fail_msg("the learner has done %d updates", (int)stats.optimizer_step);
    other_close(&o, link);
}

static char **arguments;

static void test_ranks(void **state)
{
    struct hzp_link *link;
    TINY_MUST(connect_ranks(0, 0, &link, &text));
    struct tiny_config config = config_of(arguments, hzp_link_ranks(link));
    if (hzp_link_rank(link) == 0)
        lead(config, link);
    else
        follow(&config, link);
    disconnect_ranks(link);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranks)};
    if (argc != 5)
        return 2;
    arguments = argv;
    return cmocka_run_group_tests_name("train_mpi", tests, NULL, NULL);
}
