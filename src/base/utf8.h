/* UTF-8 by RFC 3629: no overlong forms, no surrogates, nothing past U+10FFFF. */
#ifndef WEFT_BASE_UTF8_H
#define WEFT_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Looks at the first character of p[0..n), n >= 1.
 *   k > 0: the first k bytes are a whole character
 *   0:     all n bytes are the beginning of a character (n <= 3)
 *   -k:    the first k bytes are a maximal bad sequence: the longest beginning of a character that
 *          the next byte does not continue, or one byte that begins none
 * Worked: E4 BD 20 -> -2; E4 BD -> 0; F0 80 -> -1 (80 cannot follow F0); FF -> -1. */
int utf8_step(const uint8_t *p, size_t n);
/* Length of the longest valid beginning; equals `bytes` when all of it is valid. */
size_t utf8_valid_bytes(const char *text, size_t bytes);

#endif
