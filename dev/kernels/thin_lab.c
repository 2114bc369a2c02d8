/* SPDX-License-Identifier: Apache-2.0 */
/* dev/kernels/thin_lab.c - products of a model's shape, their weights coming from memory.
 *
 * Walks through all the matrices of a model's shape, as a decode step does, and prints for each
 * kind of matrix the median over the walks: microseconds, weights read per second, operations per
 * second, and the share of what the machine allows, max(bytes / reads, operations / peak).  Reads
 * and peak are measured between the walks.  Other builds of the library (cc -shared
 * -Wl,--whole-archive libhzp.a ...) take turns with this one within each round, and must give the
 * same results.
 *
 * With one thread its CPU time counts, so that others on the machine disturb less.
 *
 * The peak is that of the instruction: pairs of bf16 where the CPU multiplies them and the shape is
 * not F32, else multiply and add of floats.
 *
 *   thin_lab SHAPE THREADS ROUNDS ROWS[nn|tn][,...] [LIBRARY.so ...]
 *
 * SHAPE: 135m, 1b, 1b-e4m3, head, hot; with -f32 behind it in F32.  Behind the rows: nn the input
 * gradient, tn the weight gradient of so many rows, neither: the forward product.
 */
#include "device/bf16.h"
#include "device/device.h"

#include <dlfcn.h>
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { KINDS = 5, WAYS = 6, ROUNDS_MAX = 400, ROWS_MAX = 512, THREADS_MAX = 64, READ_AHEAD = 8192 };

struct kind {
    const char *name;
    int out, in, count;
    bool residual; /* added to F32 */
};

struct shape {
    const char *name;
    struct kind kind[KINDS];
    int layers, width;
    bool hot;  /* each layer has the same weights: they come from a cache */
    bool e4m3; /* both operands, with scales */
};

enum form { NT, NN, TN };

static const struct shape shapes[] = {
    {"135m",
     {{"qkv", 960, 576, 30, false},
      {"o", 576, 576, 30, true},
      {"gate, up", 3072, 576, 30, false},
      {"down", 576, 1536, 30, true},
      {"head", 49152, 576, 1, false}},
     30,
     1536,
     false,
     false},
    {"1b",
     {{"qkv", 3072, 2048, 5, false},
      {"o", 2048, 2048, 5, true},
      {"gate, up", 16384, 2048, 5, false},
      {"down", 2048, 8192, 5, true}},
     5,
     8192,
     false,
     false},
    {"1b-e4m3",
     {{"qkv", 3072, 2048, 5, false},
      {"o", 2048, 2048, 5, true},
      {"gate, up", 16384, 2048, 5, false},
      {"down", 2048, 8192, 5, true}},
     5,
     8192,
     false,
     true},
    {"head", {{"head", 128256, 2048, 1, false}}, 1, 2048, false, false},
    {"hot",
     {{"576", 512, 576, 40, false}, {"1536", 192, 1536, 40, true}, {"2048", 128, 2048, 40, true}},
     40,
     2048,
     true,
     false},
};

struct way {
    const char *name;
    int (*open)(const struct hzp_device_config *, struct hzp_device **, struct hzp_err_text *);
    int (*lane_open)(struct hzp_device *, enum hzp_bound, struct hzp_lane **);
    int (*issue)(struct hzp_lane *, enum hzp_op, const void *);
    struct hzp_lane *lane;
    double time[KINDS][ROUNDS_MAX]; /* of all matrices of the kind */
};

struct bench {
    const struct shape *shape;
    char *weights;
    size_t bytes; /* of weights */
    void *x;
    char *y[WAYS];
    float *scale, *sums;
    struct way way[WAYS];
    int ways, rounds, threads;
    bool f32;
    enum form form;
    double reads[ROUNDS_MAX], peak[ROUNDS_MAX];
};

