/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/fiber.c - one stack per thread, and the switch between threads and the scheduler. */
#include <sys/mman.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "base/base.h"
#include "tests/emu/block.h"

static char *stacks;

/* The lowest page of each stack stays unreachable. */
static char *stack_of(int i)
{
    enum { GUARD = 4096 };
    if (!stacks) {
        stacks = mmap(NULL, (size_t)EMU_THREADS * EMU_STACK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        HZP_ASSERT(stacks != MAP_FAILED);
        emu_map.stacks = (uintptr_t)stacks;
        for (size_t s = 0; s < EMU_THREADS; s++)
            HZP_ASSERT(mprotect(stacks + s * EMU_STACK, GUARD, PROT_NONE) == 0);
    }
    return stacks + (size_t)i * EMU_STACK;
}

/* Fibers never return, so a sanitizer's records of their frames are discarded. */
static void stack_forget(int i)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stacks + (size_t)i * EMU_STACK + 4096, EMU_STACK - 4096);
#endif
}

#if defined(__x86_64__)

/* Saves the registers that a function must preserve for its caller, then switches the stack. */
void hzp_emu_switch(void **ret_from, void *to);
__asm__(".text\n"
        ".globl hzp_emu_switch\n"
        ".type hzp_emu_switch, @function\n"
        "hzp_emu_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size hzp_emu_switch, .-hzp_emu_switch\n");

static void *at[EMU_THREADS], *scheduler;

void emu_fiber_prepare(int i, void (*entry)(void))
{
    void **top = (void **)(stack_of(i) + EMU_STACK);
    stack_forget(i);
    *--top = NULL; /* as if entry had been called: the stack is 8 off a multiple of 16 */
    *--top = (void *)entry;
    for (int k = 0; k < 6; k++)
        *--top = NULL;
    at[i] = top;
}

void emu_fiber_enter(int i)
{
    hzp_emu_switch(&scheduler, at[i]);
}

void emu_fiber_leave(int i, int next)
{
    hzp_emu_switch(&at[i], next < 0 ? scheduler : at[next]);
}

#else

#include <ucontext.h>

static ucontext_t at[EMU_THREADS], scheduler;

void emu_fiber_prepare(int i, void (*entry)(void))
{
    HZP_ASSERT(getcontext(&at[i]) == 0);
    stack_forget(i);
    at[i].uc_stack.ss_sp = stack_of(i);
    at[i].uc_stack.ss_size = EMU_STACK;
    at[i].uc_link = NULL;
    makecontext(&at[i], entry, 0);
}

void emu_fiber_enter(int i)
{
    HZP_ASSERT(swapcontext(&scheduler, &at[i]) == 0);
}

void emu_fiber_leave(int i, int next)
{
    HZP_ASSERT(swapcontext(&at[i], next < 0 ? &scheduler : &at[next]) == 0);
}

#endif
