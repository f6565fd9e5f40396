/* A GGUF's vocabulary -> pipe. tokenizer.ggml.pre is a name only; what it stands for is known here:
 * the steps of the tokenizer.json that models with this name were trained with. */
#include "tok/tok_impl.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define BLOCK "\xE2\x96\x81" /* U+2581, a blank inside of a token */

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K(numbers)                                                                            \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(numbers, suffix)                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER  \
    "*" suffix "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL
#define O200K CASED("\\p{N}{1,3}", CONTRACTION "?")
/* Classes as the models' files list them; escaped, since editors compose characters. The first: letters
 * of scripts with case. */
#define CASED_LETTERS                                                                              \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                 \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-"                 \
    "\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-"                  \
    "\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"               \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"                 \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"                 \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}"                 \
    "\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-"                  \
    "\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}"                  \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}"                 \
    "\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}"                   \
    "\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-"                  \
    "\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}"                   \
    "\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}"                  \
    "\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}"                 \
    "\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}"                 \
    "\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-"                     \
    "\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"                    \
    "\\x{1E900}-\\x{1E943}"
#define EAST_ASIAN "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"
#define KANA_HAN "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define DEEPSEEK_PUNCTUATION                                                                       \
    "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-"               \
    "\\x{3002}]+"
#define DEEPSEEK_V3                                                                                \
    "\\p{N}{1,3}", KANA_HAN,                                                                       \
        "[!\"#$%&'()*+,\\-./"                                                                      \
        ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}"                   \
        "\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"

enum { MAX_CUT = 6 };

/* All steps of a name: NFC, cuts in order, the byte alphabet. */
typedef struct preset {
    const char *names; /* with one blank between */
    bool nfc;
    bool add_bos; /* where the file does not say */
    bpe_whole whole;
    const char *cut[MAX_CUT];
} preset;

