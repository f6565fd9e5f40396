/* The vocabulary of a folder: tokenizer.json as it is, the tokens that begin and end a text, the
 * chat template. Every file may be absent. */
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/utf8.h"
#include "load/json.h"
#include "load/mapping.h"
#include "load/model.h"

enum { MAX_JSON_BYTES = 64 << 20, MAX_ID = (1 << 24) - 1 };

typedef struct vocab_reader {
    load_model *m;
    const char *folder;
    weft_error *err;
} vocab_reader;

/* Whether the folder has the file; names: as folder_file. */
static weft_status look_for(const vocab_reader *r, const char *name, const char **path,
                            const char **shown, bool *there) {
    weft_status s = folder_file(r->m, r->folder, name, path, shown, r->err);
    *there = s == WEFT_OK && access(*path, F_OK) == 0;
    return s;
}

/* The file's bytes, mapped until the model is closed; NULL when it is absent. */
static weft_status map_text(const vocab_reader *r, const char *name, load_string *out) {
    const char *path, *shown;
    bool there;
    weft_status s = look_for(r, name, &path, &shown, &there);
    if (s != WEFT_OK || !there) {
        return s;
    }
    load_part *p = &r->m->side[r->m->n_side];
    if ((s = load_map_part(path, shown, p, r->err)) != WEFT_OK) {
        return s;
    }
    r->m->n_side++;
    load_string text = {(const char *)p->bytes, p->n_bytes};
    if (text.bytes == 0) {
        return error_set(r->err, WEFT_ERR_FILE, "%s: the file is empty", shown);
    }
    if (utf8_valid_bytes(text.data, text.bytes) != text.bytes) {
        return error_set(r->err, WEFT_ERR_FILE, "%s: the file is not UTF-8", shown);
    }
    *out = text;
    return WEFT_OK;
}

/* *out NULL when the file is absent. */
static weft_status read_json(const vocab_reader *r, const char *name, const char **shown,
                             json_t **out) {
    const char *path;
    bool there;
    *out = NULL;
    weft_status s = look_for(r, name, &path, shown, &there);
    return s == WEFT_OK && there ? json_read_settings(path, *shown, MAX_JSON_BYTES, out, r->err)
                                 : s;
}

/* ---- first and last tokens ---- */

static weft_status read_id(const vocab_reader *r, const char *shown, const char *key,
                           const json_t *v, int32_t *out) {
    int64_t id;
    if (!json_as_integer(v, &id) || id < 0 || id > MAX_ID) {
        char text[100];
        json_show(v, text, sizeof text);
        return error_set(r->err, WEFT_ERR_FILE, "%s: %s is %s, expected the id of a token, 0 to %d",
                         shown, key, text, MAX_ID);
    }
    *out = (int32_t)id;
    return WEFT_OK;
}

/* One id or a list of them; *n_out stays 0 for a null or an absent one. */
static weft_status read_ids(const vocab_reader *r, const char *shown, const char *key,
                            const json_t *v, int32_t *out, int32_t max, int32_t *n_out) {
    if (v == NULL || json_is_null(v)) {
        return WEFT_OK;
    }
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > (size_t)max) {
        return error_set(r->err, WEFT_ERR_FILE, "%s: %s has %zu entries, expected at most %d",
                         shown, key, n, max);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        weft_status s = read_id(r, shown, key, one, &out[i]);
        if (s != WEFT_OK) {
            return s;
        }
    }
    *n_out = (int32_t)n;
    return WEFT_OK;
}

static weft_status read_both(const vocab_reader *r, const char *shown, const json_t *bos,
                             const json_t *eos) {
    load_vocab *v = &r->m->vocab;
    int32_t n_bos = v->bos >= 0;
    weft_status s = WEFT_OK;
    if (n_bos == 0) {
        s = read_ids(r, shown, "bos_token_id", bos, &v->bos, 1, &n_bos);
    }
    if (s == WEFT_OK && v->n_eos == 0) {
        s = read_ids(r, shown, "eos_token_id", eos, v->eos_ids, LOAD_MAX_EOS, &v->n_eos);
    }
    return s;
}

/* A member of config.json, of the text model where it describes more; NULL when there is none. */
static const json_t *config_member(load_model *m, const char *key, const char *text_key) {
    int32_t i = m->meta->find(m, key);
    i = i >= 0 ? i : m->meta->find(m, text_key);
    if (i < 0) {
        return NULL;
    }
    m->key_read[i] = true;
    return m->paths.value[i];
}

