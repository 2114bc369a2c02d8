/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/option_table.h"

#include "base/base.h"

enum { LETTERS_MAX = 48 };

/* Optimal string alignment distance of two words of at most LETTERS_MAX letters. */
static int distance(const char *a, const char *b)
{
    int n = (int)strlen(a), m = (int)strlen(b);
    int row[3][LETTERS_MAX + 1];
    for (int j = 0; j <= m; j++)
        row[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = HZP_MIN(best, last[j] + 1);
            best = HZP_MIN(best, now[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = HZP_MIN(best, before[j - 2] + 1);
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

struct hzp_nearest hzp_nearest(const char *word)
{
    size_t letters = strlen(word) - strspn(word, "-");
    return (struct hzp_nearest){.word = word, .distance = HZP_MAX((int)letters / 3, 1) + 1};
}

void hzp_nearest_try(struct hzp_nearest *near, const char *candidate)
{
    size_t n = strlen(near->word);
    if (n > LETTERS_MAX || strlen(candidate) > LETTERS_MAX || n <= strspn(near->word, "-"))
        return;
    int far = strncmp(candidate, near->word, n) ? distance(near->word, candidate) : 1;
    if (far < near->distance) {
        near->best = candidate;
        near->distance = far;
    }
}

const char *hzp_nearest_text(const struct hzp_nearest *near, char *ret)
{
    ret[0] = 0;
    if (near->best)
        snprintf(ret, HZP_NEAREST_TEXT, "; did you mean %s?", near->best);
    return ret;
}