static const preset presets[] = {
    {.names = "gpt-2 phi-2 jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum",
     .cut = {pretok_gpt2}},
    {.names = "mpt olmo", .nfc = true, .cut = {pretok_gpt2}},
    {.names = "smollm starcoder refact codeshell minerva-7b exaone mellum2",
     .cut = {"\\p{N}", pretok_gpt2}},
    {.names = "command-r", .nfc = true, .cut = {"\\p{N}", pretok_gpt2}},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .add_bos = true,
     .whole = BPE_WHOLE_ALWAYS,
     .cut = {CL100K("\\p{N}{1,3}")}},
    {.names = "dbrx smaug-bpe chatglm-bpe", .cut = {CL100K("\\p{N}{1,3}")}},
    {.names = "glm4 glm5", .whole = BPE_WHOLE_ALWAYS, .cut = {CL100K("\\p{N}{1,3}")}},
    {.names = "qwen2 deepseek-r1-qwen stablelm2", .nfc = true, .cut = {CL100K("\\p{N}")}},
    {.names = "hunyuan solar-open grok-2 kormo megrez", .cut = {CL100K("\\p{N}")}},
    {.names = "qwen35",
     .nfc = true,
     .cut = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+"
                         "[\\r\\n]*|" TAIL}},
    {.names = "minicpm5", .whole = BPE_WHOLE_ALWAYS, .cut = {"\\p{N}{1,3}", CL100K("\\p{N}+")}},
    {.names = "laguna", .cut = {"[^\\n]+|[\\n]+", CL100K("\\p{N}")}},
    {.names = "deepseek-llm",
     .cut = {"[\\r\\n]", "\\s?[" CASED_LETTERS "]+", DEEPSEEK_PUNCTUATION, "\\s+$", EAST_ASIAN,
             "\\p{N}"}},
    {.names = "deepseek-coder",
     .cut = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", EAST_ASIAN, "\\p{N}"}},
    {.names = "deepseek-v3 hunyuan-dense joyai-llm hy_v4", .cut = {DEEPSEEK_V3}},
    {.names = "falcon", .cut = {"[\\p{P}!-/:-@\\[-`{-~]+", pretok_gpt2, "[0-9][0-9][0-9]"}},
    {.names = "poro-chat bloom gpt3-finnish", .cut = {BLOOM}},
    {.names = "viking", .cut = {BLOOM, "\\p{N}"}},
    {.names = "tekken", .add_bos = true, .whole = BPE_WHOLE_ALWAYS, .cut = {CASED("\\p{N}", "")}},
    {.names = "gpt-4o llama4", .whole = BPE_WHOLE_ALWAYS, .cut = {O200K}},
    {.names = "kanana2 talkie minimax-m2", .cut = {O200K}},
    {.names = "tiny_aya cohere2moe", .cut = {"\\d{1,3}(?=(?:\\d{3})*\\b)", O200K}},
    {.names = "superbpe", .cut = {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
    {.names = "bailingmoe bailingmoe2 llada-moe",
     .cut = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++"
             "[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {.names = "seed-coder",
     .cut = {CONTRACTION
             "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" TAIL}},
    {.names = "exaone-moe",
     .cut = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?"
                         "[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {.names = "youtu",
     .whole = BPE_WHOLE_ALWAYS,
     .cut = {"[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}"
             "\\x{2018}\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}"
             "\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" KANA_HAN,
             CASED("\\p{N}", CONTRACTION "?")}},
};
enum { N_PRESET = sizeof presets / sizeof presets[0] };

static weft_status refuse_pre(const char *name, weft_error *err) {
    char known[800];
    int n = 0;
    for (int i = 0; i < N_PRESET; i++) {
        n += snprintf(known + n, sizeof known - (size_t)n, "%s%s", i > 0 ? " " : "",
                      presets[i].names);
    }
    if (name == NULL) {
        return error_set(err, WEFT_ERR_FILE, "tokenizer.ggml.pre is missing; known: %s", known);
    }
    return error_set(err, WEFT_ERR_FILE, "tokenizer.ggml.pre is \"%.80s\"; known: %s", name, known);
}

static const preset *find_preset(const char *name) {
    size_t n = name != NULL ? strlen(name) : 0;
    for (int i = 0; i < N_PRESET && n > 0; i++) {
        for (const char *p = presets[i].names; p != NULL; p = strchr(p, ' ')) {
            p += *p == ' ';
            if (strncmp(p, name, n) == 0 && (p[n] == ' ' || p[n] == '\0')) {
                return &presets[i];
            }
        }
    }
    return NULL;
}

/* ---- tokens ---- */

static bool is_control(uint8_t type) {
    return type == LOAD_TOKEN_CONTROL || type == LOAD_TOKEN_UNKNOWN;
}

static weft_status no_memory(weft_error *err) {
    return error_set(err, WEFT_ERR_MEMORY, "no memory for the vocabulary");
}

/* Texts, types, the list of added tokens. */
static weft_status take_tokens(tok *t, const load_vocab *vocab, weft_error *err) {
    t->n_token = vocab->n_token;
    weft_status status = tok_take_tokens(t, err);
    if (status != WEFT_OK) {
        return status;
    }
    t->added = load_arena_take(&t->arena, (size_t)t->n_token + 1, sizeof *t->added);
    if (t->added == NULL) {
        return no_memory(err);
    }
    for (int32_t id = 0; id < t->n_token; id++) {
        load_string text = t->text[id] = vocab->token[id];
        uint8_t type = t->type[id] = vocab->type[id];
        t->decoder.piece[id] = text;
        if (!is_control(type) && type != LOAD_TOKEN_USER) {
            continue;
        }
        /* A bad token could cut the text inside a character. */
        if (utf8_valid_bytes(text.data, text.bytes) != text.bytes) {
            return error_set(err, WEFT_ERR_FILE,
                             "tokenizer.ggml.tokens[%d]: an added token must be valid UTF-8", id);
        }
        t->added[t->n_added++] = (tok_added){.text = text, .id = id, .special = is_control(type)};
    }
    return WEFT_OK;
}

/* "left right" -> pairs. The blank is looked for behind the first character, which may be one. */
static weft_status take_merges(tok *t, const load_vocab *vocab, bpe_config *config,
                               weft_error *err) {
    bpe_merge *merge = load_arena_take(&t->arena, (size_t)vocab->n_merge + 1, sizeof *merge);
    if (merge == NULL) {
        return no_memory(err);
    }
    for (int32_t i = 0; i < vocab->n_merge; i++) {
        load_string m = vocab->merge[i];
        if (i == 0 && m.bytes >= 8 && memcmp(m.data, "#version", 8) == 0) {
            continue; /* head line of a merges.txt */
        }
        const char *blank = m.bytes > 1 ? memchr(m.data + 1, ' ', m.bytes - 1) : NULL;
        size_t left = blank != NULL ? (size_t)(blank - m.data) : 0;
        if (left == 0 || left + 1 == m.bytes) {
            char shown[64];
            return error_set(
                err, WEFT_ERR_FILE,
                "tokenizer.ggml.merges[%d] = \"%s\" is not two tokens with a blank between", i,
                string_show(m, shown));
        }
        merge[config->n_merge++] = (bpe_merge){{m.data, left}, {blank + 1, m.bytes - left - 1}};
    }
    config->merge = merge;
    return WEFT_OK;
}

static weft_status open_bpe(tok *t, const load_vocab *vocab, bpe_config *config, weft_error *err) {
    uint8_t *reach = load_arena_take(&t->arena, (size_t)t->n_token + 1, sizeof *reach);
    if (reach == NULL) {
        return no_memory(err);
    }
    for (int32_t id = 0; id < t->n_token; id++) {
        bool never = is_control(t->type[id]) || t->type[id] == LOAD_TOKEN_BYTE;
        reach[id] = never ? BPE_REACH_NEVER : BPE_REACH_ALWAYS;
    }
    config->n_token = t->n_token;
    config->text = t->text;
    config->reach = reach;
    config->merge_name = "tokenizer.ggml.merges";
    config->token_name = "tokenizer.ggml.tokens";
    /* with the byte alphabet every byte has a token, or the file has a hole */
    config->unk = config->byte_fallback ? vocab->unk : -1;
    if (config->score == NULL) {
        if (vocab->n_merge <= 0) {
            return error_set(err, WEFT_ERR_FILE, "tokenizer.ggml.merges is missing or empty");
        }
        weft_status status = take_merges(t, vocab, config, err);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return bpe_open(config, &t->bpe, err);
}

static weft_status lead_with(tok *t, int32_t bos, weft_error *err) {
    t->lead = load_arena_take(&t->arena, 1, sizeof *t->lead);
    if (t->lead == NULL) {
        return no_memory(err);
    }
    t->lead[0] = bos;
    t->n_lead = 1;
    return WEFT_OK;
}

/* BOS where the file does not say; tok_create puts one that it asks for. */
static weft_status set_lead(tok *t, const load_vocab *vocab, bool usual, weft_error *err) {
    bool lead = usual && vocab->add_bos_unsaid && vocab->bos >= 0;
    return lead ? lead_with(t, vocab->bos, err) : WEFT_OK;
}

/* The first converters wrote "no" for Gemma 4, which does not work without. */
static weft_status lead_gemma4(tok *t, const load_vocab *vocab, weft_error *err) {
    if (vocab->bos < 0 || vocab->add_bos) {
        return WEFT_OK;
    }
    if (!vocab->add_bos_unsaid) {
        log_warn(
            "tokenizer.ggml.add_bos_token is false: not followed, Gemma 4 needs its bos token");
    }
    return lead_with(t, vocab->bos, err);
}

/* ---- model gpt2: the byte alphabet ---- */

/* A few files have plain tokens that are not in the alphabet: no text becomes them, and they stay as
 * they are. Many of them are a file that does not use the alphabet. */
static weft_status decode_alphabet(tok *t, weft_error *err) {
    size_t total = 1;
    int32_t n_outside = 0, outside = -1;
    for (int32_t id = 0; id < t->n_token; id++) {
        total += t->text[id].bytes;
    }
    char *to = load_arena_take(&t->arena, total, 1);
    if (to == NULL) {
        return no_memory(err);
    }
    for (int32_t id = 0; id < t->n_token; id++) {
        size_t n = 0;
        if (is_control(t->type[id]) || t->type[id] == LOAD_TOKEN_USER) {
            continue;
        }
        if (alphabet_decode(t->text[id], to, &n)) {
            t->decoder.piece[id] = (load_string){to, n};
            to += n;
        } else if (t->type[id] != LOAD_TOKEN_UNUSED) { /* "[PAD7 ]" and the like */
            n_outside++;
            outside = outside < 0 ? id : outside;
        }
    }
    if (n_outside > t->n_token / 100) {
        char shown[64];
        return error_set(
            err, WEFT_ERR_FILE,
            "%d of tokenizer.ggml.tokens, the first is [%d] = \"%s\", have characters "
            "outside the byte alphabet of GPT-2, and types that are not those of added "
            "tokens",
            n_outside, outside, string_show(t->text[outside], shown));
    }
    return WEFT_OK;
}

static weft_status from_gpt2(tok *t, const load_vocab *vocab, weft_error *err) {
    const preset *p = find_preset(vocab->pre);
    if (p == NULL) {
        return refuse_pre(vocab->pre, err);
    }
    weft_status status = take_tokens(t, vocab, err);
    bpe_config config = {.whole = p->whole};
    if (status != WEFT_OK || (status = decode_alphabet(t, err)) != WEFT_OK ||
        (status = open_bpe(t, vocab, &config, err)) != WEFT_OK ||
        (status = set_lead(t, vocab, p->add_bos, err)) != WEFT_OK) {
        return status;
    }
    if (p->nfc) {
        status = tok_add_norm(t, (norm_step){.kind = NORM_FORM, .compose = true}, err);
    }
    for (int i = 0; i < MAX_CUT && p->cut[i] != NULL && status == WEFT_OK; i++) {
        status = tok_add_cut(t, p->cut[i], err);
    }
    return status != WEFT_OK ? status : tok_add_pretok(t, (pretok_step){.kind = PRETOK_BYTES}, err);
}

/* ---- models llama (SentencePiece) and gemma4: whole characters, byte tokens ---- */

/* Plain tokens spell a blank U+2581; added ones are text as they are. */
static weft_status decode_blocks(tok *t, weft_error *err) {
    t->decoder.byte = load_arena_take(&t->arena, (size_t)t->n_token + 1, sizeof *t->decoder.byte);
    if (t->decoder.byte == NULL) {
        return no_memory(err);
    }
    for (int32_t id = 0; id < t->n_token; id++) {
        load_string text = t->text[id];
        int byte = t->type[id] == LOAD_TOKEN_BYTE ? tok_byte_token(text) : -1;
        t->decoder.byte[id] = (int16_t)byte;
        if (t->type[id] == LOAD_TOKEN_BYTE && byte < 0) {
            char shown[64];
            return error_set(err, WEFT_ERR_FILE,
                             "tokenizer.ggml.tokens[%d] = \"%s\" has the type of a byte, expected "
                             "<0x00> to <0xFF>",
                             id, string_show(text, shown));
        }
        bool plain = t->type[id] == LOAD_TOKEN_NORMAL || t->type[id] == LOAD_TOKEN_UNUSED;
        if (byte < 0 && !(plain && memmem(text.data, text.bytes, BLOCK, 3) != NULL)) {
            continue;
        }
        load_string piece = string_copy(&t->arena, text);
        char *to = (char *)(uintptr_t)piece.data;
        if (to == NULL) {
            return no_memory(err);
        }
        piece.bytes = 0;
        for (size_t i = 0; byte < 0 && i < text.bytes;) {
            bool block = text.bytes - i >= 3 && memcmp(text.data + i, BLOCK, 3) == 0;
            to[piece.bytes++] = block ? ' ' : text.data[i];
            i += block ? 3 : 1;
        }
        if (byte >= 0) {
            to[piece.bytes++] = (char)byte;
        }
        t->decoder.piece[id] = piece;
    }
    return WEFT_OK;
}

static weft_status add_blocks(tok *t, bool prefix, weft_error *err) {
    static const load_string block = {BLOCK, 3}, blank = {" ", 1};
    norm_step replace = {.kind = NORM_REPLACE, .content = block};
    weft_status status = WEFT_OK;
    if (prefix) {
        status = tok_add_norm(t, (norm_step){.kind = NORM_PREPEND, .content = block}, err);
    }
    if (status == WEFT_OK) {
        status = regex_open_literal(blank, &replace.pattern, err);
    }
    return status != WEFT_OK ? status : tok_add_norm(t, replace, err);
}

static weft_status from_blocks(tok *t, const load_vocab *vocab, bool scores, weft_error *err) {
    if (scores && vocab->score == NULL) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.ggml.scores is missing, and tokenizer.ggml.model \"%s\" merges "
                         "by it",
                         vocab->model);
    }
    bool prefix = scores && vocab->add_space_prefix;
    bpe_config config = {.score = scores ? vocab->score : NULL,
                         .byte_fallback = true,
                         .fuse_unk = true,
                         .whole = scores ? BPE_WHOLE_NEVER : BPE_WHOLE_NEWLINES};
    weft_status status = take_tokens(t, vocab, err);
    if (status != WEFT_OK || (status = decode_blocks(t, err)) != WEFT_OK ||
        (status = open_bpe(t, vocab, &config, err)) != WEFT_OK ||
        (status = add_blocks(t, prefix, err)) != WEFT_OK ||
        (status = scores ? set_lead(t, vocab, true, err) : lead_gemma4(t, vocab, err)) != WEFT_OK) {
        return status;
    }
    if (prefix) {
        t->decoder.strip_point = ' ';
        t->decoder.n_strip_start = 1;
    }
    return scores ? WEFT_OK : tok_add_cut(t, "[^\\n]+|[\\n]+", err);
}

weft_status tok_from_gguf(tok *t, const load_vocab *vocab, weft_error *err) {
    const char *model = vocab->model != NULL ? vocab->model : "";
    if (strcmp(model, "gpt2") == 0) {
        return from_gpt2(t, vocab, err);
    }
    if (strcmp(model, "llama") == 0 || strcmp(model, "gemma4") == 0) {
        return from_blocks(t, vocab, strcmp(model, "llama") == 0, err);
    }
    const char *kind = strcmp(model, "bert") == 0   ? " (WordPiece)"
                       : strcmp(model, "t5") == 0   ? " (Unigram)"
                       : strcmp(model, "rwkv") == 0 ? " (RWKV)"
                                                    : "";
    return error_set(err, WEFT_ERR_FILE,
                     "tokenizer.ggml.model is \"%.80s\"%s; known: gpt2 (byte-level BPE), llama "
                     "(SentencePiece BPE), gemma4",
                     model, kind);
}
