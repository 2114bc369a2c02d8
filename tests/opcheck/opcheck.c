/* SPDX-License-Identifier: Apache-2.0 */
/* tests/opcheck/opcheck.c - checks and times every op of every backend against ref.
 *
 *   opcheck [--op=PATTERN] [--backend=cpu|cuda|ref] [--level=base|avx2|avx512|avx512_bf16|amx]
 *           [--share=N] [--threads=N] [--seed=N] [--bench] [--grad] [--list] [--quiet] [--slow]
 *           [--tiles] [--self-test]
 *
 * Each case runs on ref and then on every level of the backend whose kernel is not the one before
 * it.  All work is done in a child; when a kernel kills it, the parent says which and goes on with
 * the next case.  --slow leaves out what takes very many calls: for an emulated device.  --tiles
 * checks products on emulated matrix tiles (level amx) instead of the CPU's levels.
 */
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/opcheck/opcheck.h"

enum { TARGETS_MAX = 6, CASE_SECONDS = 1200, PHASE_GRAD = 100000, PHASE_FACTS = 200000 };

static struct {
    const char *pattern, *backend, *level;
    uint64_t seed;
    int threads, share;
    int sabotage; /* -1: none */
    bool bench, grad, quiet, slow, tiles, tiles_broken;
} options = {.pattern = "*", .backend = "cpu", .seed = 1, .sabotage = -1};

/* Shared by parent and child, so that it outlives a crash. */
static struct {
    int next; /* the case to continue with */
    int ok, failed;
    bool finished;
    char op[32], target[16], what[96]; /* what is running now */
} * progress;

static const struct oc_case *const tables[] = {
    oc_cases_dense, oc_cases_attn,   oc_cases_sample,  oc_cases_grad,  oc_cases_update,
    oc_cases_many,  oc_cases_narrow, oc_cases_project, oc_cases_kinds, oc_cases_grad_kinds,
};

static struct oc_target targets[TARGETS_MAX];
static int target_count;
static struct oc_target ref;

bool oc_wanted(const char *pattern, enum hzp_op op)
{
    return fnmatch(pattern, hzp_op_name(op), 0) == 0;
}

void oc_report(bool ok, const char *op, const char *target, const char *what, const char *format,
               ...)
{
    va_list list;
    progress->ok += ok;
    progress->failed += !ok;
    if (ok && options.quiet)
        return;
    printf("%-4s %-15s %-11s %-44s ", ok ? "ok" : "FAIL", op, target, what);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    if (!ok)
        printf("     again: opcheck --op=%s --backend=%s%s%s --seed=%llu%s%s\n", op,
               options.backend, options.level ? " --level=" : "",
               options.level ? options.level : "", (unsigned long long)options.seed,
               options.grad ? " --grad" : "", options.tiles ? " --tiles" : "");
    fflush(stdout);
}

static const struct oc_case *case_at(int index)
{
    for (int t = 0; t < HZP_COUNT(tables); t++)
        for (const struct oc_case *c = tables[t]; c->build; c++)
            if (index-- == 0)
                return c;
    return NULL;
}

static void running(const char *op, const char *target, const char *what)
{
    snprintf(progress->op, sizeof(progress->op), "%s", op);
    snprintf(progress->target, sizeof(progress->target), "%s", target);
    snprintf(progress->what, sizeof(progress->what), "%s", what);
    alarm(CASE_SECONDS);
}

/* A level is a target if it has kernels that neither ref nor the levels below have, or if only
 * its label can tell: the device may show one entry for all of its own kernels. */
static void target_add(const char *name, const char *level)
{
    struct hzp_device_config config = {
        .name = options.backend, .threads = options.threads, .level = level};
    struct hzp_err_text why = {0};
    struct oc_target *target = &targets[target_count];
    if (oc_target_open(target, &config, name, &why) < 0) {
        printf("skip %s: %s\n", name, why.text);
        oc_target_close(target);
        return;
    }
    for (int i = 0; i < 2 && options.share > 0; i++) /* execution units of each lane */
        HZP_ASSERT(hzp_lane_set_share(target->lane[i], options.share) >= 0);
    if (options.sabotage >= 0)
        oc_sabotage(target, options.sabotage);
    if (options.tiles)
        oc_tiles(target, options.tiles_broken);
    bool any = false;
    for (int op = 0; op < HZP_OP_COUNT; op++) {
        hzp_op_fn *kernel = target->dev->op[op];
        target->fresh[op] = kernel != ref.dev->op[op] || strcmp(options.backend, "ref") == 0;
        for (int i = 0; i < target_count; i++)
            target->fresh[op] &= kernel != targets[i].dev->op[op] ||
                                 strcmp(target->dev->label, targets[i].dev->label) != 0;
        any |= target->fresh[op];
    }
    if (!any) {
        printf("skip %s: no kernels of its own\n", name);
        oc_target_close(target);
        return;
    }
    printf("%-6s %s\n", name, target->dev->label);
    target_count++;
}

