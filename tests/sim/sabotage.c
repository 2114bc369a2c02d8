/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sabotage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool expected(const struct sabotage_test *t, int kind, int status, const char *line)
{
    char rules[200], *at = rules, *rule;
    if (!t->rules)
        return true;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
        return false;
    snprintf(rules, sizeof(rules), "%s", t->rules(kind));
    while ((rule = strsep(&at, "|")))
        if (!strncmp(line, rule, strlen(rule)))
            return true;
    return false;
}

/* One run in a process of its own.  Returns its status, as waitpid's, and the beginning of what it
 * printed. */
static int run(const struct sabotage_test *t, uint64_t seed, int kind, char *line, size_t bytes)
{
    int fd[2], status = -1;
    size_t used = 0;
    ssize_t n;
    if (pipe(fd) < 0)
        abort();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd[1], STDOUT_FILENO);
        alarm(1200); /* ends a hang */
        t->run(seed, kind);
        fflush(stdout);
        _exit(0);
    }
    close(fd[1]);
    while (used < bytes - 1 && (n = read(fd[0], line + used, bytes - 1 - used)) > 0)
        used += (size_t)n;
    line[used] = 0;
    char rest[512];
    while (read(fd[0], rest, sizeof(rest)) > 0)
        ;
    close(fd[0]);
    if (child < 0 || waitpid(child, &status, 0) != child)
        abort();
    return status;
}

static bool caught(const struct sabotage_test *t, int kind)
{
    for (uint64_t seed = 1; seed <= t->seeds; seed++) {
        char line[1000];
        int status = run(t, seed, kind, line, sizeof(line));
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue; /* the sabotage found no occasion with this seed */
        printf("%-16s %s", t->name(kind), *line ? line : "ended without a word\n");
        return expected(t, kind, status, line);
    }
    printf("%-16s was not noticed\n", t->name(kind));
    return false;
}

int sabotage_try(const struct sabotage_test *t, const char *name)
{
    int tried = 0, missed = 0;
    for (int kind = 1; kind < t->kinds; kind++)
        if (!strcmp(name, "all") || !strcmp(name, t->name(kind))) {
            tried++;
            missed += !caught(t, kind);
        }
    printf("%d of %d kinds of sabotage were noticed%s\n", tried - missed, tried,
           t->rules ? " by the rule meant for them" : "");
    return missed || !tried;
}
