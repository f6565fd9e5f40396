/* Patterns in Oniguruma's syntax (tokenizer.json) as PCRE2 patterns. What has another meaning there
 * is written anew; what PCRE2 cannot say is refused by name.
 *
 *   \s \S            White_Space: PCRE2's \s under UCP also takes U+180E
 *   \w \b \h \v      other sets than in PCRE2
 *   \p{Han}          the script, which PCRE2 widens to its extensions
 *   $ ^ .            at every line: MULTILINE; (?m) there is (?s) here
 *   X{1,3}+          two quantifiers, not a possessive one
 *   {,3}             {0,3} */
#include "tok/tok_impl.h"

#include <string.h>

#define SPACE                                                                                      \
    "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"  \
    "\\x{205F}\\x{3000}"
/* Of the numbers that are no digits, \w knows those of Latin-1, but not inside of a class. */
#define WORD_IN_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD WORD_IN_CLASS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

enum { MAX_DEPTH = 200 };

typedef struct reader {
    const char *p, *end;
    text_buf *out;
    const char *wrong;
    bool failed;             /* wrong is set, or no memory */
    size_t group[MAX_DEPTH]; /* where the open groups begin in out */
    int depth;
    size_t atom; /* where the last atom begins in out */
} reader;

static void put(reader *r, const char *text, size_t n) {
    r->failed = r->failed || !text_buf_add(r->out, text, n);
}

static void put_text(reader *r, const char *text) {
    put(r, text, strlen(text));
}

static void refuse(reader *r, const char *wrong) {
    if (!r->failed) {
        r->wrong = wrong;
        r->failed = true;
    }
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* ---- escapes ---- */

/* A name as both libraries read it: without case, blanks, "_" and "-". */
static bool same_name(const char *name, size_t n, const char *want) {
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        if (c == ' ' || c == '_' || c == '-') {
            continue;
        }
        c = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
        if (c != *want++) {
            return false;
        }
    }
    return *want == '\0';
}

/* What stands in \p{...} here for a name there; NULL: take it for a script. */
static const char *find_property(const char *name, size_t n) {
    static const char *const categories[] = {
        "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu",  "M",
        "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf",  "Pi",
        "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs", "Any",
    };
    static const struct {
        const char *there, *here;
    } long_names[] = {
        {"letter", "L"},
        {"uppercaseletter", "Lu"},
        {"lowercaseletter", "Ll"},
        {"titlecaseletter", "Lt"},
        {"modifierletter", "Lm"},
        {"otherletter", "Lo"},
        {"mark", "M"},
        {"nonspacingmark", "Mn"},
        {"number", "N"},
        {"decimalnumber", "Nd"},
        {"punctuation", "P"},
        {"symbol", "S"},
        {"separator", "Z"},
        {"other", "C"},
        {"space", "White_Space"},
        {"whitespace", "White_Space"},
        {"digit", "Nd"},
        {"alpha", "Alphabetic"},
        {"alphabetic", "Alphabetic"},
        {"upper", "Uppercase"},
        {"lower", "Lowercase"},
        {"uppercase", "Uppercase"},
        {"lowercase", "Lowercase"},
        {"emoji", "Emoji"},
        {"extendedpictographic", "Extended_Pictographic"},
        {"emojipresentation", "Emoji_Presentation"},
    };
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++) {
        char low[4] = {0};
        for (int k = 0; categories[i][k] != '\0'; k++) {
            char c = categories[i][k];
            low[k] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
        }
        if (same_name(name, n, low)) {
            return categories[i];
        }
    }
    for (size_t i = 0; i < sizeof long_names / sizeof long_names[0]; i++) {
        if (same_name(name, n, long_names[i].there)) {
            return long_names[i].here;
        }
    }
    return NULL;
}

