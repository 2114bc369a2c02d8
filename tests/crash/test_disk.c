/* SPDX-License-Identifier: Apache-2.0 */
/* tests/crash/test_disk.c - a learning server on a disk that fails, and after power cuts.
 *
 *     test_disk cuts [N [SEED]]     N power cuts, during two lives of a server
 *     test_disk faults [N [SEED]]   N lives, in each of which calls of the disk fail; and cuts then
 *
 * After each a server opens the state, on a disk that works.  Nothing acknowledged is lost,
 * sequence numbers have no holes, version ids only grow, the newest checkpoint that was reported is
 * whole and is used, its weights are those the journal describes, and what is trained again is
 * counted.  Some of the servers learn all that is left and are looked at again.  A life with faults
 * may refuse to start, with an error that names the file; it does not crash or hang.
 */
#include "tests/crash/cut.h"
#include "tests/crash/past.h"

#include "base/thread.h"
#include "tests/serve/seeded.h"
#include "tests/weights/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { BODIES = 14, HANG_S = 600, FULL_LIVES = 8 };

struct test {
    struct past past;
    uint64_t seed;
    char model_dir[100], disk[100], state_dir[200];
    int64_t cuts, lives, refused_starts, full;
    double slowest;
};

/* --- Lives ------------------------------------------------------------------------------------ */

/* Runs a life in a child process, and returns its status. */
static int live(struct test *t, struct crash_life life)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    HZP_ASSERT(child >= 0);
    if (!child) {
        alarm(HANG_S);
        life.model_dir = t->model_dir;
        if (!life.state_dir)
            life.state_dir = t->state_dir;
        if (!life.fd)
            life.fd = open("/dev/null", O_WRONLY);
        crash_live(&life);
    }
    waitpid(child, &status, 0);
    return status;
}

/* A life that posts bodies, on the tape. */
static int post(struct test *t, bool disk_fails)
{
    t->lives++;
    return live(t, (struct crash_life){.next_text = t->past.next_text,
                                       .post = true,
                                       .bodies = BODIES,
                                       .disk_fails = disk_fails,
                                       .note = disk_note});
}

