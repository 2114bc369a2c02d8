/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/open.c - the host CPU as a device: a team of threads and the kernels of the best
 * instruction set it has. */
#include "device/about.h"
#include "device/account.h"
#include "device/backend.h"
#include "device/cpu/matmul.h"
#include "device/cpu/tiles.h"
#include "device/ref/host.h"

#include <sched.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const isa_name[] = {"base", "avx2", "avx512", "avx512_bf16", "amx"};

#define HUGE_PAGE ((size_t)2 << 20)

static enum hzp_cpu_isa isa_find(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return HZP_CPU_BASE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return HZP_CPU_AVX2;
    if (!__builtin_cpu_supports("avx512bf16"))
        return HZP_CPU_AVX512;
    return hzp_cpu_amx_allowed() ? HZP_CPU_AMX : HZP_CPU_AVX512_BF16;
#else
    return HZP_CPU_BASE;
#endif
}

bool hzp_cpu_fetches_far(void)
{
#if defined(__x86_64__)
    enum { ZEN3_ZEN4 = 0x19, ZEN4_SERVERS = 0x10, ZEN4_OTHERS = 0x60 };
    static _Atomic int known; /* 1: no, 2: yes; found once, or by two threads the same */
    unsigned a = 0, b = 0, c = 0, d = 0;
    int ret = atomic_load_explicit(&known, memory_order_relaxed);

    if (!ret) {
        bool amd = __get_cpuid(0, &a, &b, &c, &d) && c == signature_AMD_ecx;
        unsigned eax = amd && __get_cpuid(1, &a, &b, &c, &d) ? a : 0;
        unsigned family = (eax >> 8 & 15) + (eax >> 20 & 255), model = (eax >> 16 & 15) << 4;
        ret = 1 + (family == ZEN3_ZEN4 && (model == ZEN4_SERVERS || model >= ZEN4_OTHERS));
        atomic_store_explicit(&known, ret, memory_order_relaxed);
    }
    return ret == 2;
#else
    return false;
#endif
}

/* The best instruction set of the machine, or a lower one set by the configuration or
 * HZP_CPU_LEVEL. */
static int isa_choose(const struct hzp_device_config *config, enum hzp_cpu_isa *ret,
                      struct hzp_err_text *reterr)
{
    const char *level = config->level ? config->level : getenv("HZP_CPU_LEVEL");
    enum hzp_cpu_isa best = isa_find();

    *ret = best;
    if (!level || !*level)
        return HZP_OK;
    for (int i = 0; i < HZP_COUNT(isa_name); i++) {
        if (strcmp(level, isa_name[i]) != 0)
            continue;
        if (i > (int)best)
            return hzp_fail_param(reterr, HZP_EUNSUP, "level", "this CPU has no %s, only %s", level,
                                  isa_name[best]);
        *ret = (enum hzp_cpu_isa)i;
        return HZP_OK;
    }
    return hzp_fail_param(reterr, HZP_EINVAL, "level",
                          "no instruction set '%s' (base, avx2, avx512, avx512_bf16, amx)", level);
}

#define FILL(isa, op)                                                                              \
    do {                                                                                           \
        hzp_cpu_fill_matmul_##isa(op);                                                             \
        hzp_cpu_fill_decode_##isa(op);                                                             \
        hzp_cpu_fill_rows_##isa(op);                                                               \
        hzp_cpu_fill_fp8_##isa(op);                                                                \
        hzp_cpu_fill_flash_##isa(op);                                                              \
        hzp_cpu_fill_flash_bwd_##isa(op);                                                          \
        hzp_cpu_fill_grad_##isa(op);                                                               \
        hzp_cpu_fill_sample_##isa(op);                                                             \
        hzp_cpu_fill_update_##isa(op);                                                             \
    } while (0)

