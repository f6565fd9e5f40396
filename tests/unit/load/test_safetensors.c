/* The safetensors reader: sound files give the values, hostile headers an error by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load/load.h"

/* Writes u64 header bytes | header | n_data bytes 0, 1, 2, ... to a temporary file. A header with
 * `claim` != 0 claims that length. */
static void write_file(char *path, const char *header, uint64_t claim, size_t n_data) {
    strcpy(path, "/tmp/weft_st_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "wb");
    uint64_t n = claim != 0 ? claim : strlen(header);
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, strlen(header), f);
    for (size_t i = 0; i < n_data; i++) {
        fputc((int)(i & 0xFF), f);
    }
    fclose(f);
}

typedef struct warned {
    int saved;
    FILE *file;
} warned;

static warned capture_begin(void) {
    warned w = {dup(2), tmpfile()};
    assert_non_null(w.file);
    dup2(fileno(w.file), 2);
    return w;
}

static void capture_end(warned w, char *text, size_t n) {
    dup2(w.saved, 2);
    close(w.saved);
    rewind(w.file);
    text[fread(text, 1, n - 1, w.file)] = '\0';
    fclose(w.file);
}

static void must_refuse(const char *header, uint64_t claim, size_t n_data, const char *name) {
    char path[64];
    write_file(path, header, claim, n_data);
    load_st *s = (load_st *)1;
    weft_error err = {.text = ""};
    weft_status status = load_st_open(path, &s, &err);
    unlink(path);
    if (status != WEFT_ERR_FILE || strstr(err.text, name) == NULL || strchr(err.text, '\n')) {
        fail_msg("%s: status %d, %s", header, (int)status, err.text);
    }
    assert_ptr_equal(s, (load_st *)1);
}

static void test_sound(void **state) {
    (void)state;
    char path[64], log[1000];
    /* padded with spaces, so that the data starts at a multiple of 8 */
    char header[400];
    snprintf(header, sizeof header, "%-240s",
             "{\"__metadata__\": {\"format\": \"pt\"}, \"b\": {\"dtype\": \"U8\", \"shape\": [3], "
             "\"data_offsets\": [8, 11]}, \"a\": {\"dtype\": \"F32\", \"shape\": [2, 1], "
             "\"data_offsets\": [0, 8]}, \"e\": {\"dtype\": \"I64\", \"shape\": [0, 4], "
             "\"data_offsets\": [0, 0]}}");
    write_file(path, header, 0, 11);
    load_st *s = NULL;
    weft_error err = {.text = ""};
    warned w = capture_begin();
    weft_status status = load_st_open(path, &s, &err);
    capture_end(w, log, sizeof log);
    unlink(path);
    assert_string_equal(err.text, "");
    assert_int_equal(status, WEFT_OK);
    assert_string_equal(log, "");
    load_st_tensor t;
    assert_true(load_st_find(s, "a", &t));
    assert_string_equal(t.dtype, "F32");
    assert_int_equal(t.n_dim, 2);
    assert_int_equal(t.dim[0], 2);
    assert_int_equal(t.dim[1], 1);
    assert_int_equal(t.bytes, 8);
    assert_memory_equal(t.data, "\0\1\2\3\4\5\6\7", 8);
    assert_true(load_st_find(s, "b", &t));
    assert_memory_equal(t.data, "\x08\x09\x0A", 3);
    assert_true(load_st_find(s, "e", &t));
    assert_int_equal(t.bytes, 0);
    assert_false(load_st_find(s, "c", &t));
    assert_false(load_st_find(s, "__metadata__", &t));
    load_st_close(s);
    load_st_close(NULL);
}

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"x\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}        "

