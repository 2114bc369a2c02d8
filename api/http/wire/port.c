/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/door.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* Binds without SO_REUSEADDR first: then the port is this socket's alone.  With old connections of
 * an earlier server still in TIME_WAIT only the second attempt succeeds. */
static int bind_socket(const struct addrinfo *at)
{
    static const int on = 1;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (at->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    bool bound = bind(fd, at->ai_addr, at->ai_addrlen) == 0;
    int error = errno;
    if (!bound && error == EADDRINUSE) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        bound = bind(fd, at->ai_addr, at->ai_addrlen) == 0;
        error = errno;
    }
    if (bound)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

/* All addresses of the machine: a client uses the loopback address. */
static bool is_any(const struct sockaddr_storage *at)
{
    if (at->ss_family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)at)->sin6_addr);
    return ((const struct sockaddr_in *)at)->sin_addr.s_addr == htonl(INADDR_ANY);
}

static void write_url(struct hzp_port *l, const char *host, bool any, bool v6)
{
    char name[100];
    size_t n = 0;
    if (any)
        host = v6 ? "::1" : "127.0.0.1";
    for (; *host && n + 4 < sizeof(name); host++) /* % begins an escape in a URL, and a zone here */
        n += (size_t)snprintf(name + n, sizeof(name) - n, *host == '%' ? "%%25" : "%c", *host);
    name[n] = 0;
    bool bare = strchr(name, ':') != NULL;
    snprintf(l->url, sizeof(l->url), "http://%s%s%s:%d", bare ? "[" : "", name, bare ? "]" : "",
             l->port);
}

void hzp_port_take(const struct hzp_http_settings *settings, int fd, const char *url,
                   struct hzp_port *ret)
{
    struct sockaddr_storage at = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof(at);
    getsockname(fd, (struct sockaddr *)&at, &size);
    bool v6 = at.ss_family == AF_INET6;
    *ret = (struct hzp_port){.fd = fd, .relayed = at.ss_family == AF_UNIX};
    if (ret->relayed) {
        snprintf(ret->url, sizeof(ret->url), "%s", url ? url : "");
        return;
    }
    ret->port =
        ntohs(v6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    write_url(ret, settings->host, is_any(&at), v6);
}

static int explain(int error, const char *host, int port, struct hzp_err_text *reterr)
{
    if (error == EADDRINUSE)
        return hzp_fail_param(reterr, HZP_EIO, "--port",
                              "cannot listen on %s port %d: the port is in use", host, port);
    if (error == EADDRNOTAVAIL)
        return hzp_wrong(reterr, "--host", "%s: it is not an address of this machine", host);
    return hzp_fail_param(reterr, HZP_EIO, "--port", "cannot listen on %s port %d: %s", host, port,
                          strerror(error));
}

int hzp_port_open(const struct hzp_http_settings *settings, struct hzp_port *ret,
                  struct hzp_err_text *reterr)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    const char *host = settings->host;
    char service[16];
    *ret = (struct hzp_port){.fd = -1};
    snprintf(service, sizeof(service), "%d", (int)settings->port);
    int r = getaddrinfo(host, service, &hints, &list);
    if (r)
        return hzp_wrong(reterr, "--host", "%s: %s", host, gai_strerror(r));
    int error = 0, fd = -1;
    for (const struct addrinfo *at = list; at && fd < 0 && error != EADDRINUSE; at = at->ai_next) {
        fd = bind_socket(at);
        error = errno;
    }
    freeaddrinfo(list);
    if (fd < 0)
        return explain(error, host, (int)settings->port, reterr);
    hzp_port_take(settings, fd, NULL, ret);
    return HZP_OK;
}

int hzp_port_listen(struct hzp_port *l, int backlog, struct hzp_err_text *reterr)
{
    static const int on = 1;
    /* From listen() on no other process can bind the port.  With this option the next server can
     * bind it while the last connections of this one are in TIME_WAIT. */
    setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    return listen(l->fd, backlog) < 0 ? explain(errno, l->url, l->port, reterr) : HZP_OK;
}

void hzp_port_close(struct hzp_port *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}
