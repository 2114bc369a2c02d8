/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that cannot be combined: each is refused by name where it applies, and only there, and
   the document has the same table. */
#include "api/engine/exclusions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *operations;

/* What a plain server has. */
static struct hzp_engine_settings plain(void)
{
    return (struct hzp_engine_settings){.serving.slots = 2,
                                        .training = {.publish_every = 1, .max_staleness = 1},
                                        .learning = {.effect = 16, .max_effect = 1}};
}

static void allows(const struct hzp_engine_settings *s, int ranks)
{
    struct hzp_err_text err = {0};
    int r = hzp_exclusions_check(s, ranks, &err);
    if (r < 0)
        fail_msg("%s", err.text);
}

static void refuses(const struct hzp_engine_settings *s, int ranks, const char *option,
                    const char *text)
{
    struct hzp_err_text err = {0};
    assert_int_equal(hzp_exclusions_check(s, ranks, &err), HZP_EINVAL);
    assert_string_equal(err.param, option);
    assert_non_null(strstr(err.text, text));
}

static void test_skip(void **state)
{
    struct hzp_engine_settings s = plain();
    s.training.skip = 0.25;
    for (int ranks = 1; ranks <= 4; ranks++)
        allows(&s, ranks);
    s.ranks.tensor = 2;
    allows(&s, 4);
    s.ranks.tensor = 1;
    s.split.ride = 64;
    refuses(&s, 1, "--skip", "--skip cannot be used with --train-share ride: ");
    s.no_train = 1;
    refuses(&s, 1, "--train-share", "--train-share ride cannot be used with --no-train: ");
}

static void test_tensor(void **state)
{
    struct hzp_engine_settings s = plain();
    s.ranks.tensor = 2;
    allows(&s, 2);
    s.training.ordered = 1;
    allows(&s, 2);
    allows(&s, 4);
    s.no_train = 1;
    allows(&s, 2);
    refuses(&s, 4, "--no-train", "--no-train cannot be used with --ranks above --tensor: ");
    s.model.fp8 = 1;
    allows(&s, 2);
    s.serving.prefix_host = 1 << 20;
    refuses(&s, 2, "--prefix-bytes", "--prefix-bytes host cannot be used with --tensor");
    s = plain();
    s.ranks.tensor = 2;
    s.serving.slots = 3;
    refuses(&s, 2, "--slots", "--slots above 2 cannot be used with --tensor");
}

static void test_replicas(void **state)
{
    struct hzp_engine_settings s = plain();
    s.ranks.replicas = 1;
    allows(&s, 2);
    refuses(&s, 1, "--replicas", "--ranks starts several");
    s.training.publish_every = 2;
    refuses(&s, 2, "--publish", "every above 1 cannot be used with --replicas");
    s.training.publish_every = 1;
    s.training.publish = HZP_PUBLISH_LESSON;
    allows(&s, 2);
    s.no_train = 1;
    allows(&s, 2);
    s.ranks.link = HZP_RANKS_MPI;
    refuses(&s, 2, "--replicas", "--link mpi");
    s.ranks.replicas = 0;
    refuses(&s, 2, "--no-train", "--ranks alone");
    allows(&s, 1);
}

static void test_stages(void **state)
{
    struct hzp_engine_settings s = plain();
    s.training.stages = 2;
    allows(&s, 2);
    refuses(&s, 1, "--shard", "--shard stages cannot be used with one rank: ");
    s.training.z1 = 2;
    refuses(&s, 2, "--shard", "--shard stages cannot be used with --shard z1, z2 or z3: ");
    s.training.z1 = 0;
    s.training.skip = 0.25;
    allows(&s, 4);
    s.training.skip = 0;
    s.ranks.tensor = 2;
    refuses(&s, 4, "--shard", "--shard stages cannot be used with --tensor: ");
    s.training.stages = 1;
    allows(&s, 4);
}

