/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/commands.h - the commands of hzpserve, each in a file cmd_<name>.c.
 *
 * A command prints its results to standard output and errors to standard error, and returns the
 * process's exit status: 0, 1 (it failed), 2 (wrong usage), or that of a signal.
 *
 * Thread: main.
 */
#pragma once

#include "api/cli/options.h"

/* Prints the error of a failed call, and returns the exit status: 2 if it names an option, else
 * 1. */
int hzp_command_failed(int code, const struct hzp_err_text *err);
/* Prints how the command is used, its name and what follows it, and returns the exit status. */
int hzp_command_usage(const char *usage);

/* The body of POST /v1/undo for what the word names: NULL, the newest lesson; a lesson's number; a
 * version: a name, or v and its number.  The caller owns it; NULL: the word is not UTF-8. */
json_t *hzp_undo_body(const char *word);

/* What both programs' main is: reads the options and runs the command.  bench: the command of that
 * name, which hands over to another program, or measures. */
int hzp_commands_run(int argc, char **argv, const char *commit,
                     int (*bench)(const struct hzp_options *options));

/* train, by the model's own answers (cmd_rollout.c). */
int hzp_cmd_train_rollouts(const struct hzp_options *options);

/* The exit status. */
typedef int hzp_command_run(const struct hzp_options *options);
hzp_command_run hzp_cmd_serve, hzp_cmd_complete, hzp_cmd_chat, hzp_cmd_eval, hzp_cmd_train,
    hzp_cmd_bench, hzp_cmd_state, hzp_cmd_weights, hzp_cmd_lessons, hzp_cmd_undo, hzp_cmd_rollout,
    hzp_cmd_pull, hzp_cmd_push, hzp_cmd_devices, hzp_cmd_plan, hzp_cmd_timeline, hzp_cmd_status,
    hzp_cmd_search;

/* For commands that run on several ranks; errors are printed.  start: where --ranks says so and no
 * launcher has started the ranks, runs them and returns the exit status; -1: this process is a
 * rank (keep: see hzp_ranks_start).  open: waits for the other ranks and checks that all agree on
 * build, model and options (lost, stop, ctx: see struct hzp_ranks_config; NULL: none); 0, or the
 * exit status. */
int hzp_cmd_ranks_start(const struct hzp_options *options, const struct hzp_launch_keep *keep);
int hzp_cmd_ranks_open(const struct hzp_options *options,
                       void (*lost)(void *ctx, int rank, const char *why), bool (*stop)(void *ctx),
                       void *ctx, struct hzp_ranks *ret);

/* serve, as the process that forwards requests to rank 0 at this socket (api/relay/relay.h); the
 * exit status. */
int hzp_cmd_serve_relay(const struct hzp_options *options, const char *path);

/* After a loss: waits for all ranks again (hzp_ranks_rejoin).  0, or the exit status: for what
 * stopped the wait HZP_LAUNCH_LOST. */
int hzp_cmd_ranks_rejoin(const struct hzp_options *options, bool (*stop)(void *ctx), void *ctx,
                         struct hzp_ranks *ranks);

/* What ranks must agree on (hzp_control_meet); the caller frees it.  NULL: it is too long, and that
 * is printed. */
char *hzp_cmd_ranks_record(const struct hzp_options *options);

/* CPU threads of this rank: as --threads says, else its part of what the machine has. */
int64_t hzp_cmd_ranks_threads(const struct hzp_options *options, const struct hzp_ranks *ranks);
