/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/audit.h - who taught, changed the policy, activated and named versions: audit.jsonl in
 * the state directory, one JSON object a line, only ever appended to.
 *
 *     {"time": "2026-11-22T17:05:00.123Z", "key": "admin", "request": "9f..", "action": "teach",
 *      "first": 41, "last": 72}
 *
 * key is the name of the key ("api" or "admin" if it has none, "none" without), never the key;
 * there are no prompts, examples or answers.  At 16 MB the file is renamed to audit.jsonl.1, that
 * to .2, and so on; the ninth is dropped, so all of them take 144 MB at most.
 *
 * Thread: any (one lock inside); it writes to the disk.
 */
#pragma once

#include "base/err.h"

#include "base/json.h"

enum { HZP_AUDIT_BYTES = 16 << 20, HZP_AUDIT_FILES = 8 };

struct hzp_audit;

/* HZP_EIO names the file.  later: a file that cannot be opened is no error, and each line tries
 * again. */
int hzp_audit_open(const char *dir, bool later, struct hzp_audit **ret,
                   struct hzp_err_text *reterr);
void hzp_audit_close(struct hzp_audit *audit); /* NULL: no effect */
/* Removes the empty file of a server that did not start. */
void hzp_audit_remove(const char *dir);

/* Appends a line; what: an object with further fields, taken over; NULL: none.  audit NULL: no
 * effect.  A failure is logged. */
void hzp_audit_write(struct hzp_audit *audit, const char *key, const char *request,
                     const char *action, json_t *what);

/* Who taught an example, and when: the newest line "teach" that has its number.  False: none has.
 * It reads the files, at most 144 MB. */
struct hzp_audit_taught {
    char key[64], time[48], request[64];
};
bool hzp_audit_find(const struct hzp_audit *audit, int64_t number, struct hzp_audit_taught *ret);

/* The same with another bound on the bytes of a file: for tests. */
void hzp_audit_bound(struct hzp_audit *audit, int64_t bytes);
