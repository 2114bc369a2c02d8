/* SPDX-License-Identifier: Apache-2.0 */
/* api/rollout/judge.h - a program of the operator's that answers questions, what an answer is worth
 * or what a tool says: a child process that reads a JSON line for each question and writes one for
 * each answer, in any order.
 *
 *     {"id": 7, "prompt": "12 + 7 =", "text": " 19", "answer": "19"}       to it
 *     {"id": 7, "reward": 1}                                               from it
 *
 * The command is run by /bin/sh, in a process group of its own, without the server's keys in its
 * environment; what it writes to standard error goes to the server's.  It is started when it is
 * first asked, and ends when its standard input does.
 *
 * A program that ends, that cannot be written to, that writes a line which is no such JSON, or that
 * has not answered in time, is killed and started again, later each time.  The question that it
 * was asked first gets no answer; the others are unknown to the next process (the round has grown),
 * and are to be asked again.  After HZP_JUDGE_FAILURES in a row without an answer it has failed.
 *
 * The process ignores SIGPIPE.
 *
 * Bounds: HZP_JUDGE_OPEN questions at once, HZP_JUDGE_LINE bytes of a line from it.  No call
 * blocks.
 *
 * Thread: the owner's.
 */
#pragma once

#include "base/err.h"
#include "base/json.h"

enum { HZP_JUDGE_OPEN = 256, HZP_JUDGE_LINE = 65536, HZP_JUDGE_FAILURES = 5 };

struct hzp_judge;

/* command: borrowed; it is not started yet.  name: what errors and the log call it; borrowed. */
struct hzp_judge *hzp_judge_create(const char *command, const char *name);
void hzp_judge_destroy(struct hzp_judge *j); /* kills it.  NULL: no effect */

/* From 1; it grows whenever the process has ended. */
int64_t hzp_judge_round(const struct hzp_judge *j);

/* Asks question `id`, with what `question` has besides (borrowed); the answer must come within
 * `seconds`.  False: not now. */
bool hzp_judge_ask(struct hzp_judge *j, int64_t id, const json_t *question, double seconds);

/* Writes and reads as far as it can.  True: *ret (owned by the caller) is the line that answers
 * *ret_id, NULL: there is none; false: nothing more now. */
bool hzp_judge_next(struct hzp_judge *j, int64_t *ret_id, json_t **ret);
/* The newest line was no answer, and why: it counts as one that is no JSON. */
void hzp_judge_reject(struct hzp_judge *j, const char *why);

/* HZP_EIO: it has failed, and why; it is tried again from the next question on. */
int hzp_judge_check(struct hzp_judge *j, struct hzp_err_text *reterr);
