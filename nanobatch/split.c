/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/split.h"

#include <string.h>

void hzp_split_init(struct hzp_split *split, const struct hzp_split_config *config)
{
    memset(split, 0, sizeof(*split));
    split->config = *config;
    atomic_store(&split->train_share, config->train_share);
}

void hzp_split_set_share(struct hzp_split *split, double share)
{
    atomic_store_explicit(&split->train_share, share, memory_order_relaxed);
}

static double share_of(const struct hzp_split *split)
{
    return atomic_load_explicit(&split->train_share, memory_order_relaxed);
}

void hzp_split_begin(struct hzp_split *split, struct hzp_split_step *step)
{
    *step = (struct hzp_split_step){.train_ns = split->config.idle_ns};
}

void hzp_split_serve(struct hzp_split *split, struct hzp_split_step *step,
                     const struct hzp_batch *batch)
{
    double share = share_of(split);
    double train_ns = split->credit_ns + share * split->usual_ns;
    step->rows = batch->rows;
    step->decode_rows = batch->decode_segs;
    step->beside = split->config.beside;
    if (step->beside) {
        double usual = split->usual_beside_ns > 0 ? split->usual_beside_ns : split->usual_ns;
        train_ns = share > 0 ? usual : 0;
    }
    /* A step with prompts in it is long already and takes no training, unless prompts never
     * cease. */
    bool prompts = step->rows > step->decode_rows;
    if (prompts && split->passed_over < HZP_SPLIT_PASSED_OVER_MAX) {
        split->passed_over++;
        train_ns = 0;
    } else {
        split->passed_over = 0;
    }
    step->train_ns = train_ns > 0 ? (uint64_t)train_ns : 0;
}

void hzp_split_taken(struct hzp_split_step *step, bool trains)
{
    step->trains = trains;
    step->beside = step->beside && trains;
}

static void average(double *usual, double ns)
{
    *usual += (ns - *usual) / (*usual > 0 ? 16 : 1);
}

/* Training may use its share of what serving really took, but for what it was passed over.  An item
 * longer than what is left of it runs all the same, and the next steps pay for it; one that does
 * not fit behind others in a slice is saved for.  Nothing else is: a trainer that had nothing to do
 * must not hold a later step up. */
void hzp_split_ended(struct hzp_split *split, const struct hzp_split_step *step,
                     const struct hzp_exec_times *times, double next_ns)
{
    if (step->rows == 0) {
        split->credit_ns = 0;
        return;
    }
    bool decodes = step->rows == step->decode_rows;
    double serve_ns = (double)times->serve_ns;
    if (step->beside) {
        split->credit_ns = 0;
        if (decodes) {
            average(&split->usual_beside_ns,
                    (double)(times->serve_end_ns ? times->serve_end_ns : times->serve_ns));
            return;
        }
    }
    split->credit_ns += share_of(split) * serve_ns - (double)times->train_ns;
    split->credit_ns = HZP_MIN(split->credit_ns, next_ns);
    if (decodes)
        average(&split->usual_ns, serve_ns);
}
