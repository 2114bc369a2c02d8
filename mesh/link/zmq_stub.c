/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/zmq_stub.c - replaces the ZeroMQ backend if it is not compiled in. */
#include "mesh/link/backend.h"

#include <stdio.h>

static const char none[] = "built without ZeroMQ (libzmq3-dev)";

int hzp_link_open_zmq(const struct hzp_link_zmq *config, uint16_t *port, struct hzp_link **ret,
                      struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EUNSUP, "link zmq: %s", none);
}

/* No link exists, so this is not called. */
int hzp_link_connect_zmq(struct hzp_link *link, const struct hzp_link_zmq_address *address,
                         double wait_s, bool (*stop)(void *ctx), void *ctx,
                         struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EUNSUP, "link zmq: %s", none);
}

bool hzp_link_zmq_about(char *text, size_t size)
{
    snprintf(text, size, "%s", none);
    return false;
}
