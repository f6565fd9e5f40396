/* Strings as they stand in a file: a form fit for a message, and a table that finds one among many. */
#ifndef WEFT_LOAD_TEXT_H
#define WEFT_LOAD_TEXT_H

#include "load/arena.h"
#include "load/load.h"

/* UTF-8 without control characters: fit for a message as it is. */
bool text_is_plain(load_string s);
/* One line of valid UTF-8: control characters and bad bytes become \xNN, a long text ends with
 * "...". NUL-terminated, never cut inside a character. out_bytes >= 8. */
void text_show(load_string s, char *out, size_t out_bytes);
load_string text_of(const char *s);

/* A text of one line that is put together from pieces and ends with "..." where one did not fit. */
typedef struct text_sink {
    char *out;
    size_t n, cap; /* three bytes and the NUL stay free for the "..." */
    bool full;
} text_sink;

/* False when out_bytes < 4: *out is the empty text then (if it has a byte). */
bool text_sink_init(text_sink *s, char *out, size_t out_bytes);
void text_put(text_sink *s, const char *text);
/* As text_show shows it. */
void text_put_string(text_sink *s, load_string text);

/* Finds the index of a string in an array that the caller owns. */
typedef struct text_table {
    const load_string *item; /* [n], borrowed */
    struct text_slot *slot;  /* [mask + 1] */
    size_t mask;
    uint64_t seed; /* random, so that no file can be made of strings that collide */
} text_table;

/* An empty table for up to n strings of `item`. False when out of memory. */
bool text_table_init(text_table *t, load_arena *arena, const load_string *item, size_t n);
/* Adds item[i]; returns -1, or the index of an equal string that is there already (and stays). */
int32_t text_table_add(text_table *t, int32_t i);
/* The index of an equal string, -1 when there is none. */
int32_t text_table_find(const text_table *t, load_string s);

#endif
