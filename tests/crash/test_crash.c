/* SPDX-License-Identifier: Apache-2.0 */
/* tests/crash/test_crash.c - kill -9 of a learning server at random moments, many times on one
 * state directory.  After each kill: nothing acknowledged is lost, sequence numbers have no
 * holes, version ids only grow, the newest checkpoint is complete, and the server reports what
 * it trains again.  In the end each example has had exactly its passes.
 *
 *     test_crash [--rounds N] [--seconds S] [--seed N]
 *
 * It ends after this many rounds or seconds, but not before each kind of event was seen.
 */
#include "tests/crash/past.h"

#include "base/thread.h"
#include "tests/serve/seeded.h"
#include "tests/weights/scratch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* --- Lives ------------------------------------------------------------------------------------ */

/* Runs one life.  kill_us < 0: it ends by itself.  Returns true if it had started. */
static bool live(struct past *p, const char *model_dir, const char *state_dir, int kill_us,
                 uint64_t through, uint64_t again)
{
    int fd[2], status;
    HZP_ASSERT(pipe(fd) == 0);
    fflush(stdout);
    pid_t child = fork();
    HZP_ASSERT(child >= 0);
    if (!child) {
        close(fd[0]);
        struct crash_life life = {.model_dir = model_dir,
                                  .state_dir = state_dir,
                                  .fd = fd[1],
                                  .next_text = p->next_text,
                                  .post = kill_us >= 0};
        crash_live(&life);
    }
    close(fd[1]);
    pid_t killer = kill_us >= 0 ? fork() : 0;
    if (kill_us >= 0 && !killer) {
        /* Separate from reading, so that the pipe never fills up while the parent waits. */
        usleep((useconds_t)kill_us);
        kill(child, SIGKILL);
        _exit(0);
    }
    struct crash_told told;
    bool started = false;
    ssize_t n;
    while ((n = read(fd[0], &told, sizeof(told))) == (ssize_t)sizeof(told))
        started |= past_hear(p, &told, through, again);
    if (n > 0)
        PAST_FAIL(p, "half a word in the pipe");
    close(fd[0]);
    waitpid(child, &status, 0);
    if (killer)
        waitpid(killer, NULL, 0);
    if (kill_us >= 0 ? !WIFSIGNALED(status) : !(WIFEXITED(status) && !WEXITSTATUS(status)))
        PAST_FAIL(p, "it ended by itself, status %d", status);
    return started;
}

/* Whether every kind of event that is checked has happened; otherwise the checks were empty. */
static bool all_seen(const struct past *p)
{
    return p->bodies && p->versions && p->checkpoints && p->again && p->in_part;
}

/* Stops after the given rounds and seconds once all events were seen: a slow machine needs more
 * rounds, and longer lives. */
static int run(struct past *p, int rounds, double seconds, uint64_t seed)
{
    char model_dir[300], state_dir[300];
    uint64_t through = 0, again = 0, begin = hzp_now_ns();
    uint32_t life_us = 250000;
    snprintf(model_dir, sizeof(model_dir), "%s/model", scratch_dir);
    snprintf(state_dir, sizeof(state_dir), "%s/state", scratch_dir);
    past_make_model(model_dir);
    for (p->round = 1; p->round <= rounds || !all_seen(p); p->round++) {
        int kill_us = (int)seeded(&seed, seeded(&seed, 4) ? life_us : life_us / 8);
        p->kills_opening += !live(p, model_dir, state_dir, kill_us, through, again);
        past_check_disk(p, state_dir, &through, &again);
        if ((double)(hzp_now_ns() - begin) > seconds * 1e9 && all_seen(p))
            break;
        if (p->round % 8 == 0 && !all_seen(p))
            life_us *= 2;
    }
    /* Then lets it finish undisturbed, twice: what it learned is kept, and ids continue without
       a gap. */
    live(p, model_dir, state_dir, -1, through, again);
    past_check_disk(p, state_dir, &through, &again);
    if (through != p->samples || p->unfinished || again)
        PAST_FAIL(p, "at the end %llu of %llu are learned and kept, %llu would be trained again",
                  (unsigned long long)through, (unsigned long long)p->samples,
                  (unsigned long long)again);
    uint64_t last = p->served;
    live(p, model_dir, state_dir, -1, through, again);
    if (p->served != last + 1)
        PAST_FAIL(p, "version %llu follows %llu after an orderly end",
                  (unsigned long long)p->served, (unsigned long long)last);
    printf("%d lives (%llu killed while opening), %llu bodies and %llu examples acknowledged, %llu "
           "versions, %llu checkpoints, %llu half-written ones seen, %llu examples trained again\n",
           p->round, (unsigned long long)p->kills_opening, (unsigned long long)p->bodies,
           (unsigned long long)p->samples, (unsigned long long)p->versions,
           (unsigned long long)p->checkpoints, (unsigned long long)p->leftovers,
           (unsigned long long)p->again);
    return 0;
}

int main(int argc, char **argv)
{
    int rounds = 60;
    double seconds = 12;
    uint64_t seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--rounds"))
            rounds = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--seconds"))
            seconds = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--seed"))
            seed = strtoull(argv[i + 1], NULL, 10);
        else
            return 2;
    }
    struct past past = {.text = hzp_xcalloc(PAST_SEQUENCES_MAX, sizeof(*past.text))};
    if (scratch_setup(NULL) < 0)
        return 1;
    int r = run(&past, rounds, seconds, seed);
    scratch_teardown(NULL);
    free(past.text);
    return r;
}
