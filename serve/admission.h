/* SPDX-License-Identifier: Apache-2.0 */
/* serve/admission.h - whether one more request may begin, predicted from the KV pages that the
 * running ones will need.
 *
 * Two rules.  By worst case: prompt and max_tokens of all of them fit the pool at once; no admitted
 * request ever lacks a page, and most pages are reserved for tokens that never come.  By
 * prediction: the pages needed at every future step fit, where each sequence takes a row a step and
 * still runs with the probability that follows from its length so far.
 *
 * Lengths are learned online as in survival analysis (Kaplan and Meier): of all requests that had
 * drawn so many tokens, which part went no further?  Requests cut at max_tokens, and those that
 * still run, count as having gone on; so the estimate is not biased towards the short ones that end
 * first, and with nothing learned yet both rules nearly agree.  Old ends lose half their weight
 * every thousand.  At step t from now
 *
 *     mean(t) = sum over sequences of  p_i(t) * pages_i(t),   p_i(t) = S(drawn_i + t) / S(drawn_i)
 *     var(t)  = sum of  p_i(t) * (1 - p_i(t)) * pages_i(t)^2
 *     peak    = max over t of  mean(t) + 1.5 sqrt(var(t))
 *
 * (the future memory of the past-future scheduler, Gong et al., ASPLOS 2025, with probabilities in
 * place of drawn lengths, so decisions are deterministic).  Steps t
 * are looked at in classes a quarter of an octave wide, each by its last step's pages and its first
 * step's probability, which errs on the safe side.
 *
 * A prediction may fail; the scheduler then preempts the youngest request (scheduler.h).  The
 * margin of 1.5 standard deviations trades some preemptions for fuller pools.
 *
 * Thread: engine.
 */
#ifndef HZP_SERVE_ADMISSION_H
#define HZP_SERVE_ADMISSION_H

#include "base/base.h"

struct hzp_admission;

enum hzp_admission_rule { HZP_ADMIT_PREDICTED, HZP_ADMIT_WORST_CASE };

/* One sequence, as far as its pages go. */
struct hzp_growth {
    int32_t rows;        /* prompt and drawn tokens: what its next draw needs stored */
    int32_t drawn;       /* tokens generated so far */
    int32_t least, most; /* tokens it generates; equal: it is known how many */
};

/* pages, page_rows: of the pool. */
int hzp_admission_create(enum hzp_admission_rule rule, int32_t pages, int32_t page_rows,
                         struct hzp_admission **ret);
void hzp_admission_destroy(struct hzp_admission *a); /* NULL: no effect */

/* A request has ended.  cut: by its max_tokens, so it might have gone on. */
void hzp_admission_ended(struct hzp_admission *a, const struct hzp_growth *at, bool cut);

/* Takes a new look at the running sequences, before hzp_admission_fits.  Costs some 40 additions a
 * sequence. */
void hzp_admission_look(struct hzp_admission *a, const struct hzp_growth *running, int32_t count);

/* True: the pool is predicted to suffice with this one too.  Always true if no other runs. */
bool hzp_admission_fits(const struct hzp_admission *a, const struct hzp_growth *one);

/* It was admitted: it counts until the next look. */
void hzp_admission_add(struct hzp_admission *a, const struct hzp_growth *one);

/* The most pages that the running ones are predicted to need; may exceed the pool. */
int32_t hzp_admission_peak(const struct hzp_admission *a);

/* Probability that a request which has drawn `from` tokens draws more than `to`: for tests and
 * explanations. */
double hzp_admission_goes_on(const struct hzp_admission *a, int32_t from, int32_t to);

#endif