static clockid_t the_clock = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;

    clock_gettime(the_clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* The element that a share of all lie below. */
static double rank(const double *v, int n, double share)
{
    double copy[ROUNDS_MAX];

    memcpy(copy, v, (size_t)n * sizeof(*v));
    qsort(copy, (size_t)n, sizeof(*copy), by_size);
    return copy[(int)(share * (n - 1) + 0.5)];
}

/* What the machine can do: each thread its part. */
struct part {
    pthread_t thread;
    const char *from;
    size_t size;
    double seconds;
    uint64_t sum;
};

__attribute__((target("avx2"))) static void *part_read(void *arg)
{
    struct part *p = arg;
    __m256i s[4] = {_mm256_setzero_si256()};
    double begin = now();

    for (size_t i = 0; i + 256 <= p->size; i += 256)
        UNROLL
    for (size_t k = 0; k < 4; k++) {
        const __m256i *at = (const __m256i *)(p->from + i + k * 64);
        _mm_prefetch(p->from + i + k * 64 + READ_AHEAD, _MM_HINT_T0);
        s[k] = _mm256_add_epi64(s[k], _mm256_loadu_si256(at));
        s[k] = _mm256_add_epi64(s[k], _mm256_loadu_si256(at + 1));
    }
    p->seconds = now() - begin;
    for (int k = 0; k < 4; k++)
        p->sum += (uint64_t)_mm256_extract_epi64(s[k], 0);
    return NULL;
}

enum { PEAK_TURNS = 400000, PEAK_SUMS = 12 };

#define PEAK(name, isa, vector, zero, other, ones, add, first)                                     \
    __attribute__((target(isa))) static void *name(void *arg)                                      \
    {                                                                                              \
        struct part *p = arg;                                                                      \
        vector sum[PEAK_SUMS];                                                                     \
        other one = ones;                                                                          \
        double begin = now();                                                                      \
        for (int i = 0; i < PEAK_SUMS; i++)                                                        \
            sum[i] = zero;                                                                         \
        for (int t = 0; t < PEAK_TURNS; t++) {                                                     \
            UNROLL                                                                                 \
            for (int i = 0; i < PEAK_SUMS; i++)                                                    \
                sum[i] = add;                                                                      \
            __asm__ volatile("" : "+v"(one));                                                      \
        }                                                                                          \
        p->seconds = now() - begin;                                                                \
        for (int i = 0; i < PEAK_SUMS; i++)                                                        \
            p->sum += (uint64_t)first(sum[i]);                                                     \
        return NULL;                                                                               \
    }
PEAK(peak_pairs, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(), __m512bh,
     (__m512bh)_mm512_set1_epi32(0x3c003c00), _mm512_dpbf16_ps(sum[i], one, one), _mm512_cvtss_f32)
PEAK(peak_512, "avx512f", __m512, _mm512_setzero_ps(), __m512, _mm512_set1_ps(0.01f),
     _mm512_fmadd_ps(one, one, sum[i]), _mm512_cvtss_f32)
PEAK(peak_256, "avx2,fma", __m256, _mm256_setzero_ps(), __m256, _mm256_set1_ps(0.01f),
     _mm256_fmadd_ps(one, one, sum[i]), _mm256_cvtss_f32)

static double all_parts(const struct bench *b, void *(*run)(void *), double work)
{
    struct part part[THREADS_MAX] = {0};
    double longest = 0;

    for (int t = 0; t < b->threads; t++) {
        part[t].size = b->bytes / (size_t)b->threads / 4096 * 4096;
        part[t].from = b->weights + (size_t)t * part[t].size;
        pthread_create(&part[t].thread, NULL, run, &part[t]);
    }
    for (int t = 0; t < b->threads; t++) {
        pthread_join(part[t].thread, NULL);
        longest = part[t].seconds > longest ? part[t].seconds : longest;
    }
    return work / longest;
}

/* Operations per second of the instruction. */
static double peak_find(const struct bench *b)
{
    double turns = (double)PEAK_SUMS * PEAK_TURNS * b->threads;

    if (__builtin_cpu_supports("avx512bf16") && !b->f32)
        return all_parts(b, peak_pairs, 64 * turns);
    if (__builtin_cpu_supports("avx512f"))
        return all_parts(b, peak_512, 32 * turns);
    return all_parts(b, peak_256, 16 * turns);
}

static void fill(uint16_t *p, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = hzp_bf16_from_f32((float)(int)(seed >> 8 & 0xffff) / 65536.f - 0.5f);
    }
}

static size_t matrix_bytes(const struct bench *b, const struct kind *kind)
{
    return (size_t)kind->out * (size_t)kind->in * (b->shape->e4m3 ? 1 : b->f32 ? 4 : 2);
}

/* Forward x W^T, input gradient dy W, or weight gradient dW += dy^T x, whose reading of memory is
 * that of dW. */
static struct hzp_matmul_args product(const struct bench *b, const struct kind *kind, char *at,
                                      char *y, int rows)
{
    enum hzp_dtype type = b->shape->e4m3 ? HZP_E4M3 : b->f32 ? HZP_F32 : HZP_BF16;
    int out = kind->out, in = kind->in;
    bool wide = kind->residual || kind->count == 1;

    if (b->form == NN)
        return (struct hzp_matmul_args){.a = {b->x, rows, out, out, type},
                                        .b = {at, out, in, in, type},
                                        .c = {y, rows, in, in, HZP_F32}};
    if (b->form == TN)
        return (struct hzp_matmul_args){.a = {b->x, rows, out, out, type},
                                        .b = {b->x, rows, in, in, type},
                                        .c = {b->sums, out, in, in, HZP_F32},
                                        .trans_a = 1,
                                        .accumulate = 1};
    return (struct hzp_matmul_args){.a = {b->x, rows, in, in, type},
                                    .b = {at, out, in, in, type},
                                    .c = {y, rows, out, out, wide || b->f32 ? HZP_F32 : HZP_BF16},
                                    .scale_a = b->shape->e4m3 ? b->scale : NULL,
                                    .scale_b = b->shape->e4m3 ? b->scale : NULL,
                                    .trans_b = 1,
                                    .accumulate = kind->residual};
}

