/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/launch/rendezvous.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

enum { DEFAULT_PORT = 29500, TRIES = 5 };
static const char lock_name[] = "lock";

/* A variable's value; NULL: not set or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int take_folder(const char *name, const char *folder, struct hzp_rendezvous *r,
                       struct hzp_err_text *reterr)
{
    struct stat is;
    if (strlen(folder) >= sizeof(r->folder) || folder[0] != '/')
        return hzp_fail_param(reterr, HZP_EINVAL, name,
                              "%s: %.100s is no absolute name of less than %zu bytes", name, folder,
                              sizeof(r->folder));
    if (lstat(folder, &is) != 0)
        return hzp_fail_param(reterr, errno == ENOENT ? HZP_ENOENT : HZP_EIO, name, "%s: %s: %s",
                              name, folder, strerror(errno));
    if (!S_ISDIR(is.st_mode) || is.st_uid != geteuid() || (is.st_mode & 077))
        return hzp_fail_param(reterr, HZP_EINVAL, name,
                              "%s: %s is not a folder that only this user may enter", name, folder);
    snprintf(r->folder, sizeof(r->folder), "%s", folder);
    return HZP_OK;
}

/* Rank 0 holds the lock of the folder as long as it runs.  HZP_ENOENT: a rank of another run has
 * just removed the folder. */
static int lock_folder(const char *folder, int port, struct hzp_rendezvous *r,
                       struct hzp_err_text *reterr)
{
    char path[sizeof(r->folder) + sizeof(lock_name) + 1];
    snprintf(path, sizeof(path), "%s/%s", folder, lock_name);
    r->lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (r->lock < 0 && errno == ENOENT)
        return hzp_fail(reterr, HZP_ENOENT, "%s: removed by other ranks that end", folder);
    if (r->lock < 0)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(errno));
    struct stat is;
    bool locked = flock(r->lock, LOCK_EX | LOCK_NB) == 0;
    bool removed = fstat(r->lock, &is) != 0 || is.st_nlink == 0;
    if (locked && !removed)
        return HZP_OK;
    close(r->lock);
    r->lock = -1;
    if (removed)
        return hzp_fail(reterr, HZP_ENOENT, "%s: removed by other ranks that end", folder);
    return hzp_fail_param(reterr, HZP_EINVAL, "MASTER_PORT",
                          "other ranks meet on this machine with port %d: give these "
                          "another MASTER_PORT, or --rank-port",
                          port);
}

/* The folder that is named by user and port. */
static int name_folder(bool first, struct hzp_rendezvous *r, struct hzp_err_text *reterr)
{
    char folder[sizeof(r->folder)];
    int result = HZP_ENOENT;
    snprintf(folder, sizeof(folder), "/tmp/hzpserve-ranks-%lu-%d", (unsigned long)geteuid(),
             r->port);
    for (int i = 0; i < TRIES && result == HZP_ENOENT; i++) {
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            return hzp_fail(reterr, HZP_EIO, "%s: %s", folder, strerror(errno));
        result = take_folder("HZP_RANKS_DIR", folder, r, reterr); /* the lock is in it */
        if (result == HZP_OK && first)
            result = lock_folder(folder, r->port, r, reterr);
    }
    return result;
}

int hzp_rendezvous_open(const struct hzp_launch *launch, int port, struct hzp_rendezvous *ret,
                        struct hzp_err_text *reterr)
{
    const char *folder = variable("HZP_RANKS_DIR"), *key = variable("HZP_RANKS_KEY");
    const char *rule = port ? "--rank-port" : "MASTER_PORT+1";
    bool local = launch->local_ranks == launch->ranks || !strcmp(launch->host, "localhost") ||
                 !strncmp(launch->host, "127.", 4) || !strcmp(launch->host, "::1");
    *ret = (struct hzp_rendezvous){.lock = -1};
    ret->port = port ? port : (launch->port ? launch->port : DEFAULT_PORT) + 1;
    snprintf(ret->host, sizeof(ret->host), "%s", launch->host);
    if (folder) {
        snprintf(ret->from, sizeof(ret->from), "HZP_RANKS_DIR");
        return take_folder("HZP_RANKS_DIR", folder, ret, reterr);
    }
    if (key && launch->host[0]) {
        snprintf(ret->from, sizeof(ret->from), "MASTER_ADDR,%s,HZP_RANKS_KEY", rule);
        return hzp_pipe_read_key("HZP_RANKS_KEY", key, ret->key, reterr);
    }
    if (key)
        return hzp_fail_param(
            reterr, HZP_EINVAL, "MASTER_ADDR",
            "rank %d of %d, from %s: MASTER_ADDR is not set; without MPI all ranks "
            "connect to rank 0 there",
            launch->rank, launch->ranks, launch->from);
    if (!local)
        return hzp_fail_param(reterr, HZP_EINVAL, "HZP_RANKS_KEY",
                              "rank %d of %d, from %s: ranks on several machines need the same "
                              "secret on each: set HZP_RANKS_KEY to what `openssl rand -hex 32` "
                              "prints (or use MPI)",
                              launch->rank, launch->ranks, launch->from);
    snprintf(ret->from, sizeof(ret->from), "one-machine,%s", rule);
    return name_folder(launch->rank == 0, ret, reterr);
}

void hzp_rendezvous_remove(const char *name)
{
    DIR *folder = opendir(name);
    if (folder) {
        for (const struct dirent *entry; (entry = readdir(folder));)
            if (entry->d_name[0] != '.')
                unlinkat(dirfd(folder), entry->d_name, 0);
        closedir(folder);
    }
    rmdir(name);
}

void hzp_rendezvous_close(struct hzp_rendezvous *r)
{
    if (!r->folder[0] || r->lock < 0)
        return;
    hzp_rendezvous_remove(r->folder);
    close(r->lock);
    r->folder[0] = 0;
    r->lock = -1;
}

static void endpoint(const struct hzp_rendezvous *r, const char *file, int port,
                     char ret[HZP_PIPE_ENDPOINT])
{
    bool v6 = strchr(r->host, ':') != NULL;
    if (r->folder[0])
        snprintf(ret, HZP_PIPE_ENDPOINT, "ipc://%s/%s", r->folder, file);
    else
        snprintf(ret, HZP_PIPE_ENDPOINT, v6 ? "tcp://[%s]:%d" : "tcp://%s:%d", r->host, port);
}

void hzp_rendezvous_endpoint(const struct hzp_rendezvous *r, char ret[HZP_PIPE_ENDPOINT])
{
    endpoint(r, "control", r->port, ret);
}

void hzp_rendezvous_replicas(const struct hzp_rendezvous *r, char ret[HZP_PIPE_ENDPOINT])
{
    endpoint(r, "replicas", r->port + 1, ret);
}
