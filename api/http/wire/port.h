/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/port.h - the server's port, taken before anything that needs time.
 *
 * A start may load weights for minutes; it must not find out afterwards that its port is taken.
 * The port is bound alone, so a second server that starts meanwhile is refused it too.  Clients are
 * refused until the socket listens, which the server's start does when it can answer.  Where the
 * launcher of several ranks keeps the socket (mesh/launch/launch.h), the next rank 0 goes on with
 * it: clients that connect meanwhile wait.
 *
 * Thread: main.
 */
#pragma once

#include "api/http/wire/settings.h"
#include "base/err.h"

struct hzp_port {
    int fd; /* -1: none, or the HTTP server owns it */
    int port;
    char url[160]; /* under which a client on this machine reaches the server */
    bool relayed;  /* a Unix socket: all clients come through the launcher's relay (journal.h) */
};

/* Binds the settings' address and port.  HZP_EINVAL: the address cannot be understood; HZP_EIO: it
 * is not this machine's, or the port is taken or not permitted. */
int hzp_port_open(const struct hzp_http_settings *settings, struct hzp_port *ret,
                  struct hzp_err_text *reterr);

/* The same with a socket that was bound by such a call in another process, with the same settings;
 * or with a Unix socket behind a relay: url: where that one is reached; NULL: not known. */
void hzp_port_take(const struct hzp_http_settings *settings, int fd, const char *url,
                   struct hzp_port *ret);

/* Lets clients connect; at most `backlog` of them wait to be accepted.  HZP_EIO. */
int hzp_port_listen(struct hzp_port *port, int backlog, struct hzp_err_text *reterr);

void hzp_port_close(struct hzp_port *port); /* if it still owns the socket */
