/* SPDX-License-Identifier: Apache-2.0 */
/* The server's socket: a port that is taken is noticed before either server listens, the
 * printed address can be used, and the socket of a process that has died goes on. */
#include "api/http/wire/door.h"
#include "base/base.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static struct hzp_port first, second;
static struct hzp_err_text err;

static int open_at(struct hzp_port *l, const char *host, int port)
{
    struct hzp_http_settings settings = {.host = host, .port = port};
    memset(&err, 0, sizeof(err));
    return hzp_port_open(&settings, l, &err);
}

static int connect_to(int port, bool v6)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 to6 = {.sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)port),
                               .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    if ((v6 ? connect(fd, (struct sockaddr *)&to6, sizeof(to6))
            : connect(fd, (struct sockaddr *)&to, sizeof(to))) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Returns whether the port could be opened again: between its close and that, another process may
 * have been given it. */
static bool close_and_reopen(void)
{
    assert_int_equal(open_at(&first, "127.0.0.1", 0), HZP_OK);
    assert_true(first.port > 0);
    /* The first does not listen yet: a second one is refused all the same, and so are clients. */
    assert_int_equal(open_at(&second, "127.0.0.1", first.port), HZP_EIO);
    assert_string_equal(err.param, "--port");
    assert_non_null(strstr(err.text, "the port is in use"));
    assert_int_equal(second.fd, -1);
    assert_int_equal(connect_to(first.port, false), -1);

    assert_int_equal(hzp_port_listen(&first, 8, &err), HZP_OK);
    assert_int_equal(open_at(&second, "127.0.0.1", first.port), HZP_EIO);

    /* An old connection, which its server has closed first, does not keep the next server off. */
    int client = connect_to(first.port, false), server = accept(first.fd, NULL, NULL);
    assert_true(client >= 0 && server >= 0);
    close(server);
    close(client);
    int port = first.port;
    hzp_port_close(&first);
    int again = open_at(&first, "127.0.0.1", port);
    if (again == HZP_OK)
        assert_int_equal(hzp_port_listen(&first, 8, &err), HZP_OK);
    hzp_port_close(&first);
    hzp_port_close(&first); /* again: no effect */
    return again == HZP_OK;
}

static void a_port_is_one_servers(void **state)
{
    int tries = 20;
    while (!close_and_reopen())
        assert_true(--tries > 0);
}

static void the_address_can_be_used(void **state)
{
    static const struct {
        const char *host, *url;
    } at[] = {{"127.0.0.1", "http://127.0.0.1:%d"},
              {"0.0.0.0", "http://127.0.0.1:%d"},
              {"localhost", "http://localhost:%d"},
              {"::1", "http://[::1]:%d"},
              {"::", "http://[::1]:%d"}};
    for (int i = 0; i < HZP_COUNT(at); i++) {
        char url[64];
        int r = open_at(&first, at[i].host, 0);
        if (r == HZP_EIO && strchr(at[i].host, ':'))
            continue; /* a machine without IPv6 */
        assert_int_equal(r, HZP_OK);
        snprintf(url, sizeof(url), at[i].url, first.port);
        assert_string_equal(first.url, url);
        hzp_port_close(&first);
    }
}

/* Clients that come while the process that listened is gone wait for the next one. */
static void a_socket_is_taken_over(void **state)
{
    static const char *const host[] = {"127.0.0.1", "0.0.0.0", "::1", "::"};
    for (int i = 0; i < HZP_COUNT(host); i++) {
        struct hzp_http_settings settings = {.host = host[i]};
        struct hzp_port kept;
        int r = open_at(&kept, host[i], 0);
        if (r == HZP_EIO && strchr(host[i], ':'))
            continue; /* a machine without IPv6 */
        assert_int_equal(r, HZP_OK);
        int client = -1;
        for (int turn = 0; turn < 3; turn++) {
            hzp_port_take(&settings, dup(kept.fd), NULL, &first);
            assert_false(first.relayed);
            assert_int_equal(first.port, kept.port);
            assert_string_equal(first.url, kept.url);
            assert_int_equal(hzp_port_listen(&first, 8, &err), HZP_OK);
            if (client >= 0) {
                char text[8] = "";
                int server = accept(first.fd, NULL, NULL);
                assert_int_equal(read(server, text, sizeof(text)), 5);
                assert_string_equal(text, "hello");
                close(server);
                close(client);
            }
            hzp_port_close(&first);
            client = connect_to(kept.port, strchr(host[i], ':') != NULL);
            assert_true(client >= 0);
            assert_int_equal(write(client, "hello", 5), 5);
        }
        close(client);
        hzp_port_close(&kept);
        assert_int_equal(connect_to(kept.port, strchr(host[i], ':') != NULL), -1);
    }
}

/* A Unix socket that a relay's launcher has bound; the relay's address is what is printed. */
static void a_relays_socket_is_taken(void **state)
{
    /* no file: the name is an abstract one, which the kernel chooses */
    struct sockaddr at = {.sa_family = AF_UNIX};
    struct sockaddr_storage bound;
    socklen_t size = sizeof(bound);
    struct hzp_http_settings settings = {.host = "127.0.0.1"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, &at, sizeof(at.sa_family)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&bound, &size), 0);
    hzp_port_take(&settings, fd, "http://127.0.0.1:7", &first);
    assert_true(first.relayed);
    assert_int_equal(first.port, 0);
    assert_string_equal(first.url, "http://127.0.0.1:7");
    assert_int_equal(hzp_port_listen(&first, 8, &err), HZP_OK);
    assert_int_equal(connect(client, (struct sockaddr *)&bound, size), 0);
    close(client);
    hzp_port_close(&first);
}

static void bad_addresses_are_named(void **state)
{
    assert_int_equal(open_at(&first, "192.0.2.1", 0), HZP_EINVAL);
    assert_string_equal(err.param, "--host");
    assert_non_null(strstr(err.text, "192.0.2.1"));
    assert_non_null(strstr(err.text, "not an address of this machine"));
    assert_int_equal(open_at(&first, "not an address", 0), HZP_EINVAL);
    assert_string_equal(err.param, "--host");
    assert_non_null(strstr(err.text, "--host not an address"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_port_is_one_servers), cmocka_unit_test(the_address_can_be_used),
        cmocka_unit_test(a_socket_is_taken_over), cmocka_unit_test(a_relays_socket_is_taken),
        cmocka_unit_test(bad_addresses_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
