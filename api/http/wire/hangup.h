/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/hangup.h - notices a client's disconnect while its connection's thread waits
 * elsewhere.
 *
 * One thread sleeps on the sockets of all waiting connections (epoll, EPOLLRDHUP) and calls `left`
 * once when the other side closes.  After hzp_hangup_forget() has returned, `left` neither runs nor
 * will run.
 *
 * Thread: any; `left` runs on the watching thread and may only raise flags and poke.
 */
#pragma once

#include "base/err.h"

struct hzp_hangup;

/* Starts the thread.  HZP_EIO: the system refuses a thread or a descriptor. */
int hzp_hangup_create(struct hzp_hangup **ret);
void hzp_hangup_destroy(struct hzp_hangup *h); /* NULL: no effect */

/* Watches the socket until forgotten.  HZP_EIO: it cannot be watched; the caller continues
 * without. */
int hzp_hangup_watch(struct hzp_hangup *h, int fd, void (*left)(void *ctx), void *ctx);
void hzp_hangup_forget(struct hzp_hangup *h, int fd);
