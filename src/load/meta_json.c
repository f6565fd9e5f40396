/* config.json as a description: members by path. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "load/json.h"
#include "load/model.h"

enum {
    MAX_DEPTH = 16,
    MAX_NODES = 1 << 16, /* so that no made-up file fills the memory with paths */
    MAX_PATH_BYTES = 255
};

/* Walks the tree twice: to count, and to fill. */
typedef struct walk {
    load_model *m;
    weft_error *err;
    char path[MAX_PATH_BYTES + 1];
    int32_t n_leaf, n_group; /* so far */
    bool fill;
} walk;

static weft_status bad_path(const walk *w, const char *what) {
    char shown[120];
    text_show(text_of(w->path), shown, sizeof shown);
    return error_set(w->err, WEFT_ERR_FILE, "%s: %s", shown, what);
}

/* Puts a member's name behind the path of `n` bytes; *end: the length then. */
static weft_status append(walk *w, size_t n, const char *name, size_t *end) {
    int written = snprintf(w->path + n, sizeof w->path - n, "%s%s", n > 0 ? "." : "", name);
    if (written < 0 || (size_t)written >= sizeof w->path - n) {
        char what[80];
        snprintf(what, sizeof what, "the path of this member is longer than %d bytes",
                 MAX_PATH_BYTES);
        return bad_path(w, what);
    }
    *end = n + (size_t)written;
    return text_is_plain((load_string){w->path, *end})
               ? WEFT_OK
               : bad_path(w, "the name of this member has control characters");
}

static weft_status add_node(walk *w, size_t n, const json_t *v, bool is_group) {
    int32_t i = is_group ? w->n_group++ : w->n_leaf++;
    if (!w->fill) {
        if (w->n_leaf + w->n_group > MAX_NODES) {
            return error_set(w->err, WEFT_ERR_FILE, "more than %d members", (int)MAX_NODES);
        }
        return WEFT_OK;
    }
    load_paths *p = &w->m->paths;
    i += is_group ? p->n_leaf : 0;
    char *copy = load_arena_take(&w->m->arena, n + 1, 1);
    if (copy == NULL) {
        return error_set(w->err, WEFT_ERR_MEMORY, "no memory for the path %s", w->path);
    }
    memcpy(copy, w->path, n + 1);
    p->path[i] = (load_string){copy, n};
    p->value[i] = v;
    /* {"a": {"b": 1}, "a.b": 2} */
    return text_table_add(&p->table, i) < 0 ? WEFT_OK : bad_path(w, "the path stands twice");
}

static weft_status visit(walk *w, size_t n, const json_t *group, int depth) {
    if (depth > MAX_DEPTH) {
        return bad_path(w, "nested deeper than 16 members");
    }
    const char *name;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)group, name, v) {
        size_t end = 0;
        weft_status s = append(w, n, name, &end);
        if (s == WEFT_OK && !json_is_null(v)) {
            s = add_node(w, end, v, json_is_object(v));
        }
        if (s == WEFT_OK && json_is_object(v)) {
            s = visit(w, end, v, depth + 1);
        }
        if (s != WEFT_OK) {
            return s;
        }
    }
    return WEFT_OK;
}

weft_status load_read_paths(load_model *m, json_t *root, weft_error *err) {
    load_paths *p = &m->paths;
    p->root = root;
    walk w = {.m = m, .err = err};
    weft_status s = visit(&w, 0, root, 1);
    if (s != WEFT_OK) {
        return s;
    }
    p->n_leaf = w.n_leaf;
    p->n_node = w.n_leaf + w.n_group;
    size_t n = (size_t)p->n_node;
    p->path = load_arena_take(&m->arena, n, sizeof *p->path);
    p->value = load_arena_take(&m->arena, n, sizeof(void *));
    m->key_read = load_arena_take(&m->arena, n, sizeof *m->key_read);
    if (p->path == NULL || p->value == NULL || m->key_read == NULL ||
        !text_table_init(&p->table, &m->arena, p->path, n)) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %zu members", n);
    }
    w = (walk){.m = m, .err = err, .fill = true};
    return visit(&w, 0, root, 1);
}

/* ---- the view ---- */

static int32_t count(const load_model *m) {
    return m->paths.n_leaf;
}

static int32_t find(const load_model *m, const char *key) {
    char whole[MAX_PATH_BYTES + 1];
    if (m->member != NULL) {
        snprintf(whole, sizeof whole, "%s.%s", m->member, key);
        key = whole;
    }
    return text_table_find(&m->paths.table, text_of(key));
}

static const char *key_at(const load_model *m, int32_t i) {
    return m->paths.path[i].data;
}

static int32_t length(const load_model *m, int32_t i) {
    const json_t *v = m->paths.value[i];
    return json_is_array(v) && json_array_size(v) <= INT32_MAX ? (int32_t)json_array_size(v) : -1;
}

static const json_t *at(const load_model *m, int32_t i, int32_t e) {
    const json_t *v = m->paths.value[i];
    return e < 0 ? v : json_array_get(v, (size_t)e);
}

static meta_value value(const load_model *m, int32_t i, int32_t e) {
    const json_t *v = at(m, i, e);
    meta_value out = {.offset = -1};
    if (json_is_string(v)) {
        out.as = META_TEXT;
        out.text = json_text(v);
        out.type = "a string";
    } else if (json_is_boolean(v)) {
        out.as = META_FLAG;
        out.i = json_is_true(v);
    } else if (json_is_number(v)) {
        out.as = META_REAL | (json_as_integer(v, &out.i) ? META_INT : 0);
        out.r = json_number_value(v);
    }
    return out;
}

static void text(const load_model *m, int32_t i, int32_t e, char *out, size_t out_bytes) {
    json_show(at(m, i, e), out, out_bytes);
}

const load_meta meta_json = {count, find, key_at, length, value, text};
