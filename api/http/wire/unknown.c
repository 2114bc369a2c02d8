/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/request_log.h"

#include "base/log.h"

void hzp_unknown_init(struct hzp_unknown *u)
{
    hzp_lock_init(&u->lock, HZP_LOCK_UNKNOWN);
}

void hzp_unknown_fini(struct hzp_unknown *u)
{
    hzp_lock_fini(&u->lock);
}

void hzp_unknown_count(struct hzp_unknown *u, const char *name)
{
    char text[HZP_UNKNOWN_BYTES];
    bool fresh = true;
    snprintf(text, sizeof(text), "%s", name);
    atomic_fetch_add(&u->fields, 1);
    hzp_lock_take(&u->lock);
    for (int i = 0; i < u->names && fresh; i++)
        fresh = strcmp(u->name[i], text) != 0;
    fresh = fresh && u->names < HZP_UNKNOWN_NAMES;
    if (fresh)
        memcpy(u->name[u->names++], text, sizeof(text));
    hzp_lock_release(&u->lock);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == '"' || *c == 0x7f)
            *c = '?';
    if (fresh)
        hzp_log(HZP_LOG_WARN, "http", "requests have the unknown field \"%s\", ignoring", text);
}
