/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/quiet.h"

#include "base/file.h"
#include "base/thread.h"
#include "device/philox.h"

double hzp_quiet_busy(const char *text, const cpu_set_t *cpus)
{
    double busy = -1;
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        int cpu, used = 0;
        /* user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's */
        double t[8];
        if (sscanf(line, "cpu%d %lf %lf %lf %lf %lf %lf %lf %lf%n", &cpu, &t[0], &t[1], &t[2],
                   &t[3], &t[4], &t[5], &t[6], &t[7], &used) != 9 ||
            cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, cpus))
            continue;
        busy = HZP_MAX(busy, 0) + t[0] + t[1] + t[2] + t[5] + t[6] + t[7];
    }
    return busy;
}

/* Reads the busy time now, in nanoseconds; *ret_cpus: how many CPUs.  Negative: unknown. */
static double busy_now(int *ret_cpus)
{
    cpu_set_t cpus;
    HZP_FREED char *text = NULL;
    size_t bytes = 0;
    HZP_ENDED(hzp_file_end) FILE *file = fopen("/proc/stat", "re");
    double busy = -1;
    if (file && sched_getaffinity(0, sizeof(cpus), &cpus) == 0 &&
        getdelim(&text, &bytes, '\0', file) > 0) {
        busy = hzp_quiet_busy(text, &cpus);
        *ret_cpus = CPU_COUNT(&cpus);
    }
    return busy < 0 ? busy : busy * 1e9 / (double)sysconf(_SC_CLK_TCK);
}

uint64_t hzp_quiet_processors(void)
{
    char boot[64] = "";
    cpu_set_t cpus;
    HZP_ENDED(hzp_file_end) FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || !fgets(boot, sizeof(boot), file) || sched_getaffinity(0, sizeof(cpus), &cpus) != 0)
        return 0;
    uint64_t hash = 1;
    for (size_t i = 0; i < sizeof(boot) && boot[i]; i++)
        hash = hzp_mix64(hash + (unsigned char)boot[i]);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        hash = CPU_ISSET(i, &cpus) ? hzp_mix64(hash + i) : hash;
    return hash ? hash : 1;
}

static double own_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

void hzp_quiet_begin(struct hzp_quiet *q)
{
    int cpus;
    q->begin_ns = hzp_now_ns();
    q->own_ns = own_now();
    q->busy_ns = busy_now(&cpus);
    q->known = q->busy_ns >= 0;
}

void hzp_quiet_end(const struct hzp_quiet *q, double *watched_ns, double *others_ns)
{
    int cpus = 0;
    double busy = busy_now(&cpus), own = own_now() - q->own_ns;
    if (!q->known || busy < 0)
        return;
    *watched_ns += (double)(hzp_now_ns() - q->begin_ns) * cpus;
    *others_ns += HZP_MAX(busy - q->busy_ns - own, 0);
}
