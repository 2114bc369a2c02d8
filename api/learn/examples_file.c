/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/examples_file.c - files of examples, read as a whole, with a report of it. */
#include "api/learn/csv.h"
#include "api/learn/examples_parts.h"
#include "base/chars.h"
#include "base/file.h"
#include "base/log.h"

#include <strings.h>

/* Documents are the texts between these marks, stripped of white space at both ends. */
static const char separator[] = "<|endoftext|>";

static int load_text(struct hzp_parse *p, const char *body, size_t bytes)
{
    const char *end = body + bytes;
    while (body < end) {
        const char *mark = memmem(body, (size_t)(end - body), separator, sizeof(separator) - 1);
        const char *stop = mark ? mark : end;
        size_t n = (size_t)(stop - body);
        p->line++; /* counts documents */
        hzp_trim(&body, &n);
        if (n)
            HZP_TRY(hzp_parse_look_on(p, hzp_parse_document(p, body, n)));
        body = stop + sizeof(separator) - 1;
        if (!mark)
            break;
    }
    return HZP_OK;
}

/* --- What was found --------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *end)
{
    size_t length = strlen(path), n = strlen(end);
    return length > n && !strcasecmp(path + length - n, end);
}

/* "lines 3, 8, 11 and 34 more" */
static const char *name_lines(const struct hzp_lines *lines, char *ret, size_t size)
{
    int64_t shown = HZP_MIN(lines->count, (int64_t)HZP_LINES_SHOWN);
    int n = snprintf(ret, size, "line%s ", lines->count > 1 ? "s" : "");
    for (int64_t i = 0; i < shown; i++)
        n += snprintf(ret + n, size - (size_t)n, "%s%" PRId64, i ? ", " : "", lines->first[i]);
    if (lines->count > shown)
        snprintf(ret + n, size - (size_t)n, " and %" PRId64 " more", lines->count - shown);
    return ret;
}

/* The reasons for which examples are refused. */
static int refuse(const struct hzp_parse_found *found, struct hzp_err_text *reterr)
{
    char text[sizeof(reterr->text)], lines[160];
    int64_t left = found->wrong;
    int n = 0, size = (int)sizeof(text);
    if (found->wrong > 1)
        n = snprintf(text, sizeof(text), "%" PRId64 " of %" PRId64 " examples are wrong: ", left,
                     found->examples);
    for (int i = 0; i < HZP_REASONS_SHOWN && found->reason[i].lines.count && n < size; i++) {
        left -= found->reason[i].lines.count;
        n += snprintf(text + n, (size_t)(size - n), "%s%s: %s", i ? "; " : "",
                      name_lines(&found->reason[i].lines, lines, sizeof(lines)),
                      found->reason[i].text);
    }
    if (left && n < size)
        snprintf(text + n, (size_t)(size - n), "; and %" PRId64 " more", left);
    return hzp_fail_param(reterr, HZP_EINVAL, "lines", "%s", text);
}

/* Whether the file may be used: no example is wrong, and none too long where that is refused. */
static int judge(const struct hzp_parse *p, struct hzp_err_text *reterr)
{
    const struct hzp_parse_found *found = p->found;
    char lines[160];
    if (found->wrong)
        return refuse(found, reterr);
    bool refused = p->ex->too_long == HZP_TOO_LONG_REFUSED;
    if (!found->too_long.count || (!refused && p->ex->too_long != HZP_TOO_LONG_FAIL))
        return HZP_OK;
    return hzp_fail_param(reterr, HZP_EINVAL, "lines",
                          "%" PRId64 " of %" PRId64 " examples have more than the %d tokens that "
                          "the context or the memory allows, up to %" PRId64 " (%s)%s",
                          found->too_long.count, found->examples, p->ex->tokens_max, found->longest,
                          name_lines(&found->too_long, lines, sizeof(lines)),
                          refused ? ""
                                  : "; --too-long cut shortens their prompts, skip leaves "
                                    "them out");
}

/* Logs what was cut or left out. */
static int report(const struct hzp_parse *p, const char *path)
{
    const struct hzp_parse_found *found = p->found;
    char lines[160];
    int64_t left = found->answer_long.count, cut = found->too_long.count - left;
    if (p->ex->too_long == HZP_TOO_LONG_SKIP)
        left = cut, cut = 0;
    if (cut + left)
        hzp_log(HZP_LOG_WARN, "train",
                "%s: %" PRId64 " of %" PRId64 " examples have more than %d tokens, up to %" PRId64
                " (%s): --too-long %s",
                path, found->too_long.count, found->examples, p->ex->tokens_max, found->longest,
                name_lines(&found->too_long, lines, sizeof(lines)),
                p->ex->too_long == HZP_TOO_LONG_SKIP ? "skip leaves them out"
                                                     : "cut has shortened their prompts");
    if (found->answer_long.count)
        hzp_log(HZP_LOG_WARN, "train",
                "%s: %" PRId64 " of these are left out, since what is learned of them is too long "
                "itself (%s)",
                path, left, name_lines(&found->answer_long, lines, sizeof(lines)));
    return HZP_OK;
}

/* --- Files ------------------------------------------------------------------------------------ */

int hzp_examples_load(const struct hzp_examples *ex, const char *path, struct hzp_sample ***ret,
                      int32_t *ret_count, struct hzp_err_text *reterr)
{
    HZP_FREED char *body = NULL;
    size_t size;
    struct hzp_err_text err = {{0}, {0}};
    int r = hzp_file_read(path, UINT64_MAX, &body, &size, reterr);
    HZP_TRY(r);
    if (!size)
        return hzp_fail(reterr, HZP_EINVAL, "%s: is empty", path);
    struct hzp_parse_found found = {0};
    struct hzp_examples loose = *ex;
    loose.split = true;
    struct hzp_parse p = {.ex = &loose, .pairs = ex->pairs, .found = &found, .reterr = &err};
    if (ends_in(path, ".txt"))
        r = load_text(&p, body, size);
    else if (ends_in(path, ".csv") || ends_in(path, ".tsv"))
        r = hzp_csv_read(body, size, ends_in(path, ".tsv") ? '\t' : ',', hzp_parse_object, &p,
                         &err);
    else
        r = hzp_parse_body(&p, body, size, "application/x-ndjson");
    r = hzp_parse_take(&p, r < 0 ? r : judge(&p, &err), ret, ret_count);
    return r < 0 ? hzp_fail(reterr, r, "%s: %s", path, err.text) : report(&p, path);
}

int hzp_examples_load_option(const struct hzp_examples *ex, const char *path, const char *option,
                             struct hzp_sample ***ret, int32_t *ret_count,
                             struct hzp_err_text *reterr)
{
    int r = hzp_examples_load(ex, path, ret, ret_count, reterr);
    return r == HZP_ENOENT ? hzp_wrong(reterr, option, "%s: there is no such file", path) : r;
}
