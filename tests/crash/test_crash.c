/* SPDX-License-Identifier: Apache-2.0 */
/* tests/crash/test_crash.c - kill -9 of a learning server at random moments, many times on one
 * state directory.  After each kill: nothing acknowledged is lost, sequence numbers have no
 * holes, version ids only grow, the newest checkpoint is complete, and the server reports what
 * it trains again.
 *
 *     test_crash [--rounds N] [--seconds S] [--seed N]
 *
 * It ends after this many rounds or seconds, but not before each kind of event was seen.
 */
#include "tests/crash/life.h"

#include "base/arena.h"
#include "base/thread.h"
#include "tests/fixture/model.h"
#include "tests/serve/seeded.h"
#include "tests/weights/scratch.h"
#include "tests/weights/tiny_models.h"
#include "weights/model_dir.h"
#include "weights/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { SEQUENCES_MAX = 1 << 20 };

struct past {
    int round;
    uint64_t *text;        /* [SEQUENCES_MAX] 1 + the acknowledged text of a number; 0: none */
    uint64_t acknowledged; /* the largest acknowledged number */
    uint64_t served;       /* the largest version id a client saw */
    uint64_t saved;        /* the newest checkpoint reported to a client */
    uint64_t next_text, samples; /* samples: in the log, as last read */
    uint64_t bodies, versions, checkpoints, again, kills_opening, leftovers;
};

#define FAIL(past, ...)                                                                            \
    do {                                                                                           \
        printf("round %d: ", (past)->round);                                                       \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        fflush(stdout);                                                                            \
        _exit(1);                                                                                  \
    } while (0)

/* --- What the killed server reported ---------------------------------------------------------- */

static void hear_start(struct past *p, const struct crash_told *told, uint64_t through,
                       uint64_t again)
{
    if (told->a <= p->served)
        FAIL(p, "begins with version %llu, a client has seen %llu", (unsigned long long)told->a,
             (unsigned long long)p->served);
    if (told->b != p->samples)
        FAIL(p, "says %llu examples are accepted, the log holds %llu", (unsigned long long)told->b,
             (unsigned long long)p->samples);
    if (told->c != p->samples - through)
        FAIL(p, "queued %llu again of %llu that no checkpoint has", (unsigned long long)told->c,
             (unsigned long long)(p->samples - through));
    if (told->d != again)
        FAIL(p, "says %llu are trained again, the journal says %llu", (unsigned long long)told->d,
             (unsigned long long)again);
    p->served = told->a;
    p->again += told->d;
}

static void hear_accepted(struct past *p, const struct crash_told *told)
{
    if (told->b >= SEQUENCES_MAX || told->a != p->samples + 1 || told->b < told->a)
        FAIL(p, "accepted %llu..%llu after %llu", (unsigned long long)told->a,
             (unsigned long long)told->b, (unsigned long long)p->samples);
    for (uint64_t n = told->a; n <= told->b; n++)
        p->text[n] = 1 + told->c + (n - told->a);
    p->acknowledged = p->samples = told->b;
    p->next_text = told->c + (told->b - told->a) + 1;
    p->bodies++;
}

/* Reads all that is in the pipe.  Returns true if the server had started. */
static bool hear(struct past *p, int fd, uint64_t through, uint64_t again)
{
    struct crash_told told;
    bool started = false;
    ssize_t n;
    while ((n = read(fd, &told, sizeof(told))) == (ssize_t)sizeof(told)) {
        switch (told.kind) {
        case CRASH_STARTED:
            hear_start(p, &told, through, again);
            started = true;
            break;
        case CRASH_ACCEPTED:
            hear_accepted(p, &told);
            break;
        case CRASH_SERVED:
            if (told.a <= p->served)
                FAIL(p, "version %llu after %llu", (unsigned long long)told.a,
                     (unsigned long long)p->served);
            p->served = told.a;
            p->versions++;
            break;
        case CRASH_SAVED:
            p->saved = HZP_MAX(p->saved, told.a);
            p->checkpoints++;
            break;
        case CRASH_ERROR:
            FAIL(p, "%s", told.text);
        }
    }
    if (n > 0)
        FAIL(p, "half a word in the pipe");
    return started;
}