static void table_fill(hzp_op_fn *op[HZP_OP_COUNT], enum hzp_cpu_isa isa)
{
    hzp_ref_fill(op);
    FILL(base, op);
#if defined(__x86_64__)
    if (isa >= HZP_CPU_AVX2)
        FILL(avx2, op);
    if (isa >= HZP_CPU_AVX512)
        FILL(avx512, op);
    if (isa >= HZP_CPU_AVX512_BF16)
        FILL(avx512_bf16, op);
    if (isa >= HZP_CPU_AMX)
        hzp_cpu_fill_matmul_amx(op);
#endif
}

static int threads_usable(void)
{
    cpu_set_t set;
    long online;

    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* The CPUs this process may use; cpu starts over with the first if there are more threads. */
static void cpus_find(struct hzp_cpu_device *dev, int threads)
{
    int found = 0;

    if (sched_getaffinity(0, sizeof(dev->allowed), &dev->allowed) == 0)
        for (int i = 0; i < CPU_SETSIZE && found < threads; i++)
            if (CPU_ISSET(i, &dev->allowed))
                dev->cpu[found++] = i;
    if (!found) {
        dev->cpu[found++] = 0;
        memset(&dev->allowed, 0xff, sizeof(dev->allowed)); /* not known: any */
    }
    for (int i = found; i < threads; i++)
        dev->cpu[i] = dev->cpu[i % found];
}

/* The processor's name with runs of blanks reduced to one, the threads and the instruction set. */
static void label_make(char *ret, size_t size, int threads, enum hzp_cpu_isa isa, bool same_rows)
{
#if defined(__aarch64__)
    char brand[49] = "64-bit ARM CPU";
#else
    char brand[49] = "CPU";
#endif
#if defined(__x86_64__)
    unsigned word[12];
    int used = 0;

    if ((unsigned)__get_cpuid_max(0x80000000u, NULL) >= 0x80000004u) {
        for (unsigned i = 0; i < 3; i++)
            __get_cpuid(0x80000002u + i, &word[i * 4], &word[i * 4 + 1], &word[i * 4 + 2],
                        &word[i * 4 + 3]);
        for (int i = 0; i < 48 && ((char *)word)[i]; i++) {
            char c = ((char *)word)[i];
            if (c != ' ' || (used > 0 && brand[used - 1] != ' '))
                brand[used++] = c;
        }
        if (used > 0)
            brand[used - (brand[used - 1] == ' ')] = '\0';
    }
#endif
    snprintf(ret, size, "%s, %d thread%s, %s%s", brand, threads, threads == 1 ? "" : "s",
             isa_name[isa], same_rows ? ", same arithmetic" : "");
}

/* What a level costs, as the figures in docs/measurements have it. */
static void about_level(struct hzp_about_device *d, enum hzp_cpu_isa isa, enum hzp_cpu_isa best)
{
    hzp_fact_add(d->fact, &d->facts, "kernels used", "%s", isa_name[isa]);
    if (isa < best)
        hzp_fact_add(d->fact, &d->facts, "highest level", "%s (HZP_CPU_LEVEL asks for less)",
                     isa_name[best]);
    if (isa < HZP_CPU_AVX512_BF16)
        hzp_fact_add(d->fact, &d->facts, "bf16 arithmetic",
                     "none (products run in f32, at most half as fast)");
    if (isa == HZP_CPU_AMX)
        hzp_fact_add(d->fact, &d->facts, "tiles", "where measured to be fastest");
    if (isa == HZP_CPU_BASE)
#if defined(__x86_64__)
        hzp_fact_add(d->fact, &d->facts, "vectors",
                     "of four floats (products are a fifth as fast as with avx2)");
#else
        hzp_fact_add(d->fact, &d->facts, "vectors",
                     "of four floats, in portable C (not measured on such a CPU)");
#endif
}

static void cpu_about(struct hzp_about *ret)
{
    struct hzp_about_device *d = &ret->device[ret->devices++];
    struct hzp_device_config config = {0};
    struct hzp_err_text text;
    enum hzp_cpu_isa best = isa_find(), isa;
    char version[32];
    int threads = threads_usable();
#if defined(__x86_64__)
    hzp_fact_add(ret->build, &ret->builds, "kernels for", "base, avx2, avx512, avx512_bf16, amx");
#else
    hzp_fact_add(ret->build, &ret->builds, "kernels for", "base");
#endif
    hzp_fact_add(ret->build, &ret->builds, "oneDNN", "%s", hzp_cpu_library_version(version));
    label_make(d->name, sizeof(d->name), threads, best, false);
    /* keep only the processor's name; the rest is reported separately */
    *strstr(d->name, ", ") = '\0';
    d->memory = hzp_host_mem_total();
    d->cores = threads;
    if (isa_choose(&config, &isa, &text) < 0)
        isa = best; /* opening the device says what is wrong with the level asked for */
    about_level(d, isa, best);
}

static int cpu_open(const struct hzp_device_config *config, struct hzp_device **ret,
                    struct hzp_err_text *reterr)
{
    enum hzp_cpu_isa isa;
    struct hzp_cpu_device *dev;
    int threads = config->threads > 0 ? config->threads : threads_usable();

    HZP_TRY(isa_choose(config, &isa, reterr));
    threads = HZP_MIN(threads, HZP_CPU_THREADS_MAX);
    dev = calloc(1, sizeof(*dev));
    if (!dev || hzp_team_open(threads, threads, &dev->team) < 0) {
        free(dev);
        return hzp_fail(reterr, HZP_ENOMEM, "cpu: cannot start %d threads", threads);
    }
    if (config->same_rows) /* tiles are taken where they are faster, for some numbers of rows */
        isa = HZP_MIN(isa, HZP_CPU_AVX512_BF16);
    dev->isa = isa;
    dev->base.same_rows = config->same_rows;
    dev->base.backend = &hzp_backend_cpu;
    dev->base.mem_total = hzp_host_mem_total();
    dev->base.threads = threads;
    table_fill(dev->kernel, isa);
    hzp_cpu_fill_issue(dev->base.op);
    cpus_find(dev, threads);
    label_make(dev->base.label, sizeof(dev->base.label), threads, isa, config->same_rows);
    if (isa == HZP_CPU_AMX)
        hzp_cpu_choose(dev);
    *ret = &dev->base;
    return HZP_OK;
}

static void cpu_close(struct hzp_device *base)
{
    struct hzp_cpu_device *dev = (struct hzp_cpu_device *)base;

    hzp_team_close(dev->team);
    free(dev);
}

/* Large blocks are aligned to huge pages and request them: decoding reads all the weights, and with
 * small pages it would also wait for page table walks. */
static int cpu_mem_alloc(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret)
{
    size_t align = size >= HUGE_PAGE ? HUGE_PAGE : 4096;
    void *ptr;

    if (size > SIZE_MAX - align)
        return HZP_ENOMEM;
    ptr = aligned_alloc(align, HZP_ROUND_UP(HZP_MAX(size, (size_t)1), align));
    if (!ptr)
        return HZP_ENOMEM;
    if (align == HUGE_PAGE)
        /* if refused: small pages, slower */
        madvise(ptr, HZP_ROUND_UP(size, align), MADV_HUGEPAGE);
    *ret = ptr;
    return HZP_OK;
}

const struct hzp_backend hzp_backend_cpu = {
    .name = "cpu",
    .host_memory = true,
    .open = cpu_open,
    .close = cpu_close,
    .mem_alloc = cpu_mem_alloc,
    .mem_free = hzp_host_mem_free,
    .copy = hzp_cpu_lane_copy,
    .lane_open = hzp_cpu_lane_open,
    .lane_close = hzp_cpu_lane_close,
    .lane_wait = hzp_cpu_lane_wait,
    .lane_set_share = hzp_cpu_lane_set_share,
    .lane_time = hzp_cpu_lane_time,
    .fence_open = hzp_cpu_fence_open,
    .fence_close = hzp_cpu_fence_close,
    .fence_record = hzp_cpu_fence_record,
    .fence_wait = hzp_cpu_fence_wait,
    .fence_poll = hzp_cpu_fence_poll,
    .about = cpu_about,
};
