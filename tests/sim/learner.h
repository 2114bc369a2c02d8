/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/learner.h - a trainer for ranks that compute each step together, as small as it can be:
 * two micro-batches and an update, again and again, whose draft is published when it is whole.
 * Rank 0 offers slices of the chains; the others make the same chains from the work that they are
 * sent.
 *
 * A call that fails ends the test.  Thread: the rank's engine thread.
 */
#pragma once

#include "nanobatch/model/work.h"
#include "nanobatch/source.h"
#include "nanobatch/step_record.h"
#include "tests/fixture/model.h"

enum { LEARNER_ROWS = 24, LEARNER_UPDATES = 4096 };

struct learner {
    struct fixture_model *m;
    struct hzp_train_space *space;
    struct hzp_micro *micro;
    struct hzp_plan chain;
    struct hzp_work work;
    uint64_t number;           /* of the chain; 0: none so far */
    int32_t done;              /* its items that have run */
    struct hzp_version *draft; /* of the update; NULL: none */
    bool whole;                /* the draft is */
    char *data;
    size_t bytes;
    double weight, loss;           /* of the update's micro-batches so far */
    double told[LEARNER_UPDATES];  /* loss of each update, a learned token */
    uint64_t sum[LEARNER_UPDATES]; /* the checksum that it found of its draft */
    int32_t updates;
    float lr;
    bool cuts_short; /* plants a fault: leaves out a document */
};

void learner_open(struct learner *l, struct fixture_model *m);
void learner_close(struct learner *l);
/* Bytes of the longest work. */
int32_t learner_room(void);

/* Rank 0: the slice of this step, of so many items at most; false: there is none, because no slot
 * of weights is free. */
bool learner_offer(struct learner *l, int32_t items, struct hzp_slice *ret);
/* Another rank: the chain of the record's slice. */
int learner_chain(struct learner *l, const struct hzp_step_record *record,
                  const struct hzp_plan **ret, struct hzp_err_text *reterr);
/* Every rank: items up to `to` have run. */
void learner_ran(struct learner *l, int32_t to);
/* Publishes the draft if it is whole: true. */
bool learner_publish(struct learner *l, uint64_t last_step);