/* --- The state on disk ------------------------------------------------------------------------ */

static sqlite3_stmt *query(struct past *p, sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK)
        FAIL(p, "%s: %s", sql, sqlite3_errmsg(db));
    return s;
}

static uint64_t number(struct past *p, sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s = query(p, db, sql);
    uint64_t n = sqlite3_step(s) == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(s, 0) : 0;
    sqlite3_finalize(s);
    return n;
}

/* Checks that all numbers from 1 on are there, each with the text acknowledged under it.  A text
 * without an acknowledgement may be there: it was committed, and the answer was lost. */
static void check_samples(struct past *p, sqlite3 *db)
{
    sqlite3_stmt *s = query(p, db, "SELECT sequence_number, count, data FROM samples ORDER BY 1");
    uint64_t next = 1;
    for (; sqlite3_step(s) == SQLITE_ROW; next++) {
        uint64_t n = (uint64_t)sqlite3_column_int64(s, 0), text = 0;
        const uint8_t *data = sqlite3_column_blob(s, 2);
        if (n != next || sqlite3_column_int(s, 1) != CRASH_TOKENS)
            FAIL(p, "sample %llu stands where %llu should", (unsigned long long)n,
                 (unsigned long long)next);
        for (int i = CRASH_TOKENS - 1; i >= 0; i--)
            text = text * CRASH_VOCAB + data[4 * i];
        if (n < SEQUENCES_MAX && p->text[n] && p->text[n] != text + 1)
            FAIL(p, "sample %llu holds text %llu, %llu was acknowledged", (unsigned long long)n,
                 (unsigned long long)text, (unsigned long long)p->text[n] - 1);
        p->next_text = HZP_MAX(p->next_text, text + 1);
    }
    sqlite3_finalize(s);
    if (next - 1 < p->acknowledged)
        FAIL(p, "%llu samples are left of %llu acknowledged", (unsigned long long)next - 1,
             (unsigned long long)p->acknowledged);
    p->samples = next - 1;
}

/* Returns how many samples beyond `through` the journalled versions learned from. */
static uint64_t count_again(struct past *p, sqlite3 *db, uint64_t through)
{
    uint8_t *seen = hzp_xcalloc(SEQUENCES_MAX, 1);
    uint64_t count = 0;
    sqlite3_stmt *s = query(p, db, "SELECT learned FROM versions");
    while (sqlite3_step(s) == SQLITE_ROW) {
        int ranges = sqlite3_column_bytes(s, 0) / 16;
        const char *blob = sqlite3_column_blob(s, 0);
        for (int i = 0; i < ranges; i++) {
            int64_t pair[2];
            memcpy(pair, blob + 16 * i, sizeof(pair));
            for (int64_t n = pair[0]; n <= pair[1] && n < SEQUENCES_MAX; n++)
                if ((uint64_t)n > through && !seen[n]++)
                    count++;
        }
    }
    sqlite3_finalize(s);
    free(seen);
    return count;
}

static void check_whole(struct past *p, const char *path)
{
    static const char *const files[] = {"model.safetensors", "trainer.safetensors"};
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_model_config config;
    if (hzp_config_read(path, &config, &text) < 0)
        FAIL(p, "%s", text.text);
    for (int i = 0; i < HZP_COUNT(files); i++) {
        char file[700];
        struct hzp_safetensors *st;
        snprintf(file, sizeof(file), "%s/%s", path, files[i]);
        if (hzp_safetensors_open(file, &st, &text) < 0)
            FAIL(p, "%s", text.text);
        hzp_safetensors_close(st);
    }
}

/* Checks that every directory with the name of a checkpoint is complete, and that the newest one
 * that the log names, or that was reported to a client, is there. */
