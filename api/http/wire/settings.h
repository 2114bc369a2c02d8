/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/settings.h - what an operator may set of the HTTP server.
 *
 * Plain values; api/cli/options.json has the option, default and range of each.
 *
 * Thread: any; constant once the server has started.
 */
#pragma once

#include "base/base.h"

struct hzp_http_settings {
    const char *host;                       /* address to listen on */
    const char *served_name;                /* the model's; NULL: its directory's name */
    const char *api_key, *api_key_file;     /* NULL: none (auth.h) */
    const char *admin_key, *admin_key_file; /* NULL: none */
    const char *allow_host, *allow_origin;  /* lists, separated by commas; "*": all */
    int64_t no_auth;                        /* without a key also beyond this machine */
    int64_t port;                           /* 0: any free one */
    int64_t body_max;                       /* bytes of a request's body */
    int64_t
        body_memory; /* bytes that all requests may take: bodies, what is read of them, answers */
    int64_t connections_max;
    int64_t per_address;     /* connections from one address; 0: three quarters of all */
    int64_t idle_seconds;    /* a connection may be silent for so long */
    int64_t receive_seconds; /* a body has to arrive whole within so long */
    int64_t join_ms;         /* the longest joining window of streams (join.c); 0: none */
};
