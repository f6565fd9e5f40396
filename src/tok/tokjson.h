/* Reading a tokenizer.json, for the files that take its parts. Private to src/tok.
 *
 * Every function that gets `at`, the path of the object in the file, fails with WEFT_ERR_FILE and
 * names the path of what is wrong. */
#ifndef WEFT_TOK_TOKJSON_H
#define WEFT_TOK_TOKJSON_H

#include "tok/tok_impl.h"

#include <jansson.h>

enum { TOKJSON_MAX_ID = (1 << 24) - 1, TOKJSON_PATH_BYTES = 200 };

typedef struct tokjson_path {
    char text[TOKJSON_PATH_BYTES];
} tokjson_path;

/* What is read of the file. */
typedef struct tokjson_reader {
    tok *t;
    json_t *root;
    bpe_config bpe;
    uint8_t *reach; /* [t->n_token] */
    weft_error *err;
} tokjson_reader;

/* base (NULL: none) and what the format adds. */
tokjson_path tokjson_path_of(const tokjson_path *base, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
weft_status tokjson_no_memory(weft_error *err);
load_string tokjson_text_of(const json_t *value);
/* "AT KEY is a number, expected EXPECTED"; a NULL value is missing. */
weft_status tokjson_wrong_type(const tokjson_path *at, const char *key, const json_t *value,
                               const char *expected, weft_error *err);
/* The type of a step or model is not one of `known`. */
weft_status tokjson_refuse_type(const tokjson_path *at, load_string type, const char *known,
                                weft_error *err);

/* ---- members of an object ---- */
/* A flag; `absent` is its value where the file says nothing, -1: it must. */
weft_status tokjson_flag(const json_t *object, const tokjson_path *at, const char *key, int absent,
                         bool *out, weft_error *err);
/* A text; data NULL where it may be missing or null, and is. Borrowed of the JSON. */
weft_status tokjson_text(const json_t *object, const tokjson_path *at, const char *key,
                         bool required, load_string *out, weft_error *err);
weft_status tokjson_character(const json_t *object, const tokjson_path *at, const char *key,
                              load_string *out, weft_error *err);
weft_status tokjson_count(const json_t *object, const tokjson_path *at, const char *key,
                          int32_t *out, weft_error *err);
bool tokjson_is_id(const json_t *value);
weft_status tokjson_bad_id(const tokjson_path *at, const json_t *value, weft_error *err);
/* {"String": text} or {"Regex": pattern}. An empty text matches nowhere: *out NULL. */
weft_status tokjson_pattern(const json_t *object, const tokjson_path *at, regex **out,
                            weft_error *err);
/* Metaspace's prepend_scheme, or the flag of files from before there were schemes. */
weft_status tokjson_scheme(const json_t *step, const tokjson_path *at, bool *prefix, bool *first,
                           weft_error *err);
/* Refuses members that are not among `known`, names with one blank around each. */
weft_status tokjson_check_members(json_t *object, const tokjson_path *at, const char *known,
                                  weft_error *err);
#define TOKJSON_METASPACE " type replacement str_rep add_prefix_space prepend_scheme split "
/* A copy that lives as long as the tok. */
weft_status tokjson_keep(tokjson_reader *r, load_string text, load_string *out);

/* ---- steps ---- */
/* Calls `each` for the step that is the file's member `key`, or for every step of a Sequence there,
 * whose list is called `list`. None where it is missing or null. */
typedef weft_status (*tokjson_step_fn)(tokjson_reader *r, json_t *step, const tokjson_path *at,
                                       load_string type);
weft_status tokjson_walk_member(tokjson_reader *r, const char *key, const char *list,
                                tokjson_step_fn each);
weft_status tokjson_read_norm(tokjson_reader *r, json_t *step, const tokjson_path *at,
                              load_string type);
weft_status tokjson_read_pretok(tokjson_reader *r, json_t *step, const tokjson_path *at,
                                load_string type);
/* Fills t->decoder of a tok whose tokens are read. */
weft_status tokjson_read_decoders(tokjson_reader *r);

#endif
