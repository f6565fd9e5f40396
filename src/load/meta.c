/* The description of a model, read by key. Every message about a value is made here, so that both
 * containers say the same. */
#include "load/meta.h"

#include <math.h>
#include <stdio.h>

#include "load/model.h"

enum { SHOWN_BYTES = 120 };

/* What a getter looks for. */
typedef struct wanted {
    uint32_t as;
    const char *name; /* "an integer" */
} wanted;

static const wanted an_int = {META_INT, "an integer"};
static const wanted a_real = {META_REAL, "a number"};
static const wanted a_flag = {META_FLAG, "true or false"};
static const wanted a_text = {META_TEXT, "a text"};

/* -1 when there is none; marks the key as read. */
static int32_t look_up(const load_model *m, const char *key) {
    int32_t i = m->meta->find(m, key);
    if (i >= 0) {
        m->key_read[i] = true;
    }
    return i;
}

static weft_status missing(const load_model *m, const char *key, const char *expected,
                           weft_error *err) {
    bool inside = m->member != NULL;
    return error_set(err, WEFT_ERR_FILE, "%s%s%s is missing, expected %s", inside ? m->member : "",
                     inside ? "." : "", key, expected);
}

/* "KEY[E] is VALUE (TYPE)", e < 0: without the entry, type NULL: without the type. */
static weft_status wrong(const load_model *m, const char *key, int32_t i, int32_t e,
                         const char *type, const char *expected, weft_error *err) {
    char text[SHOWN_BYTES], entry[16] = "";
    key = m->member != NULL ? m->meta->key(m, i) : key;
    m->meta->text(m, i, e, text, sizeof text);
    if (e >= 0) {
        snprintf(entry, sizeof entry, "[%d]", e);
    }
    return error_set_at(err, WEFT_ERR_FILE, m->meta->value(m, i, e).offset,
                        "%s%s is %s%s%s%s, expected %s", key, entry, text, type != NULL ? " (" : "",
                        type != NULL ? type : "", type != NULL ? ")" : "", expected);
}

static weft_status wrong_type(const load_model *m, const char *key, int32_t i, int32_t e,
                              const char *expected, weft_error *err) {
    return wrong(m, key, i, e, m->meta->value(m, i, e).type, expected, err);
}

static weft_status check_int(const load_model *m, const char *key, int32_t i, int32_t e, int32_t lo,
                             int32_t hi, int32_t *out, weft_error *err) {
    meta_value v = m->meta->value(m, i, e);
    if ((v.as & META_INT) == 0) {
        return wrong_type(m, key, i, e, an_int.name, err);
    }
    if (v.i < lo || v.i > hi) {
        char range[40];
        int n = snprintf(range, sizeof range, "%d", lo);
        if (hi > lo) {
            snprintf(range + n, sizeof range - (size_t)n, " to %d", hi);
        }
        return wrong(m, key, i, e, NULL, range, err);
    }
    *out = (int32_t)v.i;
    return WEFT_OK;
}

/* *found = false, and WEFT_OK, when the key is absent and not required. */
static weft_status get(const load_model *m, const char *key, bool required, const wanted *w,
                       int32_t *at, bool *found, weft_error *err) {
    *at = look_up(m, key);
    *found = *at >= 0;
    if (!*found) {
        return required ? missing(m, key, w->name, err) : WEFT_OK;
    }
    return (m->meta->value(m, *at, -1).as & w->as) != 0 ? WEFT_OK
                                                        : wrong_type(m, key, *at, -1, w->name, err);
}

bool load_has(const load_model *m, const char *key) {
    return m->meta->find(m, key) >= 0;
}

weft_status load_get_int(const load_model *m, const char *key, bool required, int32_t lo,
                         int32_t hi, int32_t *out, weft_error *err) {
    int32_t at;
    bool found;
    weft_status s = get(m, key, required, &an_int, &at, &found, err);
    return s == WEFT_OK && found ? check_int(m, key, at, -1, lo, hi, out, err) : s;
}

weft_status load_get_real(const load_model *m, const char *key, bool required, double lo, double hi,
                          double *out, weft_error *err) {
    int32_t at;
    bool found;
    weft_status s = get(m, key, required, &a_real, &at, &found, err);
    if (s != WEFT_OK || !found) {
        return s;
    }
    double r = m->meta->value(m, at, -1).r;
    if (!(r >= lo && r <= hi)) {
        char range[80];
        snprintf(range, sizeof range, "%g to %g", lo, hi);
        return wrong(m, key, at, -1, NULL, range, err);
    }
    *out = r;
    return WEFT_OK;
}