static bool ended_well(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* --- What was promised ------------------------------------------------------------------------ */

/* All that clients were told within the first `ops` calls.  Returns true if the last life had
 * started, or was not to start; ret_error: what it said otherwise. */
static bool recall(struct test *t, int32_t from, int32_t ops, char *ret_error)
{
    struct past *p = &t->past;
    bool started = false;
    memset(p->text, 0, (size_t)(p->acknowledged + 2) * sizeof(*p->text));
    p->acknowledged = p->served = p->saved = p->samples = p->next_text = 0;
    for (int32_t i = 0; i < ops; i++) {
        const struct disk_op *op = disk_op(i);
        struct crash_told told;
        if (op->call != DISK_NOTE)
            continue;
        memcpy(&told, disk_data(op), sizeof(told));
        if (told.kind == CRASH_STARTED) {
            /* The next start may give the same number to these weights where nothing can be
             * written.  The log may hold more than was acknowledged. */
            p->served = told.read_only ? p->served : told.a;
            p->samples = told.b;
            started |= i >= from;
        } else if (told.kind == CRASH_ERROR && ret_error) {
            snprintf(ret_error, sizeof(told.text), "%s", told.text);
        } else if (told.kind == CRASH_ACCEPTED) {
            /* a body that was refused may be in the log nevertheless, before this one */
            p->samples = told.a - 1;
            past_hear(p, &told, 0, 0);
        } else if (told.kind != CRASH_ERROR) {
            past_hear(p, &told, 0, 0);
        }
    }
    return started;
}

/* --- What is left ----------------------------------------------------------------------------- */

/* Reads what the life in a child process said into the past. */
static void hear(struct test *t, int fd, uint64_t through, uint64_t again)
{
    struct crash_told told;
    bool started = false;
    while (read(fd, &told, sizeof(told)) == (ssize_t)sizeof(told))
        started |= past_hear(&t->past, &told, through, again);
    if (!started)
        PAST_FAIL(&t->past, "it did not start");
}

/* Opens the state, or with `learn` learns all that is left. */
static void look(struct test *t, const char *state_dir, bool learn, uint64_t through,
                 uint64_t again)
{
    int fd[2];
    HZP_ASSERT(pipe(fd) == 0); /* it holds what a life says that posts nothing */
    int status = live(t, (struct crash_life){.state_dir = state_dir,
                                             .fd = fd[1],
                                             .next_text = t->past.next_text,
                                             .look = !learn});
    close(fd[1]);
    hear(t, fd[0], through, again);
    close(fd[0]);
    if (!ended_well(status))
        PAST_FAIL(&t->past, "it ended with status %d", status);
}

static void remove_tree(const char *path)
{
    nftw(path, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* One state of the disk, after the first `ops` calls of the tape. */
static void check(struct test *t, int32_t ops, enum cut_mode mode)
{
    struct past *p = &t->past;
    char place[200], state_dir[300];
    uint64_t through, again, seed = t->seed++, begin = hzp_now_ns();
    char before[60];
    snprintf(before, sizeof(before), "%.59s", p->what);
    snprintf(p->what, sizeof(p->what), "%s [%s after %d calls, seed %llu]", before,
             cut_mode_name(mode), ops, (unsigned long long)seed);
    recall(t, 0, ops, NULL);
    snprintf(place, sizeof(place), "%s/left", scratch_dir);
    snprintf(state_dir, sizeof(state_dir), "%s%s", place, t->state_dir + strlen(t->disk));
    /* Once for the test, whose SQLite changes the files, and once for the server. */
    cut_make(ops, mode, seed, place);
    past_check_disk(p, state_dir, &through, &again);
    remove_tree(place);
    cut_make(ops, mode, seed, place);
    look(t, state_dir, false, through, again);
    double took = (double)(hzp_now_ns() - begin) * 1e-9;
    t->slowest = HZP_MAX(t->slowest, took);
    if (t->cuts++ % FULL_LIVES == 0) {
        past_check_disk(p, state_dir, &through, &again);
        look(t, state_dir, true, through, again);
        past_check_disk(p, state_dir, &through, &again);
        if (through != p->samples || again)
            PAST_FAIL(p, "at the end %llu of %llu are learned and kept",
                      (unsigned long long)through, (unsigned long long)p->samples);
        t->full++;
    }
    remove_tree(place);
    snprintf(p->what, sizeof(p->what), "%s", before);
}

/* A place on the tape from `from` on; half of them next to a call that orders others. */
static int32_t choose(struct test *t, int32_t from)
{
    int32_t n = disk_ops() - from, at = from + (int32_t)seeded(&t->seed, (uint32_t)n + 1);
    if (seeded(&t->seed, 2))
        while (at < disk_ops() && disk_op(at)->call != DISK_SYNC &&
               disk_op(at)->call != DISK_RENAME && disk_op(at)->call != DISK_NOTE)
            at++;
    at += (int32_t)seeded(&t->seed, 2);
    int32_t most = disk_ops();
    return HZP_MIN(at, most);
}

/* --- Power cuts ------------------------------------------------------------------------------- */

static int32_t live_well(struct test *t)
{
    t->past.what[0] = '\0';
    if (!ended_well(post(t, false)))
        PAST_FAIL(&t->past, "a life without faults failed");
    return disk_ops();
}

static void begin_tape(struct test *t)
{
    HZP_ASSERT(mkdir(t->disk, 0777) == 0);
    disk_watch(t->disk);
    disk_record();
    live_well(t);
    recall(t, 0, disk_ops(), NULL);
}

static void power_cuts(struct test *t, int64_t n)
{
    begin_tape(t);
    live_well(t);
    disk_watch("");
    for (t->past.round = 1; t->past.round <= n; t->past.round++)
        check(t, choose(t, 0), (enum cut_mode)(1 + seeded(&t->seed, CUT_MODES - 1)));
}

/* --- Faults ----------------------------------------------------------------------------------- */

static const uint32_t writing = 1u << DISK_OPEN | 1u << DISK_WRITE | 1u << DISK_TRUNCATE |
                                1u << DISK_SYNC | 1u << DISK_RENAME | 1u << DISK_UNLINK |
                                1u << DISK_MKDIR | 1u << DISK_LINK;
static const uint32_t filling = 1u << DISK_OPEN | 1u << DISK_WRITE | 1u << DISK_MKDIR;

static struct disk_fault draw_fault(struct test *t, int64_t calls, int64_t reads)
{
    struct disk_fault f = {.calls = writing, .error = EIO, .forever = seeded(&t->seed, 2)};
    int64_t among = calls;
    switch (seeded(&t->seed, 5)) {
    case 0:
        f.calls = filling;
        f.error = ENOSPC;
        f.cut = seeded(&t->seed, 2);
        break;
    case 1:
        f.calls = 1u << DISK_SYNC;
        among = calls / 4;
        break;
    case 2:
        f.calls = 1u << DISK_READ;
        among = reads;
        break;
    default:
        break;
    }
    f.nth = seeded(&t->seed, (uint32_t)HZP_MAX(among, 1));
    return f;
}

/* The state is as the tape's first `base` calls have left it; the rest is taken off the tape. */
static void go_back(struct test *t, int32_t base)
{
    disk_watch("");
    remove_tree(t->disk);
    disk_rewind(base);
    cut_make(base, CUT_KEPT, 0, t->disk);
    recall(t, 0, base, NULL);
    disk_watch(t->disk);
}

/* A life with a fault, after the tape's first `base` calls. */
static void live_with_fault(struct test *t, int32_t base, const struct disk_fault *f)
{
    struct past *p = &t->past;
    char error[200] = "";
    snprintf(p->what, sizeof(p->what), "(calls %x fail, %s, the %lldth%s%s)", f->calls,
             f->error == EIO ? "EIO" : "ENOSPC", (long long)f->nth, f->forever ? " and on" : "",
             f->cut ? ", cut" : "");
    go_back(t, base);
    disk_fail(f);
    int status = post(t, true);
    disk_fail(&(struct disk_fault){.calls = 0});
    bool started = recall(t, base, disk_ops(), error);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
        PAST_FAIL(p, "it crashed, status %x", (unsigned)status);
    if (WEXITSTATUS(status) && started)
        PAST_FAIL(p, "it ended by itself: %s", error);
    if (WEXITSTATUS(status) && !strstr(error, t->disk))
        PAST_FAIL(p, "the error names no file: %s", error);
    t->refused_starts += !started;
    disk_watch("");
    check(t, disk_ops(), CUT_KEPT);
    for (int i = 0; i < 2; i++)
        check(t, choose(t, base), (enum cut_mode)(1 + seeded(&t->seed, CUT_MODES - 1)));
}

static void faults(struct test *t, int64_t n)
{
    begin_tape(t);
    int64_t calls = disk_count(writing), reads = 0;
    int32_t base = 0;
    for (t->past.round = 1; t->past.round <= n; t->past.round++) {
        if (t->past.round == n / 3 + 1) { /* from here on with a state that is there */
            go_back(t, 0);
            base = live_well(t);
            disk_fail(&(struct disk_fault){.calls = 0});
            live_well(t);
            calls = disk_count(writing);
            reads = disk_count(1u << DISK_READ);
        }
        struct disk_fault f = draw_fault(t, calls, reads);
        live_with_fault(t, base, &f);
    }
}

int main(int argc, char **argv)
{
    struct test t = {.seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1};
    bool with_faults = argc > 1 && !strcmp(argv[1], "faults");
    int64_t n = argc > 2 ? atoll(argv[2]) : with_faults ? 12 : 60;
    uint64_t begin = hzp_now_ns();
    if (argc < 2 || (!with_faults && strcmp(argv[1], "cuts")) || scratch_setup(NULL) < 0)
        return 2;
    t.past.text = hzp_xcalloc(PAST_SEQUENCES_MAX, sizeof(*t.past.text));
    snprintf(t.model_dir, sizeof(t.model_dir), "%s/model", scratch_dir);
    snprintf(t.disk, sizeof(t.disk), "%s/disk", scratch_dir);
    snprintf(t.state_dir, sizeof(t.state_dir), "%s/own/state", t.disk);
    past_make_model(t.model_dir);
    if (with_faults)
        faults(&t, n);
    else
        power_cuts(&t, n);
    printf("%lld states of the disk checked, %lld by a server that learns all; %lld lives, %lld "
           "refused to start, %llu bodies refused; %.0f s, at most %.2f s a state\n",
           (long long)t.cuts, (long long)t.full, (long long)t.lives, (long long)t.refused_starts,
           (unsigned long long)t.past.refused, (double)(hzp_now_ns() - begin) * 1e-9, t.slowest);
    scratch_teardown(NULL);
    free(t.past.text);
    return 0;
}