static int targets_open(void)
{
    static const char *const levels[] = {"base", "avx2", "avx512", "avx512_bf16", "amx"};
    struct hzp_device_config config = {.name = "ref"};
    struct hzp_err_text why = {0};
    HZP_ASSERT(oc_target_open(&ref, &config, "ref", &why) >= 0);
    if (strcmp(options.backend, "cpu") != 0)
        target_add(options.backend, NULL);
    if (options.tiles)
        target_add("tiles", "base");
    for (int i = 0; strcmp(options.backend, "cpu") == 0 && !options.tiles && i < HZP_COUNT(levels);
         i++)
        if (!options.level || strcmp(options.level, levels[i]) == 0)
            target_add(levels[i], levels[i]);
    return target_count;
}

/* Runs the case on the target, then again, as a graph if it can; NULL: all results are right.  In a
 * graph attention is always ours: where all of it is given to cuDNN, whose bits are others, the
 * second run is one like the first. */
static const char *check(struct oc_target *target, enum hzp_op op, const struct oc_io *io,
                         const uint8_t *expected, uint8_t *result[2], double *ret_err)
{
    const char *attention = getenv("HZP_CUDA_ATTENTION");
    for (int turn = 0; turn < 2; turn++) {
        target->by_graph = turn == 1 && !(attention && strcmp(attention, "cudnn") == 0);
        int r = oc_target_run(target, op, io, result[turn]);
        target->by_graph = false;
        if (r < 0)
            return "the device failed";
    }
    const char *broken = oc_compare(io, op, expected, result[0], ret_err);
    return broken ? broken : oc_compare_bits(io, result[0], result[1]);
}

static void case_check(const struct oc_case *c, int index, struct oc_io *io)
{
    const char *op = hzp_op_name(c->op);
    running(op, "build", "");
    oc_io_reset(io, options.seed + (uint64_t)index * 1000003, c->flags & OC_GAPS);
    c->build(io, c);
    const char *broken = hzp_op_validate(c->op, io->args);
    if (broken) {
        oc_report(false, op, "case", io->what, "%s", broken);
        return;
    }
    uint8_t *expected = hzp_xmalloc(io->used);
    uint8_t *result[2] = {hzp_xmalloc(io->used), hzp_xmalloc(io->used)};
    running(op, "ref", io->what);
    HZP_ASSERT(oc_target_run(&ref, c->op, io, expected) >= 0);
    for (int t = 0; t < target_count; t++) {
        double err = 0;
        if (!targets[t].fresh[c->op])
            continue;
        running(op, targets[t].name, io->what);
        broken = check(&targets[t], c->op, io, expected, result, &err);
        if (broken)
            oc_report(false, op, targets[t].name, io->what, "%s", broken);
        else
            oc_report(true, op, targets[t].name, io->what, "err %.1e", err);
    }
    free(expected);
    free(result[0]);
    free(result[1]);
}

static int by_number(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;
    return (a > b) - (a < b);
}

/* The targets take turns, so that other load on the machine affects all alike; the median is
   reported. */
