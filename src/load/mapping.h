/* Read-only, shared mapping of a whole file: ranks and processes share its pages. */
#ifndef WEFT_LOAD_MAPPING_H
#define WEFT_LOAD_MAPPING_H

#include "base/status.h"

/* *bytes is NULL for an empty file. WEFT_ERR_FILE, "cannot open ...", for anything that is no
 * regular file. */
weft_status load_map_file(const char *path, const void **bytes, size_t *n_bytes, weft_error *err);
void load_unmap_file(const void *bytes, size_t n_bytes);
/* Puts a file's name in front of what went wrong in it. */
weft_status load_name_error(const char *shown, const weft_error *what, weft_error *err);

#endif
