/* A rank's threads: the owner and n - 1 helpers that run one function at a time together
 * (fork-join). */
#ifndef WEFT_BASE_TEAM_H
#define WEFT_BASE_TEAM_H

#include "base/status.h"

typedef struct team team;
typedef void (*team_fn)(void *arg, int32_t thread, int32_t n_thread);

/* Every thread of the team, the owner at its next team_run too, has its floating-point control word
 * set (round to nearest even, no flush to zero, no denormals-are-zero). */
weft_status team_open(int32_t n_thread, team **out, weft_error *err);
void team_close(team *t); /* NULL is allowed */
int32_t team_size(const team *t);
/* Runs fn(arg, i, n) on every thread i of the team, 0 being the caller; returns when all have
 * returned. */
void team_run(team *t, team_fn fn, void *arg);
/* Work claiming inside a team_run: the next unclaimed item of [0, n), or -1. Reset by team_run. */
int32_t team_claim(team *t, int32_t n);

/* Sets and asserts the floating-point control word of the calling thread (rank threads call it at
 * start). */
void team_set_float_mode(void);

/* The calling thread's control word, and back to it: for work on a client's thread, whose mode is
 * its own business. 0 on machines without one. */
uint32_t team_float_mode_save(void);
void team_float_mode_restore(uint32_t saved);

#endif
