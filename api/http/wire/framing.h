/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/framing.h - finds requests that two servers could read differently.
 *
 * A proxy and this server must agree where a request ends and for whom it is; else a client gets a
 * second request past the proxy's checks.  The HTTP library is lenient, so what RFC 9112 forbids is
 * refused here, and the connection is closed.
 *
 * Thread: the connection's I/O thread, before the body is read.
 */
#ifndef HZP_API_HTTP_WIRE_FRAMING_H
#define HZP_API_HTTP_WIRE_FRAMING_H

#include <microhttpd.h>

/* What is wrong with the header, for the answer; NULL: nothing.  method and version as the library
 * gives them to its handler. */
const char *hzp_framing_fault(struct MHD_Connection *connection, const char *method,
                              const char *version);

#endif
