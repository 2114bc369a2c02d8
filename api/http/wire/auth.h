/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/auth.h - which requests are allowed: keys, and rules against foreign web pages.
 *
 * Keys.  --api-key may read and complete; --admin-key may also teach and set the policy.  With one
 * of them only, it allows everything.  With none, every client that reaches the port may do
 * everything.
 *
 * A file of keys has one key, its first line, or several, a line each: NAME:KEY.  Names are for the
 * logs and for who taught; all keys of a file have the same rights.
 *
 * Web pages.  A browser sends a page's requests to any address, also to this machine's, so a server
 * without a key is open to every page its user looks at.  What changes something (POST, PATCH,
 * DELETE) is therefore refused unless
 *
 *     its Host names this server: localhost, the address that the connection came to, --host, the
 *     machine's own name, or a name of --allow-host (a foreign name is how a page makes itself look
 *     as if it came from here: DNS rebinding)
 *     its Origin, if it has one, is this server's own or is named by --allow-origin
 *     its body is declared as JSON, which a browser sends to another origin only after it has asked
 *     for permission; curl's default type and a missing type are accepted from clients that are
 *     not browsers
 *
 * Permission (CORS) is given to the origins of --allow-origin only.
 *
 * Thread: any; constant once made, but for the keys that come from files.
 */
#pragma once

#include "api/http/wire/settings.h"
#include "base/err.h"

#include <microhttpd.h>

enum hzp_right { HZP_RIGHT_NONE, HZP_RIGHT_COMPLETE, HZP_RIGHT_TEACH };

struct hzp_auth;

/* Checks the settings and reads the files of keys.  HZP_EINVAL, HZP_EIO: the text names the option.
 * The settings are borrowed. */
int hzp_auth_create(const struct hzp_http_settings *settings, struct hzp_auth **ret,
                    struct hzp_err_text *reterr);
void hzp_auth_destroy(struct hzp_auth *auth); /* NULL: no effect */

/* Reads the files of keys again; from then on their keys count.  Returns how many files there are.
 * After an error (as of create) the keys are as they were. */
int hzp_auth_reload(struct hzp_auth *auth, struct hzp_err_text *reterr);

bool hzp_auth_has_key(const struct hzp_auth *auth);
bool hzp_auth_has_admin_key(const struct hzp_auth *auth);

/* An answer to give instead of the route's.  status 0: the request is allowed. */
struct hzp_refusal {
    int status;
    const char *code;
    char text[256];
};

/* Whether the request's key gives the right.  Returns the key's name, for the log, which lives as
 * long as auth: "api" or "admin" for one without a name, "none" for none. */
const char *hzp_auth_check_key(struct hzp_auth *auth, struct MHD_Connection *connection,
                               enum hzp_right right, struct hzp_refusal *ret);

/* Whether a request that changes something may come from where it comes from, and declares a body
 * that is JSON.  host: the target's, which counts in place of the header Host; NULL: none. */
void hzp_auth_check_origin(const struct hzp_auth *auth, struct MHD_Connection *connection,
                           const char *host, struct hzp_refusal *ret);

/* Whether Host is a name of this server.  For GET routes that want the admin key: where there is no
 * key, nothing else stops a web page whose own host name resolves to this machine (DNS rebinding)
 * from reading the weights. */
void hzp_auth_check_host(const struct hzp_auth *auth, struct MHD_Connection *connection,
                         const char *host, struct hzp_refusal *ret);

/* Adds the headers of CORS if the request's Origin is named by --allow-origin; true: it is.
 * preflight: also what the page may send. */
bool hzp_auth_add_cors(const struct hzp_auth *auth, struct MHD_Connection *connection,
                       struct MHD_Response *response, bool preflight);
/* Whether the request asks for permission to send another one. */
bool hzp_auth_is_preflight(struct MHD_Connection *connection, const char *method);
