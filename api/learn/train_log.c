/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/train_log.h"

#include "base/file.h"
#include "base/json.h"

#include <sys/ioctl.h>
#include <sys/stat.h>

static const uint64_t bar_ns = 100000000, plain_ns = 5000000000;

struct hzp_train_log {
    FILE *file;
    bool terminal, bar_stands;
    int64_t begin_step, total;
    uint64_t begin_ns, shown_ns;
    double rows, seconds; /* decaying sums over about the last twenty updates */
    double eval_loss;     /* NaN: none yet */
    struct hzp_train_best best;
    uint64_t wall_ns, kept_ns; /* all updates took; those that count did */
    struct hzp_operations operations;
    double peak; /* the newest report's */
};

/* Counts an evaluation. */
static void note_eval(struct hzp_train_best *best, int64_t step, double loss)
{
    if (step < 1)
        return;
    best->since++;
    if (isfinite(loss) && (!best->step || loss < best->loss))
        *best = (struct hzp_train_best){.step = step, .loss = loss};
}

/* Copies the lines of steps up to `step`; false: a read or write failed. */
static bool copy_lines(FILE *from, FILE *to, int64_t step, struct hzp_train_best *best)
{
    HZP_FREED char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, from) > 0) {
        json_auto_t *object = hzp_json_load(line, strlen(line), HZP_JSON_PYTHON, NULL, NULL);
        json_t *number = object ? json_object_get(object, "step") : NULL;
        json_t *loss = json_object_get(object, "eval_loss");
        bool kept = json_is_integer(number) && json_integer_value(number) <= step;
        if (kept)
            fputs(line, to);
        if (kept && loss)
            note_eval(best, json_integer_value(number),
                      json_is_number(loss) ? json_number_value(loss) : NAN);
    }
    return !ferror(from) && !ferror(to);
}

/* Replaces the file, following links, by one with only the lines that are kept.  A terminal, a pipe
 * or /dev/null keeps no lines and must not be replaced. */
static int drop_later_lines(const char *path, int64_t step, struct hzp_train_best *best,
                            struct hzp_err_text *reterr)
{
    char real[PATH_MAX], temporary[PATH_MAX + 8];
    struct stat st;
    if (stat(path, &st) < 0 || (S_ISREG(st.st_mode) && !realpath(path, real)))
        return errno == ENOENT ? HZP_OK
                               : hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return HZP_OK;
    snprintf(temporary, sizeof(temporary), "%s.tmp", real);
    HZP_ENDED(hzp_file_end) FILE *from = fopen(real, "r");
    FILE *to = from ? fopen(temporary, "w") : NULL;
    bool done = to && copy_lines(from, to, step, best);
    done = to && fclose(to) == 0 && done && rename(temporary, real) == 0;
    int error = errno;
    if (to && !done)
        unlink(temporary);
    return done ? HZP_OK
                : hzp_fail(reterr, HZP_EIO, "%s: cannot be written: %s", path, strerror(error));
}

int hzp_train_log_open(const char *path, int64_t step, int64_t total, struct hzp_train_log **ret,
                       struct hzp_err_text *reterr)
{
    struct hzp_train_best best = {0};
    HZP_TRY(drop_later_lines(path, step, &best, reterr));
    FILE *file = fopen(path, "a");
    if (!file)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(errno));
    struct hzp_train_log *log = hzp_xcalloc(1, sizeof(*log));
    log->file = file;
    log->terminal = isatty(STDERR_FILENO);
    log->begin_step = step;
    log->total = total;
    log->begin_ns = hzp_now_ns();
    log->eval_loss = NAN;
    log->best = best;
    *ret = log;
    return HZP_OK;
}

void hzp_train_log_close(struct hzp_train_log *log)
{
    if (!log)
        return;
    hzp_train_log_line(log);
    fclose(log->file);
    free(log);
}

