/* SPDX-License-Identifier: Apache-2.0 */
/* hzpserve bench WHAT [MODEL]: hands over to the program of the benchmarks, hzpserve-bench, which
 * stands beside this one and takes the same arguments. */
#include "api/cli/commands.h"

int hzp_cmd_bench(const struct hzp_options *options)
{
    static const char name[] = "hzpserve-bench";
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - sizeof(name));
    if (length > 0) {
        program[length] = '\0';
        char *slash = strrchr(program, '/');
        memcpy(slash ? slash + 1 : program, name, sizeof(name));
        execv(program, options->argv);
    }
    fprintf(stderr, "hzpserve: bench: cannot run %s: %s\n", length > 0 ? program : name,
            strerror(errno));
    return 1;
}
