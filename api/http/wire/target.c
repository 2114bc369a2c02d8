/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/wire/target.h"

#include "base/chars.h"

#include <strings.h>

/* Writes the decoded text and a NUL at `to`, and returns what follows it.  A % without two digits
 * stands for itself. */
static char *decode(char *to, const char *text, size_t bytes, bool plus, const char **fault)
{
    for (size_t i = 0; i < bytes; i++) {
        int high = text[i] == '%' && i + 2 < bytes ? hzp_hex_digit(text[i + 1]) : -1;
        int low = high >= 0 ? hzp_hex_digit(text[i + 2]) : -1;
        *to = plus && text[i] == '+' ? ' ' : text[i];
        if (low >= 0) {
            *to = (char)(high << 4 | low);
            i += 2;
        }
        if (!*to)
            *fault = "the target has a NUL (%00)";
        to++;
    }
    *to++ = 0;
    return to;
}

/* Writes the arguments that have a name and a value; returns what follows them. */
static char *decode_arguments(char *to, const char *query, const char **fault)
{
    while (*query) {
        size_t bytes = strcspn(query, "&"), name = strcspn(query, "=&");
        if (name && name < bytes) {
            to = decode(to, query, name, true, fault);
            to = decode(to, query + name + 1, bytes - name - 1, true, fault);
        }
        query += bytes + (query[bytes] != 0);
    }
    *to++ = 0;
    return to;
}

/* The length of http:// or https:// in front. */
static size_t scheme_of(const char *text)
{
    return !strncasecmp(text, "http://", 7) ? 7 : !strncasecmp(text, "https://", 8) ? 8 : 0;
}

struct hzp_target *hzp_target_read(const char *text)
{
    size_t bytes = strlen(text), scheme = scheme_of(text);
    /* The parts and the arguments are each at most as long as the text, with their NULs. */
    struct hzp_target *target = malloc(sizeof(*target) + 2 * bytes + 8);
    if (!target)
        return NULL;
    *target = (struct hzp_target){0};
    char *to = (char *)(target + 1);
    if (scheme) {
        size_t host = strcspn(text + scheme, "/?");
        target->host = to;
        memcpy(to, text + scheme, host);
        to[host] = 0;
        to += host + 1;
        text += scheme + host;
        if (!host || strchr(target->host, '@'))
            target->fault = "the target's host is empty, or has a user's name";
    }
    size_t path = strcspn(text, "?");
    target->path = to;
    to = scheme && !path ? decode(to, "/", 1, false, &target->fault)
                         : decode(to, text, path, false, &target->fault);
    target->query = to;
    strcpy(to, text + path + (text[path] == '?'));
    to += strlen(to) + 1;
    target->arguments = to;
    decode_arguments(to, target->query, &target->fault);
    return target;
}

const char *hzp_target_argument(const struct hzp_target *target, const char *name)
{
    for (const char *at = target->arguments; *at;) {
        const char *value = at + strlen(at) + 1;
        if (!strcmp(at, name))
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}