static void check_checkpoints(struct past *p, sqlite3 *db, const char *state_dir)
{
    uint64_t logged = number(p, db, "SELECT max(id) FROM checkpoints");
    if (logged < p->saved)
        FAIL(p, "the log's newest checkpoint is %llu, reported was %llu",
             (unsigned long long)logged, (unsigned long long)p->saved);
    bool there = logged == 0;
    DIR *dir = opendir(state_dir);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        unsigned long long id;
        char rest[16] = "", path[580];
        if (sscanf(entry->d_name, "checkpoint-%llu%15s", &id, rest) < 1)
            continue;
        if (rest[0]) {
            p->leftovers++;
            continue; /* unfinished: it is never read */
        }
        snprintf(path, sizeof(path), "%s/%s", state_dir, entry->d_name);
        check_whole(p, path);
        there |= id == logged;
    }
    if (dir)
        closedir(dir);
    if (!there)
        FAIL(p, "checkpoint-%llu is gone", (unsigned long long)logged);
}

static void check_disk(struct past *p, const char *state_dir, uint64_t *ret_through,
                       uint64_t *ret_again)
{
    char path[600];
    sqlite3 *db;
    snprintf(path, sizeof(path), "%s/samples.db", state_dir);
    *ret_through = *ret_again = 0;
    if (access(path, F_OK) < 0)
        return; /* killed before it was created */
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        FAIL(p, "%s: %s", path, sqlite3_errmsg(db));
    if (number(p, db, "SELECT count(*) FROM sqlite_master WHERE name = 'checkpoints'")) {
        check_samples(p, db);
        check_checkpoints(p, db, state_dir);
        int64_t through = (int64_t)number(
            p, db, "SELECT learned_through FROM checkpoints ORDER BY id DESC LIMIT 1");
        *ret_through = (uint64_t)HZP_MAX(through, 0);
        *ret_again = count_again(p, db, *ret_through);
    }
    sqlite3_close(db);
}

/* --- Lives ------------------------------------------------------------------------------------ */

static void make_model(const char *dir)
{
    char file[600];
    mkdir(dir, 0777);
    snprintf(file, sizeof(file), "%s/config.json", dir);
    scratch_write_text(file, tiny_models[0]);
    fixture_write_dir(dir, HZP_F32, 7, 0.05f);
}

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
    bool started = hear(p, fd[0], through, again);
    close(fd[0]);
    waitpid(child, &status, 0);
    if (killer)
        waitpid(killer, NULL, 0);
    if (kill_us >= 0 ? !WIFSIGNALED(status) : !(WIFEXITED(status) && !WEXITSTATUS(status)))
        FAIL(p, "it ended by itself, status %d", status);
    return started;
}

/* Whether every kind of event that is checked has happened; otherwise the checks were empty. */
static bool all_seen(const struct past *p)
{
    return p->bodies && p->versions && p->checkpoints && p->again;
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
    make_model(model_dir);
    for (p->round = 1; p->round <= rounds || !all_seen(p); p->round++) {
        int kill_us = (int)seeded(&seed, seeded(&seed, 4) ? life_us : life_us / 8);
        p->kills_opening += !live(p, model_dir, state_dir, kill_us, through, again);
        check_disk(p, state_dir, &through, &again);
        if ((double)(hzp_now_ns() - begin) > seconds * 1e9 && all_seen(p))
            break;
        if (p->round % 8 == 0 && !all_seen(p))
            life_us *= 2;
    }
    /* Then lets it finish undisturbed, twice: what it learned is kept, and ids continue without
       a gap. */
    live(p, model_dir, state_dir, -1, through, again);
    check_disk(p, state_dir, &through, &again);
    if (through != p->samples || again)
        FAIL(p, "at the end %llu of %llu are learned and kept, %llu would be trained again",
             (unsigned long long)through, (unsigned long long)p->samples,
             (unsigned long long)again);
    uint64_t last = p->served;
    live(p, model_dir, state_dir, -1, through, again);
    if (p->served != last + 1)
        FAIL(p, "version %llu follows %llu after an orderly end", (unsigned long long)p->served,
             (unsigned long long)last);
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
    struct past past = {.text = hzp_xcalloc(SEQUENCES_MAX, sizeof(*past.text))};
    if (scratch_setup(NULL) < 0)
        return 1;
    int r = run(&past, rounds, seconds, seed);
    scratch_teardown(NULL);
    free(past.text);
    return r;
}