/* One walk through all weights, layer by layer. */
static void walk(struct bench *b, struct way *way, char *y, int rows, int round)
{
    char *at = b->weights;

    for (int k = 0; k < KINDS; k++)
        way->time[k][round] = 0;
    for (int layer = 0; layer < b->shape->layers; layer++) {
        at = b->shape->hot ? b->weights : at;
        for (int k = 0; k < KINDS && b->shape->kind[k].out; k++) {
            const struct kind *kind = &b->shape->kind[k];
            if (layer >= kind->count)
                continue;
            struct hzp_matmul_args args = product(b, kind, at, y, rows);
            double begin = now();
            if (way->issue(way->lane, HZP_OP_matmul, &args) < 0)
                exit(1);
            way->time[k][round] += now() - begin;
            at += matrix_bytes(b, kind);
        }
    }
}

/* Of all walks the median, and the tenth from the best of a hundred: the machine is shared. */
static void print_kind(const struct bench *b, const struct way *way, int k, int rows)
{
    static const double share[2] = {0.5, 0.1};
    double bytes = 0, time[2] = {0},
           each = b->shape->e4m3 ? 2
                  : b->f32       ? 0.5
                                 : 1; /* operations of a byte */
    int count = k < KINDS ? b->shape->kind[k].count : 1;

    for (int i = 0; i < KINDS; i++) {
        const struct kind *kind = &b->shape->kind[i];
        if (!kind->out || (k < KINDS && i != k))
            continue;
        bytes += (double)matrix_bytes(b, kind) * kind->count;
        for (int s = 0; s < 2; s++)
            time[s] += rank(way->time[i], b->rounds, share[s]);
    }
    if (bytes <= 0)
        return;
    printf("  %-10s %-9s", way->name, k < KINDS ? b->shape->kind[k].name : "all");
    for (int s = 0; s < 2; s++) {
        double reads = rank(b->reads, b->rounds, 1 - share[s]), t = time[s];
        double least =
            fmax(bytes / reads, bytes * each * rows / rank(b->peak, b->rounds, 1 - share[s]));
        printf(" | %8.1f us %5.1f GB/s %5.0f GFLOP/s %5.1f %%", t * 1e6 / count, bytes / t * 1e-9,
               bytes * each * rows / t * 1e-9, 100 * least / t);
    }
    printf("\n");
}

static void print(const struct bench *b, int rows)
{
    static const char *const form[] = {"", " nn", " tn"};
    printf("%s%s, %d rows%s: reads %.1f, %.1f GB/s, peak %.0f, %.0f GFLOP/s\n", b->shape->name,
           b->f32 ? " f32" : "", rows, form[b->form], rank(b->reads, b->rounds, 0.5) * 1e-9,
           rank(b->reads, b->rounds, 0.9) * 1e-9, rank(b->peak, b->rounds, 0.5) * 1e-9,
           rank(b->peak, b->rounds, 0.9) * 1e-9);
    for (int k = getenv("ALL") ? KINDS : 0; k <= KINDS; k++)
        for (int w = 0; w < b->ways; w++)
            print_kind(b, &b->way[w], k, rows);
    fflush(stdout);
}

static void load(struct way *way, const char *file)
{
    void *lib = dlopen(file, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);

    way->name = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
    if (lib) {
        *(void **)&way->open = dlsym(lib, "hzp_device_open");
        *(void **)&way->lane_open = dlsym(lib, "hzp_lane_open");
        *(void **)&way->issue = dlsym(lib, "hzp_lane_issue");
    }
    if (!lib || !way->open || !way->lane_open || !way->issue) {
        fprintf(stderr, "%s: %s\n", file, dlerror());
        exit(1);
    }
}