/* r->p stands behind \p or \P. */
static void put_property(reader *r, char letter) {
    const char *close =
        r->p < r->end && *r->p == '{' ? memchr(r->p, '}', (size_t)(r->end - r->p)) : NULL;
    if (close == NULL) {
        refuse(r, "\\p without a name in braces");
        return;
    }
    const char *name = r->p + 1;
    bool negated = letter == 'P';
    if (name < close && *name == '^') {
        negated = !negated;
        name++;
    }
    for (const char *p = name; p < close; p++) {
        if (!is_letter(*p) && !is_digit(*p) && *p != '_' && *p != '-' && *p != ' ') {
            refuse(r, "a property with a sign in its name");
            return;
        }
    }
    const char *known = find_property(name, (size_t)(close - name));
    put_text(r, negated ? "\\P{" : "\\p{");
    if (known != NULL) {
        put_text(r, known);
    } else {
        put_text(r, "sc:");
        put(r, name, (size_t)(close - name));
    }
    put_text(r, "}");
    r->p = close + 1;
}

/* \x{H...}, \xHH, \uHHHH; r->p stands behind the letter. */
static void put_hex(reader *r, bool u) {
    const char *digits = r->p;
    bool braces = !u && digits < r->end && *digits == '{';
    digits += braces;
    size_t n = 0, most = braces ? 8 : u ? 4 : 2;
    while (n < most && digits + n < r->end && is_hex(digits[n])) {
        n++;
    }
    if (n == 0 || (u && n != 4) || (braces && (digits + n == r->end || digits[n] != '}'))) {
        refuse(r, "an unfinished \\x or \\u");
        return;
    }
    if (!braces && !u && n == 2 && (digits[0] > '7' || !is_digit(digits[0]))) {
        refuse(r, "\\x80 and above, which is a byte and no character");
        return;
    }
    put_text(r, "\\x{");
    put(r, digits, n);
    put_text(r, "}");
    r->p = digits + n + braces;
}

static void put_set(reader *r, const char *members, bool negated, bool in_class) {
    if (!in_class) {
        put_text(r, negated ? "[^" : "[");
    }
    put_text(r, members);
    if (!in_class) {
        put_text(r, "]");
    }
}

/* r->p stands on the backslash. */
static void put_escape(reader *r, bool in_class) {
    if (r->p + 1 == r->end) {
        refuse(r, "a backslash at the end");
        return;
    }
    char c = r->p[1];
    r->p += 2;
    bool negated = c >= 'A' && c <= 'Z';
    switch (c) {
    case 's':
    case 'S':
        if (in_class && negated) {
            put_text(r, "\\P{White_Space}");
        } else {
            put_set(r, SPACE, negated, in_class);
        }
        break;
    case 'd':
    case 'D':
        put_text(r, negated ? "\\P{Nd}" : "\\p{Nd}");
        break;
    case 'w':
    case 'W':
    case 'h':
    case 'H':
        if (in_class && negated) {
            refuse(r, "\\W or \\H inside of a class");
        }
        put_set(r,
                c == 'h' || c == 'H' ? "0-9a-fA-F"
                : in_class           ? WORD_IN_CLASS
                                     : WORD,
                negated, in_class);
        break;
    case 'b':
    case 'B':
        if (in_class) {
            put_text(r, "\\x{08}");
        } else {
            put_text(r, negated ? "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))"
                                : "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD
                                  "]))");
        }
        break;
    case 'p':
    case 'P':
        put_property(r, c);
        break;
    case 'x':
    case 'u':
        put_hex(r, c == 'u');
        break;
    case 'v':
        put_text(r, "\\x{0B}");
        break;
    default:
        if (is_letter(c) && strchr(in_class ? "nrtfae" : "nrtfaeAzZRkg", c) == NULL) {
            refuse(r, "an escape that weft does not know");
        }
        put(r, r->p - 2, 2);
    }
}

/* ---- classes, groups, quantifiers ---- */

