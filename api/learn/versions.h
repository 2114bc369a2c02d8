/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/versions.h - versions that are kept, their names, and the jobs that work on them.
 *
 * A version can serve again while it is kept: on disk, as a checkpoint, or in a slot of the store
 * that no newer version has taken yet.  The model as it was started always can: it is read from its
 * directory.  Jobs run on the file thread, one after another:
 *
 *     name       gives a version a name; the serving one is written to disk first
 *     activate   makes a version serve again, under a new id, whose parent it is
 *     forget     deletes an example: goes back to the version before it, learns the rest again
 *     undo       takes the examples of a lesson back in the same way; they are kept, and skipped
 *     export     writes a version as a model directory to STATE/export/NAME
 *     push       makes weights serve that were sent here (api/learn/replication.h)
 *
 * A job that is done is on disk.  If the process ends before, the state is that of before the job,
 * or that of after it.
 *
 * Thread: any, once the state is open.
 */
#pragma once

#include "api/learn/state.h"

enum hzp_job_kind {
    HZP_JOB_NAME,
    HZP_JOB_ACTIVATE,
    HZP_JOB_FORGET,
    HZP_JOB_EXPORT,
    HZP_JOB_PUSH,
    HZP_JOB_UNDO
};
const char *hzp_job_kind_name(enum hzp_job_kind kind);

enum hzp_job_state {
    HZP_JOB_WAITS,
    HZP_JOB_RUNS,
    HZP_JOB_LEARNS, /* forget, undo: the older version serves, and learns the rest again */
    HZP_JOB_DONE,
    HZP_JOB_FAILED
};
enum { HZP_JOBS_KEPT = 64, HZP_VERSION_SOURCE_MAX = 255 };

struct hzp_version_job {
    uint64_t id; /* from 1 on; of this process */
    enum hzp_job_kind kind;
    enum hzp_job_state state;
    /* what is asked for */
    uint64_t version;
    int64_t example;      /* forget; undo: the first */
    int64_t example_last; /* undo: the last */
    uint64_t checksum;    /* push: of the upload */
    uint64_t token;       /* names a request that may come again, for one job; 0: none */
    char source[HZP_VERSION_SOURCE_MAX + 1]; /* push: where it comes from, as the sender says */
    bool replay; /* activate: later lessons are learned again, not skipped; push: all are */
    bool reset;  /* activate: moments and residuals are zeroed */
    char name[HZP_VERSION_NAME_MAX + 1]; /* the version's, or the directory's; "": none */
    /* set by hzp_state_ask: samples up to this one had been learned from; those that the version
     * has not learned are skipped, even if the loss of a rank has taken them back meanwhile */
    int64_t touched;
    /* the result */
    uint64_t made;                /* the version that it published; 0: none */
    int64_t learn_from, learn_to; /* examples to be learned again; 0: none */
    int64_t skipped_from, skipped_to;
    int64_t begun_unix_ms, ended_unix_ms; /* 0: not yet */
    int code;                             /* the failure's */
    char error[400];
};

/* Appoints a job: what is asked for is set.  One with the same token is the same job, if it is
 * known and has not failed.  HZP_EBUSY: one waits or runs, or HZP_JOBS_KEPT have
 * not ended or are held; HZP_EINVAL: nothing is saved (--state none). */
int hzp_state_ask(struct hzp_state *s, const struct hzp_version_job *asked, uint64_t *ret_id,
                  struct hzp_err_text *reterr);
/* False: there is no such job, or it is forgotten.  Of HZP_JOBS_KEPT the one that was asked for
 * first is forgotten for another, but none that has not ended or is held. */
bool hzp_state_job(struct hzp_state *s, uint64_t id, struct hzp_version_job *ret);
/* The job with this token that is known and has not failed; 0: none. */
uint64_t hzp_state_job_of(struct hzp_state *s, uint64_t token);
/* Counts (hold) or stops counting a request that waits for job id.  The state does not forget a job
 * that a request waits for. */
void hzp_state_hold_job(struct hzp_state *s, uint64_t id, bool hold);

/* The version that a text names: "current", "original" (the model as it was started, from which the
 * serving version descends), a number, or a name.  HZP_ENOENT. */
int hzp_state_find(struct hzp_state *s, const char *text, uint64_t *ret,
                   struct hzp_err_text *reterr);
/* What is known of a version, of this run and earlier ones.  HZP_ENOENT. */
int hzp_state_record(struct hzp_state *s, uint64_t id, struct hzp_version_record *ret,
                     struct hzp_err_text *reterr);

/* Where the version was sent from; "": it was made here. */
int hzp_state_source(struct hzp_state *s, uint64_t id, char ret[HZP_VERSION_SOURCE_MAX + 1],
                     struct hzp_err_text *reterr);

/* The checkpoint of the version; ret->id 0: it is not on disk. */
int hzp_state_find_kept(struct hzp_state *s, uint64_t id, struct hzp_logged_checkpoint *ret,
                        struct hzp_err_text *reterr);

/* The versions on disk, newest first; the caller frees *ret.  Returns their number. */
int32_t hzp_state_kept(struct hzp_state *s, struct hzp_logged_checkpoint **ret,
                       struct hzp_err_text *reterr);

/* The weights of the version that a text names, in a slot: it stays there until it is given back.
 * One that is on disk only takes a free slot, and waits for it; with two slots training waits then.
 * HZP_ENOENT: it is neither in a slot nor on disk; HZP_EFORMAT, HZP_EIO: it cannot be read;
 * HZP_ECANCELED: the server stops.  NULL: no effect. */
int hzp_state_borrow(struct hzp_state *s, const char *name, struct hzp_version **ret,
                     struct hzp_err_text *reterr);
void hzp_state_give_back(struct hzp_state *s, struct hzp_version *version);

/* All names; the caller frees *ret.  Returns their number. */
enum { HZP_NAMES_MAX = 1024 };
int32_t hzp_state_names(struct hzp_state *s, struct hzp_version_name **ret,
                        struct hzp_err_text *reterr);
/* 1 to HZP_VERSION_NAME_MAX letters, digits, "-", "_" and ".", beginning with a letter, and not
 * "current", "original" or "names". */
bool hzp_version_name_valid(const char *name);
/* Takes a name away.  HZP_ENOENT: there is no such name. */
int hzp_state_unname(struct hzp_state *s, const char *name, struct hzp_err_text *reterr);

/* The log of who did what; NULL: nothing is saved. */
struct hzp_audit *hzp_state_audit(struct hzp_state *s);
