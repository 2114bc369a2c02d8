/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/taught.h"

#include "base/hash.h"
#include "base/thread.h"

struct session {
    uint64_t hash;
    uint64_t used; /* the table's clock; 0: free */
    int64_t newest;
    char name[HZP_SESSION_BYTES + 1];
};

struct hzp_taught {
    uint64_t model; /* hash of what identifies it */
    struct hzp_lock lock;
    /* under lock */
    struct session *session; /* [HZP_SESSIONS_MAX] */
    uint64_t clock;
    int64_t forgotten; /* the newest example that a session not in the table may have taught */
};

struct hzp_taught *hzp_taught_create(const char *model, int64_t forgotten)
{
    struct hzp_taught *t = hzp_xcalloc(1, sizeof(*t));
    t->model = hzp_fnv(HZP_FNV, model, strlen(model));
    t->session = hzp_xcalloc(HZP_SESSIONS_MAX, sizeof(*t->session));
    t->forgotten = forgotten;
    hzp_lock_init(&t->lock, HZP_LOCK_UNKNOWN); /* no other lock is taken under it */
    return t;
}

void hzp_taught_destroy(struct hzp_taught *t)
{
    if (!t)
        return;
    hzp_lock_fini(&t->lock);
    free(t->session);
    free(t);
}

/* ---- tokens ---- */

const char *hzp_after_text(const struct hzp_taught *t, int64_t n, char ret[HZP_AFTER_BYTES])
{
    uint64_t hash = hzp_fnv(t->model, &n, sizeof(n));
    snprintf(ret, HZP_AFTER_BYTES, "%" PRId64 "-%08" PRIx32, n, (uint32_t)(hash ^ hash >> 32));
    return ret;
}

int hzp_after_read(const struct hzp_taught *t, const char *text, int64_t *ret,
                   struct hzp_err_text *reterr)
{
    char same[HZP_AFTER_BYTES];
    errno = 0;
    long long n = strtoll(text, NULL, 10);
    if (errno || n < 1 || strcmp(text, hzp_after_text(t, n, same)) != 0)
        return hzp_wrong(reterr, "after",
                         "must be the token of a teaching answer of this model, not \"%.40s\"",
                         text);
    *ret = n;
    return HZP_OK;
}

/* ---- sessions ---- */

int hzp_session_check(const char *name, struct hzp_err_text *reterr)
{
    size_t bytes = strlen(name);
    if (bytes < 1 || bytes > HZP_SESSION_BYTES)
        return hzp_wrong(reterr, "x-hzpserve-session", "must have 1 to %d bytes",
                         HZP_SESSION_BYTES);
    return HZP_OK;
}

/* The lock is held.  *ret_room (may be NULL): the place for one more: free, or used longest ago. */
static struct session *find(struct hzp_taught *t, const char *name, struct session **ret_room)
{
    uint64_t hash = hzp_fnv(HZP_FNV, name, strlen(name));
    struct session *oldest = &t->session[0];
    for (int i = 0; i < HZP_SESSIONS_MAX; i++) {
        struct session *s = &t->session[i];
        if (s->used && s->hash == hash && !strcmp(s->name, name))
            return s;
        if (s->used < oldest->used)
            oldest = s;
    }
    if (ret_room)
        *ret_room = oldest;
    return NULL;
}

void hzp_session_restore(struct hzp_taught *t, const struct hzp_session *session)
{
    hzp_session_note(t, session->name, session->newest);
    HZP_LOCKED(&t->lock);
    find(t, session->name, NULL)->newest = session->newest;
}

void hzp_session_note(struct hzp_taught *t, const char *name, int64_t n)
{
    HZP_LOCKED(&t->lock);
    struct session *room, *s = find(t, name, &room);
    if (!s) {
        s = room;
        if (s->used && s->newest > t->forgotten)
            t->forgotten = s->newest;
        *s = (struct session){.hash = hzp_fnv(HZP_FNV, name, strlen(name)), .newest = t->forgotten};
        snprintf(s->name, sizeof(s->name), "%s", name);
    }
    s->used = ++t->clock;
    s->newest = n > s->newest ? n : s->newest;
}

int64_t hzp_session_newest(struct hzp_taught *t, const char *name)
{
    HZP_LOCKED(&t->lock);
    struct session *s = find(t, name, NULL);
    if (s)
        s->used = ++t->clock;
    return s ? s->newest : t->forgotten;
}
