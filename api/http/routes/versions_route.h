/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/versions_route.h - a version as JSON, and where it is kept.
 *
 * Thread: any.
 */
#pragma once

#include "api/http/wire/http.h"
#include "api/learn/versions.h"

/* What is on disk and has a name, read once for many versions. */
struct hzp_places {
    struct hzp_weights *weights;
    const struct hzp_sites *sites;      /* NULL: no --mesh */
    struct hzp_logged_checkpoint *kept; /* [keeps] */
    struct hzp_version_name *name;      /* [names] */
    int32_t keeps, names;
    uint64_t original; /* the version of that name; 0: none is known */
    int64_t most;      /* the largest number up to which all examples can have been learned */
};
int hzp_places_read(const struct hzp_engine *engine, struct hzp_places *ret,
                    struct hzp_err_text *reterr);
void hzp_places_fini(struct hzp_places *places);

/* null: < 0. */
json_t *hzp_through_json(int64_t through);

/* What GET /v1/weights says of a version. */
json_t *hzp_version_json(const struct hzp_version_record *record, const struct hzp_places *places);

/* As hzp_reply_fail, but what cannot be now is a 409, which clients need not send again. */
enum MHD_Result hzp_reply_conflict(struct hzp_exchange *x, int code,
                                   const struct hzp_err_text *err);
enum MHD_Result hzp_reply_job(struct hzp_exchange *x, const struct hzp_version_job *job);
/* Pool: answers when a job has ended, or after ?timeout= seconds. */
int hzp_job_wait(struct hzp_exchange *x, uint64_t id);
/* Pool: appoints the job, writes an audit line with `what`, which is taken over, and answers when
 * the job has ended, or after ?timeout= seconds. */
int hzp_job_run(struct hzp_exchange *x, const struct hzp_version_job *asked, const char *action,
                json_t *what, struct hzp_err_text *reterr);
