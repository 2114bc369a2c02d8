/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/nearest.h - "did you mean": the known word that is most similar to a mistyped one.
 *
 *     struct hzp_nearest near = hzp_nearest("--prot");
 *     hzp_nearest_try(&near, "--port");     for each known word
 *     hzp_nearest_text(&near, text)         "; did you mean --port?"
 *
 * Similar are words that begin with the mistyped one, or that differ from it in at most a third of
 * its letters, where a letter too many, too few, wrong, or swapped with its neighbour counts as one
 * (optimal string alignment).
 *
 * Thread: any; strings are borrowed.
 */
#pragma once

enum { HZP_NEAREST_TEXT = 96 };

struct hzp_nearest {
    const char *word, *best; /* best NULL: none is similar */
    int distance;            /* best's distance */
};

/* Begins a search; then one call of try for each known word, which must outlive it. */
struct hzp_nearest hzp_nearest(const char *word);
void hzp_nearest_try(struct hzp_nearest *near, const char *candidate);

/* The end of an error message, written to ret [HZP_NEAREST_TEXT]; "": none is similar. */
const char *hzp_nearest_text(const struct hzp_nearest *near, char *ret);