/* r->p stands on "[". */
static void put_class(reader *r) {
    put(r, r->p++, 1);
    if (r->p < r->end && *r->p == '^') {
        put(r, r->p++, 1);
    }
    for (bool first = true; r->p < r->end && (first || *r->p != ']'); first = false) {
        if (*r->p == '\\') {
            put_escape(r, true);
        } else if (*r->p == '[') {
            refuse(r, "a class inside of a class");
        } else if (*r->p == '&' && r->p + 1 < r->end && r->p[1] == '&') {
            refuse(r, "&& inside of a class");
        } else {
            put(r, r->p++, 1);
        }
        if (r->failed) {
            return;
        }
    }
    if (r->p == r->end) {
        refuse(r, "an open class");
        return;
    }
    put(r, r->p++, 1);
}

/* r->p stands on "(". The flags of (?imx-imx) and (?imx: are copied, m as s. */
static void put_group_open(reader *r) {
    if (r->depth == MAX_DEPTH) {
        refuse(r, "groups nested too deeply");
        return;
    }
    r->group[r->depth++] = r->out->n;
    put(r, r->p++, 1);
    if (r->p + 1 >= r->end || *r->p != '?') {
        return;
    }
    const char *p = r->p + 1;
    while (p < r->end && (is_letter(*p) || *p == '-')) {
        p++;
    }
    if (p == r->end || (*p != ':' && *p != ')')) {
        return; /* (?= (?! (?<= (?> and the like */
    }
    put(r, r->p++, 1);
    for (; r->p < p; r->p++) {
        if (strchr("imx-", *r->p) == NULL) {
            refuse(r, "a flag other than i, m, x");
        }
        put(r, *r->p == 'm' ? "s" : r->p, 1);
    }
}

/* r->p stands on "{": a quantifier, or the character. */
static void put_brace(reader *r) {
    const char *p = r->p + 1, *low = p;
    while (p < r->end && is_digit(*p)) {
        p++;
    }
    bool has_low = p > low, comma = p < r->end && *p == ',';
    const char *high = comma ? p + 1 : p;
    for (p = high; p < r->end && is_digit(*p);) {
        p++;
    }
    if (p == r->end || *p != '}' || (!has_low && !(comma && p > high))) {
        r->atom = r->out->n;
        put_text(r, "\\{");
        r->p++;
        return;
    }
    put_text(r, has_low ? "{" : "{0");
    put(r, r->p + 1, (size_t)(p - r->p));
    r->p = p + 1;
    if (r->p < r->end && *r->p == '+') {
        text_buf tail = {0};
        bool ok = text_buf_add(&tail, r->out->data + r->atom, r->out->n - r->atom);
        r->out->n = r->atom;
        put_text(r, "(?:");
        put(r, tail.data, ok ? tail.n : 0);
        put_text(r, ")+");
        r->failed = r->failed || !ok;
        text_buf_free(&tail);
        r->p++;
    }
}

static void put_next(reader *r) {
    size_t begin = r->out->n;
    switch (*r->p) {
    case '\\':
        put_escape(r, false);
        r->atom = begin;
        break;
    case '[':
        put_class(r);
        r->atom = begin;
        break;
    case '(':
        put_group_open(r);
        break;
    case ')':
        r->atom = r->depth > 0 ? r->group[--r->depth] : begin;
        put(r, r->p++, 1);
        break;
    case '{':
        put_brace(r);
        break;
    case '*':
    case '+':
    case '?':
    case '|':
        put(r, r->p++, 1);
        break;
    default: {
        size_t n = utf8_first_bytes(r->p, (size_t)(r->end - r->p));
        put(r, r->p, n);
        r->p += n;
        r->atom = begin;
    }
    }
}

bool onig_translate(load_string pattern, text_buf *out, const char **wrong) {
    reader r = {.p = pattern.data, .end = pattern.data + pattern.bytes, .out = out};
    /* Tried from every blank of a long run that ends before the line does, this alone would be
     * quadratic; no later blank can do what the first could not. */
    if (string_is(pattern, "\\s+$")) {
        put_text(&r, "(?<![" SPACE "])");
    }
    while (r.p < r.end && !r.failed) {
        put_next(&r);
    }
    put(&r, "", 1);
    *wrong = r.wrong;
    return !r.failed;
}
