/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/crash/past.h"

#include "tests/fixture/model.h"
#include "tests/weights/scratch.h"
#include "tests/weights/tiny_models.h"
#include "weights/model_dir.h"
#include "weights/safetensors.h"

#include <dirent.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

/* --- What the killed server reported ---------------------------------------------------------- */

static void hear_start(struct past *p, const struct crash_told *told, uint64_t through,
                       uint64_t again)
{
    if (told->a <= p->served)
        PAST_FAIL(p, "begins with version %llu, a client has seen %llu",
                  (unsigned long long)told->a, (unsigned long long)p->served);
    if (told->b != p->samples)
        PAST_FAIL(p, "says %llu examples are accepted, the log holds %llu",
                  (unsigned long long)told->b, (unsigned long long)p->samples);
    if (told->c != p->unfinished)
        PAST_FAIL(p, "queued %llu again, %llu have passes left that no checkpoint has",
                  (unsigned long long)told->c, (unsigned long long)p->unfinished);
    if (told->d != again)
        PAST_FAIL(p, "says %llu are trained again, the journal says %llu",
                  (unsigned long long)told->d, (unsigned long long)again);
    if (told->e != p->logged)
        PAST_FAIL(p, "begins from checkpoint %llu, the log's newest is %llu",
                  (unsigned long long)told->e, (unsigned long long)p->logged);
    p->served = told->a;
    p->again += told->d;
}

static void hear_accepted(struct past *p, const struct crash_told *told)
{
    if (told->b >= PAST_SEQUENCES_MAX || told->a != p->samples + 1 || told->b < told->a)
        PAST_FAIL(p, "accepted %llu..%llu after %llu", (unsigned long long)told->a,
                  (unsigned long long)told->b, (unsigned long long)p->samples);
    for (uint64_t n = told->a; n <= told->b; n++)
        p->text[n] = 1 + told->c + (n - told->a);
    p->acknowledged = p->samples = told->b;
    p->next_text = told->c + (told->b - told->a) + 1;
    p->bodies++;
}

bool past_hear(struct past *p, const struct crash_told *told, uint64_t through, uint64_t again)
{
    switch (told->kind) {
    case CRASH_STARTED:
        hear_start(p, told, through, again);
        return true;
    case CRASH_ACCEPTED:
        hear_accepted(p, told);
        break;
    case CRASH_REFUSED:
        p->refused++;
        break;
    case CRASH_SERVED:
        if (told->a <= p->served)
            PAST_FAIL(p, "version %llu after %llu", (unsigned long long)told->a,
                      (unsigned long long)p->served);
        p->served = told->a;
        p->versions++;
        break;
    case CRASH_SAVED:
        p->saved = HZP_MAX(p->saved, told->a);
        p->checkpoints++;
        break;
    case CRASH_ERROR:
        PAST_FAIL(p, "%s", told->text);
    }
    return false;
}

/* --- The state on disk ------------------------------------------------------------------------ */

static sqlite3_stmt *query(struct past *p, sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK)
        PAST_FAIL(p, "%s: %s", sql, sqlite3_errmsg(db));
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
            PAST_FAIL(p, "sample %llu stands where %llu should", (unsigned long long)n,
                      (unsigned long long)next);
        for (int i = CRASH_TOKENS - 1; i >= 0; i--)
            text = text * CRASH_VOCAB + data[4 * i];
        if (n < PAST_SEQUENCES_MAX && p->text[n] && p->text[n] != text + 1)
            PAST_FAIL(p, "sample %llu holds text %llu, %llu was acknowledged",
                      (unsigned long long)n, (unsigned long long)text,
                      (unsigned long long)p->text[n] - 1);
        p->next_text = HZP_MAX(p->next_text, text + 1);
    }
    sqlite3_finalize(s);
    if (next - 1 < p->acknowledged)
        PAST_FAIL(p, "%llu samples are left of %llu acknowledged", (unsigned long long)next - 1,
                  (unsigned long long)p->acknowledged);
    p->samples = next - 1;
}

/* Counts a pass of each sample that the row's version learned from. */
static void count_passes(struct past *p, sqlite3_stmt *s, uint8_t *passes)
{
    const char *blob = sqlite3_column_blob(s, 1);
    if (sqlite3_column_int(s, 3))
        PAST_FAIL(p, "version %lld learned from more than its row can list",
                  sqlite3_column_int64(s, 0));
    for (int i = 0; i < sqlite3_column_bytes(s, 1) / 16; i++) {
        int64_t pair[2];
        memcpy(pair, blob + (size_t)16 * (size_t)i, sizeof(pair));
        for (int64_t n = pair[0]; n <= pair[1] && n < PAST_SEQUENCES_MAX; n++)
            passes[n]++;
    }
}

