/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cli/signals.h"

#include <pthread.h>

/* Only what is safe in a signal handler. */
static void quit(int number)
{
    static const char text[] = "hzpserve: SIGQUIT: ended at once, nothing was saved\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)n;
    _exit(128 + number);
}

bool hzp_signal_is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && !(action.sa_flags & SA_SIGINFO) &&
           action.sa_handler == SIG_IGN;
}

void hzp_signals_take(struct hzp_signals *ret)
{
    static const int always[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
    struct sigaction action = {.sa_handler = quit};
    ret->terminal = isatty(STDIN_FILENO) || isatty(STDOUT_FILENO);
    sigemptyset(&ret->set);
    for (int i = 0; i < HZP_COUNT(always); i++)
        sigaddset(&ret->set, always[i]);
    if (!hzp_signal_is_ignored(SIGHUP))
        sigaddset(&ret->set, SIGHUP);
    if (!hzp_signal_is_ignored(SIGQUIT))
        sigaction(SIGQUIT, &action, NULL);
    pthread_sigmask(SIG_BLOCK, &ret->set, NULL);
}

enum hzp_signal hzp_signals_next(const struct hzp_signals *signals, uint64_t wait_ns)
{
    struct timespec wait = {.tv_sec = (time_t)(wait_ns / 1000000000u),
                            .tv_nsec = (long)(wait_ns % 1000000000u)};
    int number = sigtimedwait(&signals->set, NULL, &wait);
    if (number <= 0)
        return HZP_SIGNAL_NONE;
    if (number == SIGUSR2)
        return HZP_SIGNAL_STATUS;
    if (number == SIGUSR1)
        return HZP_SIGNAL_PASSED_STOP;
    return number == SIGHUP && !signals->terminal ? HZP_SIGNAL_RELOAD : HZP_SIGNAL_STOP;
}

bool hzp_signal_stops(enum hzp_signal signal)
{
    return signal == HZP_SIGNAL_STOP || signal == HZP_SIGNAL_PASSED_STOP;
}
