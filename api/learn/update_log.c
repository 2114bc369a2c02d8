/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/update_log.h"

#include "base/log.h"

enum { REPORTS = 256, VERSIONS = 256 };

struct hzp_update_log {
    struct hzp_lock lock;
    struct hzp_update_report report[REPORTS]; /* update n is report[n % REPORTS] */
    uint64_t pushed;
    /* the writer's */
    uint64_t written, version;
    struct hzp_version_record record[VERSIONS];
};

struct hzp_update_log *hzp_update_log_create(uint64_t known)
{
    struct hzp_update_log *log = hzp_xcalloc(1, sizeof(*log));
    hzp_lock_init(&log->lock, HZP_LOCK_UPDATES);
    log->version = known;
    return log;
}

void hzp_update_log_destroy(struct hzp_update_log *log)
{
    if (!log)
        return;
    hzp_lock_fini(&log->lock);
    free(log);
}

void hzp_update_log_push(struct hzp_update_log *log, const struct hzp_update_report *report)
{
    HZP_LOCKED(&log->lock);
    log->report[log->pushed++ % REPORTS] = *report;
}

/* Takes the next report; *ret_lost is increased by those that were overwritten.  False: none. */
static bool take(struct hzp_update_log *log, struct hzp_update_report *ret, uint64_t *ret_lost)
{
    HZP_LOCKED(&log->lock);
    if (log->pushed - log->written > REPORTS) {
        *ret_lost += log->pushed - log->written - REPORTS;
        log->written = log->pushed - REPORTS;
    }
    bool any = log->written < log->pushed;
    if (any)
        *ret = log->report[log->written++ % REPORTS];
    return any;
}

static void write_update(const struct hzp_update_report *r)
{
    char sequence[64] = "", path[192] = "", use[64] = "";
    if (r->peak > 0)
        snprintf(use, sizeof(use), " mfu=%.4f hfu=%.4f",
                 hzp_update_utilisation(r, r->operations.model),
                 hzp_update_utilisation(r, r->operations.hardware));
    if (r->last_sequence)
        snprintf(sequence, sizeof(sequence), " sequence=%" PRId64 "-%" PRId64, r->first_sequence,
                 r->last_sequence);
    if (*r->paths.left_out)
        snprintf(path, sizeof(path), " layers=%d left_out=%s", r->paths.layers, r->paths.left_out);
    hzp_log(HZP_LOG_INFO, "train",
            "update optimizer_step=%" PRId64
            " loss=%.4f grad_norm=%.4g divisor=%.6g lr=%.4g samples=%d "
            "tokens=%d%s%s device_ms=%.1f ms=%.1f%s",
            r->optimizer_step, r->loss, r->grad_norm, r->divisor, (double)r->lr, r->samples,
            r->learned_tokens, sequence, path, (double)r->device_ns * 1e-6,
            (double)r->wall_ns * 1e-6, use);
}

static void write_versions(struct hzp_update_log *log, struct hzp_weights *weights,
                           int64_t learned_most)
{
    int32_t n = hzp_weights_list(weights, log->record, VERSIONS);
    for (int32_t i = n - 1; i >= 0; i--) {
        const struct hzp_version_record *v = &log->record[i];
        if (v->id <= log->version || v->state == HZP_VERSION_DRAFT ||
            v->state == HZP_VERSION_TRIAL || v->state == HZP_VERSION_DROPPED)
            continue;
        char loss[32] = ""; /* a version that no update made has no known loss */
        if (isfinite(v->loss))
            snprintf(loss, sizeof(loss), " loss=%.4f", v->loss);
        hzp_log(HZP_LOG_INFO, "train",
                "version id=%" PRIu64 " optimizer_step=%" PRId64 "%s learned_through=%" PRId64,
                v->id, v->optimizer_step, loss, HZP_MIN(v->learned_through, learned_most));
        log->version = v->id;
    }
}

void hzp_update_log_write(struct hzp_update_log *log, struct hzp_weights *weights,
                          int64_t learned_most)
{
    struct hzp_update_report report;
    uint64_t lost = 0;
    while (take(log, &report, &lost))
        if (!report.skipped && !report.broken) /* those have lines of their own */
            write_update(&report);
    if (lost)
        hzp_log(HZP_LOG_WARN, "train", "updates not logged count=%" PRIu64, lost);
    write_versions(log, weights, learned_most);
}