/* Checks that the passes which the newest checkpoint has in its weights, by the journal of the
 * versions that it descends from, are CRASH_PASSES of each sample that it says is finished, and no
 * more of any other.  Returns how many samples the versions after it learned from. */
static uint64_t check_passes(struct past *p, sqlite3 *db, uint64_t through)
{
    uint8_t *passes = hzp_xcalloc(PAST_SEQUENCES_MAX, 1),
            *lost = hzp_xcalloc(PAST_SEQUENCES_MAX, 1);
    int64_t next = (int64_t)p->logged;
    uint64_t count = 0;
    sqlite3_stmt *s =
        query(p, db, "SELECT id, learned, parent, learned_more FROM versions ORDER BY id DESC");
    while (sqlite3_step(s) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(s, 0), parent = sqlite3_column_int64(s, 2);
        if (id > (int64_t)p->logged)
            count_passes(p, s, lost);
        if (id > next)
            continue; /* it was lost with its process */
        count_passes(p, s, passes);
        next = parent ? parent : id - 1; /* HZP_NO_PARENT is -1 */
    }
    sqlite3_finalize(s);
    p->unfinished = p->samples;
    for (uint64_t n = 1; n <= p->samples && n < PAST_SEQUENCES_MAX; n++) {
        if (passes[n] > CRASH_PASSES || (n <= through && passes[n] != CRASH_PASSES))
            PAST_FAIL(p, "sample %llu has had %d passes, it gets %d%s", (unsigned long long)n,
                      passes[n], CRASH_PASSES, n <= through ? ", and is said to be finished" : "");
        p->unfinished -= passes[n] == CRASH_PASSES;
        p->in_part += passes[n] > 0 && passes[n] < CRASH_PASSES;
        count += lost[n] > 0;
    }
    free(passes);
    free(lost);
    return count;
}

static void check_whole(struct past *p, const char *path)
{
    static const char *const files[] = {"model.safetensors", "trainer.safetensors"};
    struct hzp_err_text text = {{0}, {0}};
    struct hzp_model_config config;
    if (hzp_config_read(path, &config, &text) < 0)
        PAST_FAIL(p, "%s", text.text);
    for (int i = 0; i < HZP_COUNT(files); i++) {
        char file[700];
        struct hzp_safetensors *st;
        snprintf(file, sizeof(file), "%s/%s", path, files[i]);
        if (hzp_safetensors_open(file, &st, &text) < 0)
            PAST_FAIL(p, "%s", text.text);
        hzp_safetensors_close(st);
    }
}

/* Checks that every directory with the name of a checkpoint is complete, and that the newest one
 * that the log names, or that was reported to a client, is there. */
static void check_checkpoints(struct past *p, sqlite3 *db, const char *state_dir)
{
    uint64_t logged = number(p, db, "SELECT max(id) FROM checkpoints");
    if (logged < p->saved)
        PAST_FAIL(p, "the log's newest checkpoint is %llu, reported was %llu",
                  (unsigned long long)logged, (unsigned long long)p->saved);
    p->logged = logged;
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
        PAST_FAIL(p, "checkpoint-%llu is gone", (unsigned long long)logged);
}

void past_check_disk(struct past *p, const char *state_dir, uint64_t *ret_through,
                     uint64_t *ret_again)
{
    char path[600];
    sqlite3 *db;
    snprintf(path, sizeof(path), "%s/samples.db", state_dir);
    *ret_through = *ret_again = p->logged = 0;
    p->samples = p->unfinished = 0;
    if (access(path, F_OK) < 0) {
        if (p->acknowledged)
            PAST_FAIL(p, "the log is gone");
        return; /* killed before it was created */
    }
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        PAST_FAIL(p, "%s: %s", path, sqlite3_errmsg(db));
    if (number(p, db, "SELECT count(*) FROM sqlite_master WHERE name = 'checkpoints'")) {
        check_samples(p, db);
        check_checkpoints(p, db, state_dir);
        int64_t through = (int64_t)number(
            p, db, "SELECT learned_through FROM checkpoints ORDER BY id DESC LIMIT 1");
        *ret_through = (uint64_t)HZP_MAX(through, 0);
        *ret_again = check_passes(p, db, *ret_through);
    }
    if (p->samples < p->acknowledged)
        PAST_FAIL(p, "the log has no samples, %llu were acknowledged",
                  (unsigned long long)p->acknowledged);
    sqlite3_close(db);
}

void past_make_model(const char *dir)
{
    char file[600];
    mkdir(dir, 0777);
    snprintf(file, sizeof(file), "%s/config.json", dir);
    scratch_write_text(file, tiny_models[0]);
    fixture_write_dir(dir, HZP_F32, 7, 0.05f);
}