static void test_header_length(void **state) {
    (void)state;
    must_refuse("", 8, 0, "header length 8");
    must_refuse("{}", 3, 0, "header length 3");
    must_refuse("{}", UINT64_C(1) << 63, 0, "header length 9223372036854775808");
    must_refuse("{}", UINT64_MAX, 0, "header length 18446744073709551615");
    must_refuse("{}", UINT64_MAX - 7, 0, "header length 18446744073709551608");
    must_refuse("{", 0, 0, "JSON");
    must_refuse("[]", 0, 0, "JSON");
    must_refuse("{} x", 0, 0, "JSON");
    must_refuse("{\"\xFF\": 1}", 0, 0, "JSON");
    char *deep = malloc(100001);
    memset(deep, '[', 100000);
    deep[100000] = '\0';
    must_refuse(deep, 0, 0, "JSON");
    free(deep);
}

/* Shape, type and range must agree, whatever they say. */
static void test_ranges(void **state) {
    (void)state;
    must_refuse(ONE("F32", "[1000,1000]", "[0,4]"), 0, 4, "tensor x");
    must_refuse(ONE("F32", "[4]", "[0,8]"), 0, 8, "tensor x"); /* bf16 data labelled F32 */
    must_refuse(ONE("F32", "[2]", "[0,7]"), 0, 8, "tensor x"); /* odd byte count */
    must_refuse(ONE("F32", "[1]", "[0,4]"), 0, 3, "truncated");
    must_refuse(ONE("F32", "[1]", "[4,0]"), 0, 8, "data_offsets");
    must_refuse(ONE("F32", "[1]", "[-4,0]"), 0, 8, "data_offsets");
    must_refuse(ONE("F32", "[1]", "[0]"), 0, 8, "data_offsets");
    must_refuse(ONE("F32", "[1]", "[0,4,8]"), 0, 8, "data_offsets");
    must_refuse(ONE("F32", "[1]", "[0,4.0]"), 0, 8, "data_offsets");
    must_refuse(ONE("F32", "[1]", "{}"), 0, 8, "data_offsets");
    must_refuse(ONE("F32", "[1]", "[9223372036854775804,9223372036854775807]"), 0, 8, "truncated");
    must_refuse(ONE("F32", "[1]", "[0,9223372036854775808]"), 0, 8, "JSON");
    must_refuse(ONE("F32", "[2147483648,4294967296]", "[0,0]"), 0, 8, "overflows");
    must_refuse(ONE("F32", "[4611686018427387904]", "[0,0]"), 0, 8, "overflows");
    must_refuse(ONE("F32", "[-1]", "[0,4]"), 0, 8, "dimension 0");
    must_refuse(ONE("F32", "[1.0]", "[0,4]"), 0, 8, "dimension 0");
    must_refuse(ONE("F32", "[true]", "[0,4]"), 0, 8, "dimension 0");
    must_refuse(ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 0, 8, "at most 8");
    must_refuse(ONE("F32", "4", "[0,4]"), 0, 8, "shape");
    must_refuse(ONE("F31", "[1]", "[0,4]"), 0, 8, "dtype F31");
    must_refuse(ONE("", "[1]", "[0,4]"), 0, 8, "dtype");
    must_refuse("{\"x\": 3}", 0, 8, "tensor x");
    must_refuse("{\"x\": {}}", 0, 8, "dtype");
    must_refuse("{\"a\\nb\": {}}", 0, 8, "tensor a\\x0Ab");
}

#define ITEM(name, offsets)                                                                        \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":" offsets "}"

static void test_overlaps(void **state) {
    (void)state;
    must_refuse("{" ITEM("k_proj", "[0,8]") "," ITEM("v_proj", "[0,8]") "}", 0, 8, "overlap");
    must_refuse("{" ITEM("k_proj", "[0,8]") "," ITEM("v_proj", "[7,15]") "}", 0, 15, "k_proj");
    must_refuse("{" ITEM("b", "[4,12]") "," ITEM("a", "[0,8]") "}", 0, 16,
                "tensors a and b overlap");
    must_refuse("{" ITEM("x", "[0,8]") "," ITEM("x", "[8,16]") "}", 0, 16, "duplicate");
}