/* What generation_config.json does not say config.json may. */
static weft_status read_specials(const vocab_reader *r) {
    const char *shown;
    json_t *root;
    weft_status s = read_json(r, "generation_config.json", &shown, &root);
    if (s == WEFT_OK && root != NULL) {
        s = read_both(r, shown, json_object_get(root, "bos_token_id"),
                      json_object_get(root, "eos_token_id"));
    }
    json_decref(root);
    const json_t *bos = config_member(r->m, "bos_token_id", "text_config.bos_token_id");
    const json_t *eos = config_member(r->m, "eos_token_id", "text_config.eos_token_id");
    if (s == WEFT_OK) {
        const char *path;
        s = folder_file(r->m, r->folder, "config.json", &path, &shown, r->err);
    }
    return s == WEFT_OK ? read_both(r, shown, bos, eos) : s;
}

/* ---- tokenizer_config.json ---- */

/* Of a list of {"name", "template"} the one called default. */
static const json_t *pick_template(const json_t *v) {
    size_t i;
    const json_t *one;
    if (!json_is_array(v)) {
        return v;
    }
    json_array_foreach(v, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name != NULL && strcmp(name, "default") == 0) {
            return json_object_get(one, "template");
        }
    }
    return NULL;
}

static weft_status keep_text(const vocab_reader *r, const json_t *v, load_string *out) {
    load_string text = json_text(v);
    char *copy = load_arena_take(&r->m->arena, text.bytes + 1, 1);
    if (copy == NULL) {
        return error_set(r->err, WEFT_ERR_MEMORY, "no memory for a text of tokenizer_config.json");
    }
    memcpy(copy, text.data, text.bytes);
    *out = (load_string){copy, text.bytes};
    return WEFT_OK;
}

/* chat_template.jinja goes before what the configuration says. */
static weft_status read_template(const vocab_reader *r, const char *shown, const json_t *root) {
    load_string *out = &r->m->vocab.chat_template;
    weft_status s = map_text(r, "chat_template.jinja", out);
    const json_t *v = json_object_get(root, "chat_template");
    if (s != WEFT_OK || out->data != NULL || v == NULL || json_is_null(v)) {
        return s;
    }
    v = pick_template(v);
    if (!json_is_string(v)) {
        return error_set(r->err, WEFT_ERR_FILE,
                         "%s: chat_template is no string, and no list of {name, template} with one "
                         "called default",
                         shown);
    }
    return keep_text(r, v, out);
}

/* The token that begins a text: where the flag is there it goes before tokenizer.json (transformers 5).
 * DeepSeek's tokenizer.json has none, and the ids of config.json are those of the model that theirs
 * was made of. */
static weft_status read_lead(const vocab_reader *r, const char *shown, const json_t *root) {
    load_vocab *v = &r->m->vocab;
    const json_t *add = json_object_get(root, "add_bos_token"),
                 *text = json_object_get(root, "bos_token");
    text = json_is_object(text) ? json_object_get(text, "content") : text;
    v->add_bos = json_is_true(add) && v->tokenizer_json.data != NULL && json_is_string(text);
    v->drop_bos = json_is_false(add);
    if (json_is_true(json_object_get(root, "add_eos_token"))) {
        log_warn("%s: add_eos_token is true; weft puts no token behind a text", shown);
    }
    return json_is_string(text) ? keep_text(r, text, &v->bos_text) : WEFT_OK;
}

static weft_status read_tokenizer_config(const vocab_reader *r) {
    const char *shown;
    json_t *root;
    weft_status s = read_json(r, "tokenizer_config.json", &shown, &root);
    if (s == WEFT_OK && (s = read_template(r, shown, root)) == WEFT_OK) {
        s = read_lead(r, shown, root);
    }
    json_decref(root);
    return s;
}

weft_status load_read_folder_vocab(load_model *m, const char *folder, weft_error *err) {
    vocab_reader r = {m, folder, err};
    weft_status s;
    m->vocab = (load_vocab){.shown = m->shown_name, .bos = -1, .unk = -1};
    if ((s = map_text(&r, "tokenizer.json", &m->vocab.tokenizer_json)) != WEFT_OK ||
        (s = read_specials(&r)) != WEFT_OK || (s = read_tokenizer_config(&r)) != WEFT_OK) {
        return s;
    }
    if (m->vocab.tokenizer_json.data != NULL && m->vocab.n_eos == 0) {
        log_warn(
            "%s: no eos_token_id in generation_config.json or config.json: answers end only at "
            "their length",
            m->shown_name);
    }
    return WEFT_OK;
}
