/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/commit.h - the commit that the program was built from.
 *
 * Defined in commit.c, which meson writes from commit.c.in at each build.
 *
 * Thread: any; constant.
 */
#pragma once

/* The abbreviated commit id; "unknown" if the source is not a git repository. */
extern const char hzp_commit[];
