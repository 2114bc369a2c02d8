/* SPDX-License-Identifier: Apache-2.0 */
#include "device/account.h"

#include "base/thread.h"

/* Some dozens: memory is allocated in few, large pieces. */
static struct block {
    const void *memory;
    size_t bytes;
} * block;
static size_t blocks, room, all;
static struct hzp_lock lock = {.mutex = PTHREAD_MUTEX_INITIALIZER, .rank = HZP_LOCK_ACCOUNT};

void hzp_account_add(const void *memory, size_t bytes)
{
    HZP_LOCKED(&lock);
    if (blocks == room) {
        room = HZP_MAX((size_t)64, 2 * room);
        block = hzp_xrealloc(block, room * sizeof(*block));
    }
    block[blocks++] = (struct block){memory, bytes};
    all += bytes;
}

void hzp_account_remove(const void *memory)
{
    HZP_LOCKED(&lock);
    for (size_t i = blocks; i-- > 0;)
        if (block[i].memory == memory) {
            all -= block[i].bytes;
            block[i] = block[--blocks];
            break;
        }
    if (!blocks) { /* so that nothing is left at the end of the process */
        free(block);
        block = NULL;
        room = 0;
    }
}

size_t hzp_account_bytes(void)
{
    HZP_LOCKED(&lock);
    return all;
}
