/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ranks/ranks_mpi.c - a job whose last rank dies or stops: run by test_ranks.py under mpirun.
 *
 *     ranks_mpi die     the last rank kills itself with SIGKILL
 *     ranks_mpi stop    the last rank stops itself, and is killed when the others have named it
 *
 * Every other rank waits for a sum with all ranks, and prints what the link says. */
#include "mesh/launch/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed(const char *what, const struct hzp_err_text *why)
{
    printf("%s: %s\n", what, why->text);
    return 1;
}

int main(int argc, char **argv)
{
    struct hzp_ranks_settings settings = {.silent_s = 4, .meet_s = 600};
    struct hzp_err_text why = {0};
    struct hzp_ranks ranks;
    uint64_t pid[64] = {0}, sum = 1;
    hzp_ticket ticket;
    struct hzp_ranks_config config = {.settings = &settings, .record = "build 1\n"};
    if (hzp_ranks_open(&config, &ranks, &why) < 0)
        return failed("open", &why);
    bool stop = argc > 1 && !strcmp(argv[1], "stop"), last = ranks.rank == ranks.ranks - 1;
    uint64_t mine = (uint64_t)getpid();
    struct hzp_transfer pids = {
        .op = HZP_ALL_GATHER, .type = HZP_WIRE_U64, .count = 1, .send = &mine, .recv = pid};
    if (hzp_link_post(ranks.link, &pids, &ticket, &why) < 0 ||
        hzp_link_wait(ranks.link, ticket, &why) < 0)
        return failed("gather", &why);
    if (last)
        raise(stop ? SIGSTOP : SIGKILL);
    struct hzp_transfer wait = {
        .op = HZP_ALL_REDUCE, .type = HZP_WIRE_U64, .count = 1, .send = &sum, .recv = &sum};
    int r = hzp_link_post(ranks.link, &wait, &ticket, &why);
    if (r == HZP_OK)
        r = hzp_link_wait(ranks.link, ticket, &why);
    printf("rank %d: %s: %s\n", ranks.rank, hzp_err_name(r), why.text);
    fflush(stdout);
    if (stop && ranks.rank == 0)
        kill((pid_t)pid[ranks.ranks - 1], SIGKILL);
    hzp_ranks_close(&ranks);
    return 0;
}
