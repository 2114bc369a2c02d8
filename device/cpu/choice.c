/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/choice.h"

#include "base/cache.h"

enum { TURNS = 4, LINE_MAX_BYTES = 512 };

static const char *const way_name[HZP_WAYS] = {"panels", "tiles", "library"};
static const char *const class_name[HZP_CHOICE_CLASSES] = {
    "forward few", "forward many", "input few", "input many", "weight few", "weight many"};

int hzp_choice_class(const struct hzp_matmul_args *a)
{
    int form = a->trans_a ? 2 : a->trans_b ? 0 : 1;

    return 2 * form + (a->c.rows > HZP_CHOICE_ROWS);
}

struct hzp_cpu_choice hzp_choice_measure(hzp_choice_time_fn *time, void *ctx)
{
    struct hzp_cpu_choice ret = {{0}};

    for (int c = 0; c < HZP_CHOICE_CLASSES; c++) {
        double best[HZP_WAYS] = {-1, -1, -1};
        for (int turn = 0; turn < TURNS; turn++)
            for (int w = 0; w < HZP_WAYS; w++) {
                double seconds = time(ctx, c, (enum hzp_cpu_way)w);
                if (seconds >= 0 && (best[w] < 0 || seconds < best[w]))
                    best[w] = seconds;
            }
        for (int w = 0; w < HZP_WAYS; w++)
            if (best[w] >= 0 && (best[ret.way[c]] < 0 || best[w] < best[ret.way[c]]))
                ret.way[c] = (uint8_t)w;
    }
    return ret;
}

/* The file: the identity, a line for each class, and `end`, each line as it must be. */
static bool text_of(const char *identity, const struct hzp_cpu_choice *choice, char *ret,
                    size_t size)
{
    int at = snprintf(ret, size, "hzpserve products 1\n%s\n", identity);

    for (int c = 0; c < HZP_CHOICE_CLASSES && at > 0 && (size_t)at < size; c++)
        at += snprintf(ret + at, size - (size_t)at, "%s: %s\n", class_name[c],
                       way_name[choice->way[c]]);
    if (at > 0 && (size_t)at < size)
        at += snprintf(ret + at, size - (size_t)at, "end\n");
    return at > 0 && (size_t)at < size;
}

bool hzp_choice_read(const char *path, const char *identity, struct hzp_cpu_choice *ret)
{
    char found[2 * LINE_MAX_BYTES], expected[2 * LINE_MAX_BYTES];
    struct hzp_cpu_choice choice = {{0}};
    FILE *file = fopen(path, "re");
    size_t size;

    if (!file)
        return false;
    size = fread(found, 1, sizeof(found) - 1, file);
    fclose(file);
    found[size] = '\0';
    for (int c = 0; c < HZP_CHOICE_CLASSES; c++)
        for (int w = 0; w < HZP_WAYS; w++) {
            char line[64];
            snprintf(line, sizeof(line), "\n%s: %s\n", class_name[c], way_name[w]);
            if (strstr(found, line))
                choice.way[c] = (uint8_t)w;
        }
    /* what was written for these choices, to the last byte */
    if (!text_of(identity, &choice, expected, sizeof(expected)) || strcmp(found, expected) != 0)
        return false;
    *ret = choice;
    return true;
}

void hzp_choice_write(const char *path, const char *identity, const struct hzp_cpu_choice *choice)
{
    char text[2 * LINE_MAX_BYTES];

    if (text_of(identity, choice, text, sizeof(text)))
        hzp_cache_put(path, text, strlen(text), NULL); /* else it is measured again */
}

bool hzp_choice_path(char *ret, size_t size)
{
    return hzp_cache_path(ret, size, "cpu.products");
}
