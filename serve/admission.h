/* SPDX-License-Identifier: Apache-2.0 */
/* serve/admission.h - decides whether one more request may start, by predicting the KV pages that
 * the running requests will need.
 *
 * Two rules.  Worst case: prompt and max_tokens of all running requests fit the pool at once; no
 * admitted request ever lacks a page, but most pages are reserved for tokens that are never
 * generated.  Prediction: the pages needed at every future step fit, where each sequence grows by
 * one row per step and is still running with the probability that follows from its current length.
 *
 * Lengths are learned online as in survival analysis (Kaplan and Meier): S(n) is the probability
 * that a request generates more than n tokens.  Requests cut at max_tokens, and those still
 * running, count as having gone on, so the estimate is not biased towards short requests, which end
 * first; with nothing learned yet both rules nearly agree.  Observations decay with a half-life of
 * 1000 finished requests.  At step t from now
 *
 *     mean(t) = sum over sequences of  p_i(t) * pages_i(t),   p_i(t) = S(drawn_i + t) / S(drawn_i)
 *     var(t)  = sum of  p_i(t) * (1 - p_i(t)) * pages_i(t)^2
 *     peak    = max over t of  mean(t) + 1.5 sqrt(var(t))
 *
 * (the future memory of the past-future scheduler, Gong et al., ASPLOS 2025, with probabilities in
 * place of sampled lengths, so decisions are deterministic).  Steps t are grouped into classes a
 * quarter of an octave wide; a class uses the pages of its last step and the probability of its
 * first step, which overestimates the need.
 *
 * A prediction may fail; the scheduler then preempts the youngest request (scheduler.h).  The
 * margin of 1.5 standard deviations trades some preemptions for fuller pools.
 *
 * Thread: engine.
 */
#pragma once

#include "base/base.h"

struct hzp_admission;

enum hzp_admission_rule { HZP_ADMIT_PREDICTED, HZP_ADMIT_WORST_CASE };

/* What the prediction needs to know of one sequence. */
struct hzp_growth {
    int32_t rows;        /* prompt and generated tokens: rows that its next draw reads */
    int32_t drawn;       /* tokens generated so far */
    int32_t least, most; /* tokens it generates; equal if the count is fixed */
};

/* pages: of the pool; page_rows: tokens per page. */
int hzp_admission_create(enum hzp_admission_rule rule, int32_t pages, int32_t page_rows,
                         struct hzp_admission **ret);
/* No sequence has more than so many pages at once. */
void hzp_admission_bound(struct hzp_admission *a, int32_t pages);
void hzp_admission_destroy(struct hzp_admission *a); /* NULL: no effect */

/* Records a request that has ended. cut: it ended at max_tokens and might have gone on. */
void hzp_admission_ended(struct hzp_admission *a, const struct hzp_growth *at, bool cut);

/* Recomputes the prediction for the running sequences; call before hzp_admission_fits().  Costs
 * about 40 additions per sequence. */
void hzp_admission_look(struct hzp_admission *a, const struct hzp_growth *running, int32_t count);

/* True: the pool is predicted to suffice with this sequence added.  Always true if none is
 * running. */
bool hzp_admission_fits(const struct hzp_admission *a, const struct hzp_growth *one);

/* The sequence was admitted: it counts as running until the next hzp_admission_look(). */
void hzp_admission_add(struct hzp_admission *a, const struct hzp_growth *one);

/* The largest number of pages that the running sequences are predicted to need; may exceed the
 * pool. */
int32_t hzp_admission_peak(const struct hzp_admission *a);

/* Probability that a request which has generated `from` tokens generates more than `to`; for tests
 * and diagnostics. */
double hzp_admission_goes_on(const struct hzp_admission *a, int32_t from, int32_t to);