static void test_mesh(void **state)
{
    struct hzp_engine_settings s = plain();
    s.mesh.url = (struct hzp_option_list){.item = {"tcp://a:1", "tcp://b:1"}, .count = 2};
    s.canary.share = 0.5;
    s.learning.gate = "held-out";
    allows(&s, 1);
    s.canary.share = 0;
    refuses(&s, 2, "--mesh", "--mesh cannot be used with --ranks: ");
    s.learning.max_effect = 0.5;
    refuses(&s, 1, "--mesh", "--max-effect");
    s.no_train = 1;
    refuses(&s, 1, "--mesh", "--no-train");
}

static void test_drafts(void **state)
{
    struct hzp_engine_settings s = plain();
    s.canary.share = 0.5;
    allows(&s, 1);
    refuses(&s, 2, "--canary", "a trial is known on one rank only");
    s.training.publish_every = 4;
    refuses(&s, 1, "--canary", "--publish every above 1");
    s.canary.share = 0;
    allows(&s, 1);
    s.learning.gate = "held-out";
    refuses(&s, 1, "--gate", "--publish every above 1");
    s.learning.max_effect = 0.5;
    s.learning.gate = NULL;
    refuses(&s, 1, "--max-effect", "--publish every above 1");
    s.training.publish_every = 1;
    allows(&s, 1);
    assert_true(hzp_settings_by_lesson(&s));
    s.training.publish = HZP_PUBLISH_UPDATE;
    refuses(&s, 1, "--max-effect", "--publish update");
    s.training.publish = HZP_PUBLISH_AUTO;
    s.learning.max_effect = 1;
    assert_false(hzp_settings_by_lesson(&s));
    s.learning.gate = "held-out";
    assert_true(hzp_settings_by_lesson(&s));
    s.training.publish = HZP_PUBLISH_LESSON;
    allows(&s, 2);
    s.ranks.tensor = 2;
    allows(&s, 2);
    allows(&s, 4);
}

static void test_muon(void **state)
{
    struct hzp_engine_settings s = plain();
    s.training.optimizer = HZP_MUON;
    s.training.moment_type = 1;
    allows(&s, 1);
    refuses(&s, 2, "--optimizer", "--optimizer muon cannot be used with --ranks: ");
    s.training.moment_type = 2;
    refuses(&s, 1, "--optimizer", "--optimizer muon cannot be used with --moments q8: ");
    s.training.optimizer = HZP_NADAM;
    s.training.moments_in = 1;
    allows(&s, 1);
    refuses(&s, 2, "--moments", "--moments in=host cannot be used with --ranks: ");
    s.training.optimizer = HZP_MUON;
    s.no_train = 1;
    allows(&s, 1);
}

/* OPERATIONS.md has the rows of the table, one below the other, and no more. */
static void test_document(void **state)
{
    static char text[1 << 20];
    static const char head[] = "| option | not with | why |\n|---|---|---|\n";
    FILE *file = fopen(operations, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    fclose(file);
    const char *at = strstr(text, head);
    assert_non_null(at);
    at += strlen(head);
    for (int i = 0; i < hzp_exclusion_count; i++) {
        const struct hzp_exclusion *row = &hzp_exclusion_rows[i];
        char line[512];
        int n = snprintf(line, sizeof(line), "| `%s` | `%s` | %s |\n", row->option, row->with,
                         row->why);
        if (strncmp(at, line, (size_t)n) != 0)
            fail_msg("row %d of the table in OPERATIONS.md is not %s", i, line);
        at += n;
    }
    assert_int_equal(*at, '\n');
}

int main(int argc, char **argv)
{
    operations = argv[argc - 1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_skip),     cmocka_unit_test(test_tensor),
        cmocka_unit_test(test_replicas), cmocka_unit_test(test_stages),
        cmocka_unit_test(test_mesh),     cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_muon),     cmocka_unit_test(test_document)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
