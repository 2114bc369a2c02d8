/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/control_stub.c - replaces the control messages if ZeroMQ is not compiled in. */
#include "mesh/peers/control.h"

static int none(struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EUNSUP,
                    "more than one rank needs ZeroMQ, and this program was built without it "
                    "(libzmq3-dev)");
}

int hzp_control_make_key(char ret[HZP_CONTROL_KEY], struct hzp_err_text *reterr)
{
    return none(reterr);
}

int hzp_control_listen(const struct hzp_control_config *config, const char *host, int port,
                       const char *name, char endpoint[HZP_CONTROL_ENDPOINT],
                       struct hzp_control **ret, struct hzp_err_text *reterr)
{
    return none(reterr);
}

int hzp_control_connect(const struct hzp_control_config *config, const char *endpoint,
                        struct hzp_control **ret, struct hzp_err_text *reterr)
{
    return none(reterr);
}

/* No control exists, so none of these is called. */
void hzp_control_offer_ports(struct hzp_control *control, const uint16_t *port)
{
}

const struct hzp_link_zmq_address *hzp_control_addresses(const struct hzp_control *control)
{
    return NULL;
}

int hzp_control_meet(struct hzp_control *control, const char *record, void *share, size_t size,
                     struct hzp_link *link, struct hzp_err_text *reterr)
{
    return none(reterr);
}

void hzp_control_state(struct hzp_control *control, int rank, struct hzp_control_state *ret)
{
    *ret = (struct hzp_control_state){.missing = -1};
}

int hzp_control_timeline(struct hzp_control *control, uint64_t from_ns, struct hzp_chrome *chrome)
{
    return HZP_EUNSUP;
}

int hzp_control_lost(struct hzp_control *control, char *why, size_t size)
{
    return -1;
}

void hzp_control_close(struct hzp_control *control)
{
}