static void case_bench(const struct oc_case *c, int index, struct oc_io *io, double bandwidth)
{
    enum { RUNS = 31, SECONDS = 2 };
    double seconds[TARGETS_MAX][RUNS], first = 0;
    struct oc_target *timed[TARGETS_MAX];
    const char *op = hzp_op_name(c->op);
    int runs = 0, count = 0;

    oc_io_reset(io, options.seed + (uint64_t)index * 1000003, c->flags & OC_GAPS);
    c->build(io, c);
    struct hzp_cost cost = hzp_op_cost(c->op, io->args);
    for (int t = 0; t < target_count; t++)
        if (targets[t].fresh[c->op])
            timed[count++] = &targets[t];
    if (count == 0) /* only if no kernel is compared: ref is slow on purpose */
        timed[count++] = &ref;
    for (int t = 0; t < count; t++) {
        running(op, timed[t]->name, io->what);
        if (oc_target_warm(timed[t], c->op, io) < 0) {
            oc_report(false, op, timed[t]->name, io->what, "the device failed");
            return;
        }
    }
    for (double spent = 0; runs < RUNS && (runs < 3 || spent < SECONDS); runs++)
        for (int t = 0; t < count; t++)
            spent += seconds[t][runs] = oc_target_time(timed[t], c->op, io);
    for (int t = 0; t < count; t++) {
        qsort(seconds[t], (size_t)runs, sizeof(double), by_number);
        double s = seconds[t][runs / 2], gbs = (double)cost.bytes / s * 1e-9;
        first = t == 0 ? s : first;
        printf("time %-15s %-11s %-34s %9.1f us %7.1f GB/s %8.1f GFLOP/s %4.0f%% of reading "
               "%6.2fx\n",
               op, timed[t]->name, io->what, s * 1e6, gbs, (double)cost.flops / s * 1e-9,
               100 * gbs * 1e9 / bandwidth, first / s);
        fflush(stdout);
        progress->ok++;
    }
}

/* Checks that every op has a case, and every kernel that is not ref's was called. */
static void coverage(void)
{
    for (int op = 0; op < HZP_OP_COUNT; op++) {
        const char *name = hzp_op_name((enum hzp_op)op);
        int cases = 0;
        const struct oc_case *c;
        for (int i = 0; (c = case_at(i)); i++)
            cases += c->op == (enum hzp_op)op && !(c->flags & OC_BENCH);
        if (cases == 0)
            oc_report(false, name, "all", "", "no case covers it");
        for (int t = 0; t < target_count && oc_wanted(options.pattern, (enum hzp_op)op); t++)
            if (targets[t].fresh[op] && !targets[t].called[op] && progress->next < 0)
                oc_report(false, name, targets[t].name, "", "its kernel was never called");
    }
}

static void checks_run(int from)
{
    struct oc_io *io = oc_io_create();
    bool whole = from == 0;
    const struct oc_case *c;
    for (int i = from; i < PHASE_GRAD && (c = case_at(i)); i++) {
        progress->next = i + 1;
        if (oc_wanted(options.pattern, c->op) && !(c->flags & OC_BENCH))
            case_check(c, i, io);
    }
    if (from < PHASE_GRAD) {
        progress->next = PHASE_GRAD;
        running("grad", "ref", "");
        if (options.grad)
            oc_grad(&ref, options.pattern, options.seed);
    }
    for (int t = HZP_MAX(0, from - PHASE_FACTS); t < target_count; t++) {
        progress->next = PHASE_FACTS + t + 1;
        running("facts", targets[t].name, "");
        oc_facts(&targets[t], options.pattern, options.slow);
    }
    progress->next = whole ? -1 : 0; /* after a crash the calls of the first half are unknown */
    coverage();
    oc_io_destroy(io);
}

static void benches_run(int from)
{
    struct oc_io *io = oc_io_create();
    const struct oc_case *c;
    double bandwidth = oc_target_bandwidth(target_count ? &targets[target_count - 1] : &ref);
    printf("reading: %.1f GB/s measured on %d threads\n", bandwidth * 1e-9,
           target_count ? targets[target_count - 1].dev->threads : 1);
    for (int i = from; (c = case_at(i)); i++) {
        progress->next = i + 1;
        if (oc_wanted(options.pattern, c->op) && c->flags & OC_BENCH)
            case_bench(c, i, io, bandwidth);
    }
    oc_io_destroy(io);
}

/* Returns 0, or 77 if there is nothing to check on this machine. */
static int child(void)
{
    int from = progress->next;
    if (targets_open() == 0 && strcmp(options.backend, "cpu") != 0) {
        progress->finished = true;
        return 77;
    }
    if (options.bench)
        benches_run(from);
    else
        checks_run(from);
    for (int i = 0; i < target_count; i++)
        oc_target_close(&targets[i]);
    oc_target_close(&ref);
    progress->finished = true;
    return 0;
}