/* Bytes that no tensor has: the header was damaged, or something else hides there. */
static void test_gaps(void **state) {
    (void)state;
    must_refuse("{" ITEM("a", "[0,8]") "," ITEM("b", "[16,24]") "}", 0, 24,
                "8 bytes of data before tensor b");
    must_refuse("{" ITEM("a", "[0,8]") "}", 0, 11, "3 bytes of data after the last tensor");
    must_refuse("{" ITEM("a", "[4,12]") "}", 0, 12, "4 bytes of data before tensor a");
    must_refuse("{}", 0, 1, "1 bytes of data");
    /* an empty tensor inside another one */
    must_refuse(
        "{" ITEM("a", "[0,8]") ",\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}", 0,
        8, "tensors a and e overlap");
}

static void test_metadata(void **state) {
    (void)state;
    must_refuse("{\"__metadata__\": 3}", 0, 0, "__metadata__");
    must_refuse("{\"__metadata__\": {\"a\": 3}}", 0, 0, "__metadata__");
    must_refuse("{\"\": {}}", 0, 0, "the name is empty");
    must_refuse(" {}", 0, 0, "does not start with {");
    must_refuse("\xEF\xBB\xBF{}", 0, 0, "does not start with {");
}

/* Types of less than a byte. */
static void test_small_types(void **state) {
    (void)state;
    must_refuse(ONE("F4", "[3]", "[0,2]"), 0, 2, "12 bits of F4");
    must_refuse(ONE("F6_E2M3", "[4]", "[0,4]"), 0, 4, "make 3 bytes");
    must_refuse(ONE("F4", "[4611686018427387904]", "[0,0]"), 0, 0, "overflows");
    char path[64];
    load_st *s = NULL;
    load_st_tensor t;
    write_file(path, ONE("F4", "[2,3]", "[0,3]"), 0, 3);
    assert_int_equal(load_st_open(path, &s, NULL), WEFT_OK);
    unlink(path);
    assert_true(load_st_find(s, "x", &t));
    assert_string_equal(t.dtype, "F4");
    assert_int_equal(t.bytes, 3);
    load_st_close(s);
}

static void test_unaligned(void **state) {
    (void)state;
    /* a header of 64 + 1 bytes puts an F32 at an odd address */
    const char *header = "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    char text[100];
    snprintf(text, sizeof text, "%-65s", header);
    must_refuse(text, 0, 4, "aligned");
    char path[64];
    snprintf(text, sizeof text, "%-64s", header);
    write_file(path, text, 0, 4);
    load_st *s = NULL;
    assert_int_equal(load_st_open(path, &s, NULL), WEFT_OK);
    unlink(path);
    load_st_close(s);
}

static void test_paths(void **state) {
    (void)state;
    load_st *s = NULL;
    weft_error err;
    assert_int_equal(load_st_open("/tmp", &s, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "cannot open"));
    assert_int_equal(load_st_open("/tmp/weft_no_such_file", &s, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "weft_no_such_file"));
    char path[64];
    strcpy(path, "/tmp/weft_st_XXXXXX");
    close(mkstemp(path));
    assert_int_equal(load_st_open(path, &s, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "truncated"));
    unlink(path);
    assert_null(s);
}

static void test_golden(void **state) {
    (void)state;
    load_st *s = NULL;
    weft_error err = {.text = ""};
    if (access(WEFT_GOLDEN "/gguf/F16.golden.safetensors", R_OK) != 0) {
        skip();
    }
    assert_int_equal(load_st_open(WEFT_GOLDEN "/gguf/F16.golden.safetensors", &s, &err), WEFT_OK);
    load_st_tensor t;
    assert_true(load_st_find(s, "p3.logits", &t));
    assert_int_equal(t.n_dim, 2);
    assert_int_equal(t.dim[0], 150);
    assert_int_equal(t.dim[1], 384);
    assert_true(load_st_find(s, "p0.ids", &t));
    assert_string_equal(t.dtype, "I64");
    load_st_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),       cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_ranges),      cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_gaps),        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_small_types), cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_paths),       cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