weft_status load_get_flag(const load_model *m, const char *key, bool required, bool *out,
                          weft_error *err) {
    int32_t at;
    bool found;
    weft_status s = get(m, key, required, &a_flag, &at, &found, err);
    if (s == WEFT_OK && found) {
        *out = m->meta->value(m, at, -1).i != 0;
    }
    return s;
}

weft_status load_get_text(const load_model *m, const char *key, bool required, load_string *out,
                          weft_error *err) {
    int32_t at;
    bool found;
    weft_status s = get(m, key, required, &a_text, &at, &found, err);
    if (s == WEFT_OK && found) {
        *out = m->meta->value(m, at, -1).text;
    }
    return s;
}

/* ---- arrays ---- */

int32_t load_array_length(const load_model *m, const char *key) {
    int32_t at = m->meta->find(m, key);
    return at >= 0 ? m->meta->length(m, at) : -1;
}

/* The index of an array with an entry e. */
static weft_status find_entry(const load_model *m, const char *key, int32_t e, int32_t *at,
                              weft_error *err) {
    *at = look_up(m, key);
    if (*at < 0) {
        return missing(m, key, "an array", err);
    }
    int32_t n = m->meta->length(m, *at);
    if (n < 0) {
        return wrong_type(m, key, *at, -1, "an array", err);
    }
    if (e < 0 || e >= n) {
        return error_set_at(err, WEFT_ERR_FILE, m->meta->value(m, *at, -1).offset,
                            "%s has %d entries, expected more than %d", key, n, e);
    }
    return WEFT_OK;
}

weft_status load_array_int(const load_model *m, const char *key, int32_t i, int32_t lo, int32_t hi,
                           int32_t *out, weft_error *err) {
    int32_t at;
    weft_status s = find_entry(m, key, i, &at, err);
    if (s != WEFT_OK) {
        return s;
    }
    meta_value v = m->meta->value(m, at, i);
    if ((v.as & META_FLAG) != 0 && v.i >= lo && v.i <= hi) {
        *out = (int32_t)v.i;
        return WEFT_OK;
    }
    return check_int(m, key, at, i, lo, hi, out, err);
}

weft_status load_array_text(const load_model *m, const char *key, int32_t i, load_string *out,
                            weft_error *err) {
    int32_t at;
    weft_status s = find_entry(m, key, i, &at, err);
    if (s != WEFT_OK) {
        return s;
    }
    meta_value v = m->meta->value(m, at, i);
    if ((v.as & META_TEXT) == 0) {
        return wrong_type(m, key, at, i, a_text.name, err);
    }
    *out = v.text;
    return WEFT_OK;
}

weft_status load_refuse(const load_model *m, const char *key, const char *expected,
                        weft_error *err) {
    char value[SHOWN_BYTES] = "absent";
    int64_t offset = -1;
    int32_t at = m->meta->find(m, key);
    if (at >= 0) {
        m->meta->text(m, at, -1, value, sizeof value);
        offset = m->meta->value(m, at, -1).offset;
    }
    return error_set_at(err, WEFT_ERR_FILE, offset,
                        "%.100s is %s: weft does not compute this, expected %s",
                        at >= 0 ? m->meta->key(m, at) : key, value, expected);
}

/* ---- all keys ---- */

int32_t load_key_count(const load_model *m) {
    return m->meta->count(m);
}

const char *load_key_at(const load_model *m, int32_t i) {
    return m->meta->key(m, i);
}

void load_value_text(const load_model *m, int32_t i, char *out, size_t out_bytes) {
    m->meta->text(m, i, -1, out, out_bytes);
}

bool load_value_number(const load_model *m, int32_t i, double *out) {
    meta_value v = m->meta->value(m, i, -1);
    if ((v.as & META_REAL) != 0) {
        *out = v.r;
    } else if ((v.as & (META_INT | META_FLAG)) != 0) {
        *out = (double)v.i;
    } else {
        return false;
    }
    return true;
}

bool load_key_is_read(const load_model *m, int32_t i) {
    return m->key_read[i];
}
