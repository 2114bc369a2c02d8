/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/commit.h - the commit that the program was built from.
 *
 * Defined in commit.c, which meson writes from commit.c.in at each build.
 *
 * Thread: any; constant.
 */
#ifndef HZP_API_CLI_COMMIT_H
#define HZP_API_CLI_COMMIT_H

/* Its abbreviated id; "unknown" where the source is no git repository. */
extern const char hzp_commit[];

#endif