static void set_up(struct bench *b, int argc, char **argv)
{
    struct hzp_device_config config = {.name = "cpu", .threads = atoi(argv[2])};
    size_t y_bytes = 0, x_bytes = (size_t)1 << 20, sums = 0;
    char *f32 = strstr(argv[1], "-f32");

    if (f32)
        *f32 = '\0';
    b->f32 = f32 != NULL;
    for (int s = 0; s < HZP_COUNT(shapes); s++)
        if (strcmp(argv[1], shapes[s].name) == 0)
            b->shape = &shapes[s];
    if (!b->shape)
        exit(2);
    b->way[0] = (struct way){"this", hzp_device_open, hzp_lane_open, hzp_lane_issue, NULL, {{0}}};
    for (b->ways = 1; b->ways < WAYS && b->ways + 4 < argc; b->ways++)
        load(&b->way[b->ways], argv[b->ways + 4]);
    for (int w = 0; w < b->ways; w++) {
        struct hzp_device *dev;
        struct hzp_err_text err;
        if (b->way[w].open(&config, &dev, &err) < 0 ||
            b->way[w].lane_open(dev, HZP_BOUND_COMPUTE, &b->way[w].lane) < 0)
            exit(1);
        b->threads = HZP_MIN(dev->threads, THREADS_MAX);
    }
    for (int k = 0; k < KINDS; k++) {
        b->bytes += matrix_bytes(b, &b->shape->kind[k]) * (size_t)b->shape->kind[k].count;
        y_bytes = HZP_MAX(y_bytes, (size_t)b->shape->kind[k].out * 4 * ROWS_MAX);
        x_bytes = HZP_MAX(x_bytes, (size_t)b->shape->kind[k].out * ROWS_MAX * (b->f32 ? 4 : 2));
        sums = HZP_MAX(sums, (size_t)b->shape->kind[k].out * (size_t)b->shape->kind[k].in * 4);
    }
    if (hzp_device_alloc(b->way[0].lane->dev, HZP_MEM_DEVICE, b->bytes, (void **)&b->weights) < 0 ||
        hzp_device_alloc(b->way[0].lane->dev, HZP_MEM_DEVICE, sums, (void **)&b->sums) < 0 ||
        hzp_device_alloc(b->way[0].lane->dev, HZP_MEM_DEVICE, x_bytes, &b->x) < 0)
        exit(1);
    memset(b->sums, 0, sums);
    for (int w = 0; w < b->ways; w++)
        if (hzp_device_alloc(b->way[0].lane->dev, HZP_MEM_DEVICE, y_bytes, (void **)&b->y[w]) < 0)
            exit(1);
        else
            memset(b->y[w], 0, y_bytes);
    fill((uint16_t *)b->weights, b->bytes / 2, 1);
    fill(b->x, x_bytes / 2, 2);
    if (b->shape->e4m3) { /* 0.25 to 7.5: no NaN, no infinity of sums */
        for (size_t i = 0; i < b->bytes; i++)
            b->weights[i] = (char)(0x28 + (b->weights[i] & 0x27));
        for (size_t i = 0; i < (size_t)b->shape->width * ROWS_MAX; i++)
            ((char *)b->x)[i] = (char)(0x28 + (((char *)b->x)[i] & 0x27));
        b->scale = calloc(1 << 18, sizeof(float));
        for (int i = 0; b->scale && i < 1 << 18; i++)
            b->scale[i] = 1.f / 256;
    }
}

/* All ways' last results against the first's, whose last matrix wrote F32. */
static void compare(const struct bench *b, int rows)
{
    int last = 0;

    while (last + 1 < KINDS && b->shape->kind[last + 1].out)
        last++;
    for (int w = 1; w < b->ways; w++) {
        double top = 0, miss = 0;
        size_t n = (size_t)rows * (size_t)b->shape->kind[last].out;
        for (size_t i = 0; i < n; i++) {
            double p = ((float *)b->y[0])[i], q = ((float *)b->y[w])[i];
            top = fmax(top, fabs(p));
            miss = isfinite(q - p) ? fmax(miss, fabs(q - p)) : INFINITY;
        }
        if (!(miss <= 1e-5 * top))
            printf("  %s differs by %.1e\n", b->way[w].name, miss / top);
    }
}

int main(int argc, char **argv)
{
    static struct bench b;

    if (argc < 5)
        return 2;
    b.rounds = atoi(argv[3]);
    b.rounds = HZP_MIN(HZP_MAX(b.rounds, 1), ROUNDS_MAX);
    set_up(&b, argc, argv);
    if (b.threads == 1)
        the_clock = CLOCK_THREAD_CPUTIME_ID;
    for (char *list = argv[4], *word; (word = strsep(&list, ","));) {
        int rows = atoi(word);
        rows = HZP_MIN(HZP_MAX(rows, 1), ROWS_MAX);
        b.form = strstr(word, "nn") ? NN : strstr(word, "tn") ? TN : NT;
        for (int r = 0; r < b.rounds; r++) {
            b.reads[r] = all_parts(&b, part_read, (double)b.bytes);
            b.peak[r] = peak_find(&b);
            for (int w = 0; w < b.ways; w++) {
                int turn = (w + r) % b.ways;
                walk(&b, &b.way[turn], b.y[turn], rows, r);
            }
        }
        print(&b, rows);
        compare(&b, rows);
    }
    return 0;
}
