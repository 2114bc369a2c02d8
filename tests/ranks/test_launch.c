/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ranks/test_launch.c - what is read from a launcher's environment, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "mesh/launch/launch.h"

/* Pairs of name and value. */
static const char *get(void *ctx, const char *name)
{
    for (const char *const *pair = ctx; *pair; pair += 2)
        if (!strcmp(pair[0], name))
            return pair[1];
    return NULL;
}

static struct hzp_launch launch;
static struct hzp_err_text why;

#define READ(...) hzp_launch_read(get, (const char *[]){__VA_ARGS__, NULL, NULL}, &launch, &why)

static void expect(const char *kind, int rank, int ranks, int local_rank, const char *from)
{
    assert_string_equal(launch.kind, kind);
    assert_int_equal(launch.rank, rank);
    assert_int_equal(launch.ranks, ranks);
    assert_int_equal(launch.local_rank, local_rank);
    assert_string_equal(launch.from, from);
}

static void test_launchers(void **state)
{
    assert_int_equal(READ("HOME", "/"), HZP_OK);
    expect("", 0, 1, -1, "");
    assert_int_equal(READ("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4",
                          "OMPI_COMM_WORLD_LOCAL_RANK", "1", "OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                     HZP_OK);
    expect("mpirun", 1, 4, 1,
           "OMPI_COMM_WORLD_RANK,OMPI_COMM_WORLD_SIZE,OMPI_COMM_WORLD_LOCAL_RANK");
    assert_int_equal(launch.local_ranks, 2);
    assert_int_equal(READ("RANK", "3", "WORLD_SIZE", "8", "LOCAL_RANK", "3", "MASTER_ADDR",
                          "10.0.0.7", "MASTER_PORT", "29500"),
                     HZP_OK);
    expect("torchrun", 3, 8, 3, "RANK,WORLD_SIZE,LOCAL_RANK,MASTER_ADDR,MASTER_PORT");
    assert_string_equal(launch.host, "10.0.0.7");
    assert_int_equal(launch.port, 29500);
    assert_int_equal(READ("PMI_RANK", "0", "PMI_SIZE", "2"), HZP_OK);
    expect("pmi", 0, 2, -1, "PMI_RANK,PMI_SIZE");
    assert_int_equal(READ("SLURM_PROCID", "5", "SLURM_STEP_NUM_TASKS", "6", "SLURM_LOCALID", "1"),
                     HZP_OK);
    expect("slurm", 5, 6, 1, "SLURM_PROCID,SLURM_STEP_NUM_TASKS,SLURM_LOCALID");
    assert_int_equal(launch.local_ranks, -1);
}

/* How many of Slurm's tasks run on this node. */
static void test_slurm_tasks(void **state)
{
    static const struct {
        const char *list, *node;
        int local_ranks;
    } row[] = {{"6", "0", 6},         {"2(x3)", "2", 2}, {"2(x2),1,1", "1", 2},
               {"2(x2),1,1", "3", 1}, {"3,2,1", "2", 1}, {"3", "1", -1}};
    for (int i = 0; i < HZP_COUNT(row); i++) {
        assert_int_equal(READ("SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "6", "SLURM_LOCALID",
                              "0", "SLURM_NODEID", row[i].node, "SLURM_STEP_TASKS_PER_NODE",
                              row[i].list),
                         HZP_OK);
        assert_int_equal(launch.local_ranks, row[i].local_ranks);
        assert_false(launch.ours);
    }
    static const char *const bad[] = {"x", "0", "2(x", "2(x0)", "2(x3", "2;1", "-1"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        assert_int_equal(READ("SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "6", "SLURM_NODEID", "1",
                              "SLURM_STEP_TASKS_PER_NODE", bad[i]),
                         HZP_EINVAL);
        assert_string_equal(why.param, "SLURM_STEP_TASKS_PER_NODE");
    }
}

/* Half a pair, an empty value, and Slurm's batch script are no launcher. */
static void test_no_launcher(void **state)
{
    assert_int_equal(READ("RANK", "3"), HZP_OK);
    expect("", 0, 1, -1, "");
    assert_int_equal(READ("RANK", "", "WORLD_SIZE", "2"), HZP_OK);
    expect("", 0, 1, -1, "");
    assert_int_equal(READ("SLURM_PROCID", "0", "SLURM_NTASKS", "4", "SLURM_JOB_ID", "77"), HZP_OK);
    expect("", 0, 1, -1, "");
}

/* mpirun inside a Slurm job: mpirun's counts.  mpirun inside torchrun: a contradiction. */
static void test_two_launchers(void **state)
{
    assert_int_equal(READ("SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "2", "OMPI_COMM_WORLD_RANK",
                          "3", "OMPI_COMM_WORLD_SIZE", "8"),
                     HZP_OK);
    expect("mpirun", 3, 8, -1, "OMPI_COMM_WORLD_RANK,OMPI_COMM_WORLD_SIZE");
    assert_int_equal(READ("OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "8", "RANK", "3",
                          "WORLD_SIZE", "8"),
                     HZP_OK);
    expect("mpirun", 3, 8, -1, "OMPI_COMM_WORLD_RANK,OMPI_COMM_WORLD_SIZE");
    assert_int_equal(READ("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2", "RANK", "0",
                          "WORLD_SIZE", "4"),
                     HZP_EINVAL);
    assert_string_equal(why.text,
                        "the environment contradicts itself: OMPI_COMM_WORLD_RANK says rank 0 of "
                        "2, RANK says rank 0 of 4; unset what the launcher did not set");
    assert_string_equal(why.param, "RANK");
}

static void test_values(void **state)
{
    static const char *const bad[] = {"-1", "2", "x", "1x", "99999999999", "1.5"};
    for (int i = 0; i < HZP_COUNT(bad); i++) {
        assert_int_equal(READ("RANK", bad[i], "WORLD_SIZE", "2"), HZP_EINVAL);
        assert_string_equal(why.param, "RANK");
        assert_non_null(strstr(why.text, "not a number from 0 to 1"));
    }
    assert_int_equal(READ("RANK", "0", "WORLD_SIZE", "0"), HZP_EINVAL);
    assert_string_equal(why.param, "WORLD_SIZE");
    assert_int_equal(READ("RANK", "0", "WORLD_SIZE", "1025"), HZP_EINVAL);
    assert_int_equal(READ("RANK", "0", "WORLD_SIZE", "2", "LOCAL_RANK", "7"), HZP_EINVAL);
    assert_string_equal(why.param, "LOCAL_RANK");
    assert_int_equal(READ("RANK", "0", "WORLD_SIZE", "2", "MASTER_PORT", "0"), HZP_EINVAL);
    assert_string_equal(why.param, "MASTER_PORT");
    static char host[400];
    memset(host, 'h', sizeof(host) - 1);
    assert_int_equal(READ("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", host), HZP_EINVAL);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launchers), cmocka_unit_test(test_slurm_tasks),
        cmocka_unit_test(test_no_launcher), cmocka_unit_test(test_two_launchers),
        cmocka_unit_test(test_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
