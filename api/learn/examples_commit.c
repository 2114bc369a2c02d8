/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/examples_commit.c - parsed examples to the log and the queue. */
#include "api/learn/examples.h"
#include "base/log.h"

static int reserve(struct hzp_examples *ex, int32_t count, int64_t tokens,
                   struct hzp_err_text *reterr)
{
    struct hzp_sample_queue_stats stats;
    int r = hzp_sample_queue_reserve(ex->queue, count, tokens);
    if (r >= 0)
        return r;
    hzp_sample_queue_read_stats(ex->queue, &stats);
    if (r == HZP_EINVAL)
        return hzp_fail(reterr, r,
                        "%d examples of %lld tokens exceed the capacity of the queue (%d and "
                        "%lld): send them in several bodies",
                        count, (long long)tokens, stats.samples_max, (long long)stats.tokens_max);
    return hzp_fail(reterr, r,
                    "the queue holds %d of %d examples and %lld of %lld tokens: send these again "
                    "when some have been learned",
                    stats.samples, stats.samples_max, (long long)stats.tokens,
                    (long long)stats.tokens_max);
}

int hzp_examples_commit(struct hzp_examples *ex, struct hzp_sample **sample, int32_t count,
                        const struct hzp_body_key *key, int64_t *ret_first, int64_t *ret_last,
                        struct hzp_err_text *reterr)
{
    int64_t tokens = 0, first = 0, before;
    int known = key ? hzp_sample_log_find_body(ex->log, key, ret_first, &before, reterr) : 0;
    if (known != 0) {
        hzp_examples_free(sample, count);
        if (known > 0)
            *ret_last = *ret_first + before - 1;
        if (known > 0 && key->session && /* it may come in another session than before */
            hzp_sample_log_note_session(ex->log, key->session, *ret_last, reterr) < 0)
            return HZP_EIO;
        return known;
    }
    for (int32_t i = 0; i < count; i++)
        tokens += sample[i]->count;
    int r = reserve(ex, count, tokens, reterr);
    if (r < 0) {
        hzp_examples_free(sample, count);
        return r;
    }
    struct hzp_err_text own = {{0}, {0}}; /* it names files of this machine */
    hzp_lock_take(&ex->lock);
    r = hzp_sample_log_append_once(ex->log, sample, count, key, &first, &own);
    if (r == HZP_OK)
        hzp_sample_queue_push(ex->queue, sample, count);
    hzp_lock_release(&ex->lock);
    if (r != HZP_OK) { /* refused, or accepted before */
        hzp_sample_queue_unreserve(ex->queue, count, tokens);
        hzp_examples_free(sample, count);
    } else {
        free(sample);
    }
    if (r < 0 && r != HZP_EINVAL) {
        hzp_log(HZP_LOG_ERROR, "state", "%s, refusing examples=%d", own.text, count);
        return hzp_fail(reterr, r == HZP_EBUSY || r == HZP_ENOMEM ? r : HZP_EIO,
                        "the examples could not be stored: the server's log says why");
    }
    if (r < 0)
        return hzp_fail(reterr, r, "%s", own.text);
    *ret_first = first;
    *ret_last = first + count - 1;
    if (r > 0 && key->session &&
        hzp_sample_log_note_session(ex->log, key->session, *ret_last, reterr) < 0)
        return HZP_EIO;
    return r;
}
