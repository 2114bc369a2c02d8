/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/report.c - the text of a fault, and how a launch ends with one. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/block.h"

static struct {
    bool keep, now;
    enum hzp_emu_fault last;
    char text[512];
} faults;

void hzp_emu_keep_faults(bool keep)
{
    faults.keep = keep;
}

enum hzp_emu_fault hzp_emu_fault_take(const char **ret_text)
{
    enum hzp_emu_fault last = faults.last;
    faults.last = HZP_EMU_NONE;
    *ret_text = last ? faults.text : "";
    return last;
}

bool emu_faulted(void)
{
    return faults.now;
}

void emu_fault_begin(void)
{
    faults.now = false;
}

/* Prints the source line found by addr2line, where that is installed. */
static void place_print(const char *what, const void *pc)
{
    Dl_info info;
    char command[1024], line[512];
    if (!pc || !dladdr(pc, &info) || !info.dli_fname)
        return;
    uintptr_t offset = (uintptr_t)pc - (uintptr_t)info.dli_fbase;
    fprintf(stderr, "emulator: %s %s+%#lx\n", what, info.dli_fname, (unsigned long)offset);
    if (strchr(info.dli_fname, '\''))
        return;
    snprintf(command, sizeof(command), "addr2line -Cfips -e '%s' %#lx 2>/dev/null", info.dli_fname,
             (unsigned long)offset);
    FILE *out = popen(command, "r");
    while (out && fgets(line, sizeof(line), out))
        fprintf(stderr, "    %s", line);
    if (out)
        pclose(out);
}

void emu_fault(enum hzp_emu_fault fault, const void *pc, const char *format, ...)
{
    struct emu_fiber *fiber = emu_now;
    va_list list;
    if (faults.now) /* only the first fault is reported */
        return;
    va_start(list, format);
    int used = vsnprintf(faults.text, sizeof(faults.text), format, list);
    va_end(list);
    if (fiber && used > 0 && (size_t)used < sizeof(faults.text))
        snprintf(faults.text + used, sizeof(faults.text) - (size_t)used,
                 "; thread (%u,%u,%u) of block (%u,%u,%u)", fiber->at.x, fiber->at.y, fiber->at.z,
                 emu_block.at.x, emu_block.at.y, emu_block.at.z);
    faults.last = fault;
    faults.now = true;
    if (!faults.keep) {
        fprintf(stderr, "emulator: %s\n", faults.text);
        place_print("kernel", emu_block.launch ? emu_block.launch->kernel : NULL);
        place_print("at", pc);
        fflush(stderr);
        abort();
    }
    if (fiber)
        emu_wait(EMU_ENDED); /* never resumed */
}