static double unix_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void format_duration(double seconds, char *ret, size_t size)
{
    long s = (long)(seconds + 0.5);
    if (!(seconds >= 0 && seconds < 1e7))
        snprintf(ret, size, "?");
    else if (s >= 3600)
        snprintf(ret, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(ret, size, "%ld:%02ld", s / 60, s % 60);
}

static void draw_bar(const struct hzp_train_log *log, const char *text, double part)
{
    struct winsize window;
    int columns =
        ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col ? window.ws_col : 80;
    int behind = columns - (int)strlen(text) - 5, room = HZP_MIN(behind, 40);
    fprintf(stderr, "\r\033[K%s", text);
    if (room >= 8) {
        int full = (int)(part * room + 0.5);
        fputs(" [", stderr);
        for (int i = 0; i < room; i++)
            fputc(i < full ? '#' : '.', stderr);
        fputs("]", stderr);
    }
    fflush(stderr);
}

static void show(struct hzp_train_log *log, const struct hzp_update_report *report)
{
    uint64_t now = hzp_now_ns();
    bool last = report->optimizer_step >= log->total;
    if (!last && log->shown_ns && now - log->shown_ns < (log->terminal ? bar_ns : plain_ns))
        return;
    log->shown_ns = now;
    char eta[32], text[200], eval[32] = "";
    int64_t done = report->optimizer_step - log->begin_step;
    double seconds = (double)(now - log->begin_ns) * 1e-9;
    double left =
        done > 0 ? seconds / (double)done * (double)(log->total - report->optimizer_step) : -1;
    format_duration(left, eta, sizeof(eta));
    if (!isnan(log->eval_loss))
        snprintf(eval, sizeof(eval), log->terminal ? " eval %.4f" : " eval_loss=%.4f",
                 log->eval_loss);
    double rate = log->seconds > 0 ? log->rows / log->seconds : 0;
    if (!log->terminal) {
        fprintf(stderr,
                "step=%" PRId64 "/%" PRId64 " loss=%.4f%s lr=%.3g grad_norm=%.3g "
                "tokens_per_second=%.0f eta=%s\n",
                report->optimizer_step, log->total, report->loss, eval, (double)report->lr,
                report->grad_norm, rate, eta);
        return;
    }
    snprintf(text, sizeof(text), "%" PRId64 "/%" PRId64 "  loss %.4f%s  %.0f tokens/s  ETA %s",
             report->optimizer_step, log->total, report->loss, eval, rate, eta);
    draw_bar(log, text, log->total ? (double)report->optimizer_step / (double)log->total : 0);
    log->bar_stands = true;
}

static void write_ratios(FILE *file, const struct hzp_ratio_stats *ratios)
{
    double n = (double)ratios->rows;
    if (ratios->rows)
        fprintf(file,
                "\"ratio\":{\"mean\":%.9g,\"max\":%.9g,\"clipped\":%.9g,\"k1\":%.9g,\"k3\":%.9g,"
                "\"effective\":%.9g,\"entropy\":%.9g},",
                ratios->sum / n, ratios->max, (double)ratios->clipped / n, ratios->k1 / n,
                ratios->k3 / n, ratios->sum * ratios->sum / ratios->squares, ratios->entropy / n);
}

static void write_use(FILE *file, const struct hzp_update_report *report)
{
    fprintf(file, "\"operations\":{\"model\":%" PRIu64 ",\"hardware\":%" PRIu64 "},",
            report->operations.model, report->operations.hardware);
    if (report->peak > 0)
        fprintf(file, "\"mfu\":%.4f,\"hfu\":%.4f,\"peak_gflops\":%.1f,",
                hzp_update_utilisation(report, report->operations.model),
                hzp_update_utilisation(report, report->operations.hardware), report->peak);
}

/* For the line at the end, and the progress. */
static void add_use(struct hzp_train_log *log, const struct hzp_update_report *report)
{
    log->wall_ns += report->wall_ns;
    log->kept_ns += report->skipped ? 0 : report->wall_ns;
    log->operations.model += report->operations.model;
    log->operations.hardware += report->operations.hardware;
    log->peak = report->peak;
}

void hzp_train_log_use(const struct hzp_train_log *log)
{
    struct hzp_update_report all = {.wall_ns = log->wall_ns, .peak = log->peak};
    double took = (double)(hzp_now_ns() - log->begin_ns);
    if (!log->wall_ns)
        return;
    fprintf(stderr, "use: goodput %.1f%%", 100 * HZP_MIN((double)log->kept_ns / took, 1));
    if (log->peak > 0)
        fprintf(stderr,
                " mfu %.1f%% hfu %.1f%% (operations of the model, of the hardware) of %.1f "
                "GFLOP/s, the fastest product seen",
                100 * hzp_update_utilisation(&all, log->operations.model),
                100 * hzp_update_utilisation(&all, log->operations.hardware), log->peak);
    fputc('\n', stderr);
}

void hzp_train_log_update(struct hzp_train_log *log, const struct hzp_update_report *report)
{
    const double keep = 0.95;
    double seconds = (double)report->wall_ns * 1e-9;
    log->rows = log->rows * keep + report->rows;
    log->seconds = log->seconds * keep + seconds;
    add_use(log, report);
    if (report->skipped) {
        fprintf(log->file, "{\"step\":%" PRId64 ",\"skipped\":true,\"dropped\":%s,\"time\":%.3f}\n",
                report->optimizer_step, report->dropped ? "true" : "false", unix_seconds());
    } else {
        fprintf(log->file,
                "{\"step\":%" PRId64 ",\"loss\":%.17g,\"lr\":%.9g,\"grad_norm\":%.17g,"
                "\"tokens\":%d,\"learned_tokens\":%d,\"samples\":%d,\"divisor\":%.17g,"
                "\"tokens_per_second\":%.1f,",
                report->optimizer_step, report->loss, (double)report->lr, report->grad_norm,
                report->rows, report->learned_tokens, report->samples, report->divisor,
                seconds > 0 ? report->rows / seconds : 0);
        if (*report->paths.left_out)
            fprintf(log->file, "\"layers\":%d,\"left_out\":\"%s\",", report->paths.layers,
                    report->paths.left_out);
        write_ratios(log->file, &report->ratios);
        write_use(log->file, report);
        fprintf(log->file, "\"time\":%.3f}\n", unix_seconds());
    }
    fflush(log->file);
    show(log, report);
}

void hzp_train_log_eval(struct hzp_train_log *log, int64_t step, double loss, int64_t tokens)
{
    char number[32] = "null";
    log->eval_loss = loss;
    note_eval(&log->best, step, loss);
    if (isfinite(loss))
        snprintf(number, sizeof(number), "%.17g", loss);
    fprintf(log->file,
            "{\"step\":%" PRId64 ",\"eval_loss\":%s,\"eval_tokens\":%" PRId64 ",\"time\":%.3f}\n",
            step, number, tokens, unix_seconds());
    fflush(log->file);
    hzp_train_log_line(log);
    if (isfinite(loss))
        fprintf(stderr, "step=%" PRId64 " eval_loss=%.4f%s\n", step, loss,
                step && log->best.step == step ? " best" : "");
    else
        fprintf(stderr, "step=%" PRId64 " eval_loss is not finite\n", step);
}

struct hzp_train_best hzp_train_log_best(const struct hzp_train_log *log)
{
    return log->best;
}

void hzp_train_log_line(struct hzp_train_log *log)
{
    if (log->bar_stands)
        fputc('\n', stderr);
    log->bar_stands = false;
}
