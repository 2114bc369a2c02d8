/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/launch/rendezvous.h - where ranks without MPI meet.
 *
 * The first of these that applies, the same on all ranks:
 *
 *     HZP_RANKS_DIR    a folder of this user; set by --ranks N for the ranks that it starts
 *     HZP_RANKS_KEY    TCP: rank 0 listens at MASTER_ADDR, on the port below; all messages and data
 *                      are encrypted and authenticated with this secret, 64 hexadecimal digits
 *     one machine      a folder that is named by the user and the port.  The launcher says that all
 *                      ranks are on this machine, or MASTER_ADDR is a loopback address
 *
 * The port is --rank-port, or one more than MASTER_PORT (29500 if not set), where the launcher's
 * own store may listen.
 *
 * Invariant: a folder belongs to this user, and no other may enter it.
 *
 * Thread: main.
 */
#pragma once

#include "mesh/launch/launch.h"
#include "mesh/peers/control.h"

struct hzp_rendezvous {
    char folder[80]; /* ""; TCP */
    char host[256];  /* TCP */
    int port;
    char key[HZP_PIPE_KEY]; /* TCP */
    char from[80];          /* the variables and options that it was taken from */
    int lock;               /* rank 0: of a folder that is named by the port; -1: none */
};

/* port: --rank-port; 0: not given.  Errors name the variable.  HZP_EINVAL: ranks on several
 * machines without a key, or other ranks have the folder. */
int hzp_rendezvous_open(const struct hzp_launch *launch, int port, struct hzp_rendezvous *ret,
                        struct hzp_err_text *reterr);

/* Rank 0 removes a folder that is named by the port: connected ranks need its files no more.  No
 * effect on a struct that is closed. */
void hzp_rendezvous_close(struct hzp_rendezvous *r);

/* Removes such a folder with its files; what cannot be removed stays. */
void hzp_rendezvous_remove(const char *folder);

/* What rank 0 listens on, for hzp_control_listen, and what others connect to. */
void hzp_rendezvous_endpoint(const struct hzp_rendezvous *r, char ret[HZP_PIPE_ENDPOINT]);
/* The same for the requests of replicas: another file, or the next port. */
void hzp_rendezvous_replicas(const struct hzp_rendezvous *r, char ret[HZP_PIPE_ENDPOINT]);