static int parent(void)
{
    for (;;) {
        int status;
        fflush(stdout);
        pid_t pid = fork();
        HZP_ASSERT(pid >= 0);
        if (pid == 0) {
            int rc = child();
            fflush(stdout);
            exit(rc);
        }
        while (waitpid(pid, &status, 0) < 0)
            HZP_ASSERT(errno == EINTR);
        if (progress->finished)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        alarm(0);
        oc_report(false, progress->op, progress->target, progress->what, "%s",
                  WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "ended the process");
        bool began = progress->op[0]; /* else another child would end the same way */
        if (!began || strcmp(progress->target, "build") == 0 || progress->next < 0)
            return 1;
    }
}

/* Broken kernels must fail, and the correct one must not. */
static int self_test(void)
{
    const char *name;
    int wrong = 0;
    options.backend = "ref";
    options.pattern = "rmsnorm";
    options.quiet = true;
    for (int kind = 0; (name = oc_sabotage_name(kind)); kind++) {
        memset(progress, 0, sizeof(*progress));
        options.sabotage = kind;
        parent();
        bool ok = kind == 0 ? progress->ok > 0 && progress->failed == 0 : progress->failed > 0;
        printf("%-4s %s: %d ok, %d failed\n", ok ? "ok" : "FAIL", name, progress->ok,
               progress->failed);
        wrong += !ok;
    }
    options.sabotage = -1;
    options.backend = "cpu";
    options.pattern = "matmul";
    options.tiles = options.tiles_broken = true;
    memset(progress, 0, sizeof(*progress));
    parent();
    printf("%-4s broken tiles: %d ok, %d failed\n", progress->failed ? "ok" : "FAIL", progress->ok,
           progress->failed);
    return wrong > 0 || !progress->failed;
}

static void list_print(void)
{
    struct oc_io *io = oc_io_create();
    const struct oc_case *c;
    for (int i = 0; (c = case_at(i)); i++) {
        if (!oc_wanted(options.pattern, c->op))
            continue;
        oc_io_reset(io, options.seed, c->flags & OC_GAPS);
        c->build(io, c);
        printf("%-15s %s%s\n", hzp_op_name(c->op), io->what, c->flags & OC_BENCH ? " (bench)" : "");
    }
    oc_io_destroy(io);
}

static int options_read(int argc, char **argv)
{
    static const struct option longs[] = {
        {"op", required_argument, NULL, 'o'},      {"backend", required_argument, NULL, 'b'},
        {"level", required_argument, NULL, 'l'},   {"seed", required_argument, NULL, 's'},
        {"threads", required_argument, NULL, 't'}, {"share", required_argument, NULL, 'h'},
        {"bench", no_argument, NULL, 'B'},         {"grad", no_argument, NULL, 'g'},
        {"list", no_argument, NULL, 'L'},          {"quiet", no_argument, NULL, 'q'},
        {"slow", no_argument, NULL, 'w'},          {"tiles", no_argument, NULL, 'T'},
        {"self-test", no_argument, NULL, 'S'},     {0},
    };
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
        switch (c) {
        case 'o':
            options.pattern = optarg;
            break;
        case 'b':
            options.backend = optarg;
            break;
        case 'l':
            options.level = optarg;
            break;
        case 's':
            options.seed = strtoull(optarg, NULL, 10);
            break;
        case 't':
            options.threads = atoi(optarg);
            break;
        case 'h':
            options.share = atoi(optarg);
            break;
        case 'B':
            options.bench = true;
            break;
        case 'g':
            options.grad = true;
            break;
        case 'q':
            options.quiet = true;
            break;
        case 'w':
            options.slow = true;
            break;
        case 'T':
            options.tiles = true;
            options.pattern = "matmul";
            break;
        case 'L':
            return 1;
        case 'S':
            return 2;
        default:
            return -1;
        }
    return optind == argc ? 0 : -1;
}

int main(int argc, char **argv)
{
    progress =
        mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    HZP_ASSERT(progress != MAP_FAILED);
    int mode = options_read(argc, argv);
    if (mode < 0) {
        fprintf(stderr,
                "usage: opcheck [--op=PATTERN] [--backend=cpu|cuda|ref] "
                "[--level=base|avx2|avx512|avx512_bf16|amx] [--threads=N] [--share=N] [--seed=N] "
                "[--bench] [--grad] [--list] [--quiet] [--slow] [--tiles] [--self-test]\n");
        return 2;
    }
    if (mode == 1) {
        list_print();
        return 0;
    }
    if (mode == 2)
        return self_test();
    int rc = parent();
    printf("%d ok, %d failed\n", progress->ok, progress->failed);
    return progress->failed ? 1 : rc;
}
