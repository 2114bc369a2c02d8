/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/pipe_stub.c - replaces the pipe if ZeroMQ is not compiled in. */
#include "mesh/peers/pipe.h"

static int none(struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EUNSUP,
                    "--replicas needs ZeroMQ, and this program was built without it "
                    "(libzmq3-dev)");
}

int hzp_pipe_listen(const struct hzp_pipe_place *at, size_t message_max, struct hzp_pipe **ret,
                    struct hzp_err_text *reterr)
{
    return none(reterr);
}

int hzp_pipe_connect(const struct hzp_pipe_place *at, size_t message_max, struct hzp_pipe **ret,
                     struct hzp_err_text *reterr)
{
    return none(reterr);
}

/* No pipe exists, so none of these is called. */
void hzp_pipe_close(struct hzp_pipe *w)
{
}

int hzp_pipe_send(struct hzp_pipe *w, const struct hzp_pipe_peer *peer, const void *data,
                  size_t bytes)
{
    return HZP_EUNSUP;
}

bool hzp_pipe_receive(struct hzp_pipe *w, struct hzp_pipe_peer *peer, const char **ret,
                      size_t *ret_bytes)
{
    return false;
}

void hzp_pipe_wait(struct hzp_pipe *w, long milliseconds)
{
}

void hzp_pipe_poke(struct hzp_pipe *w)
{
}
