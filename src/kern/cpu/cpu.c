/* The CPU kernel tables: which instruction-set levels exist, memory, and a rank's device (its threads
 * and scratch). */
#include "kern/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kern/cpu/attn_isa.h"
#include "kern/cpu/linear_isa.h"
#include "kern/cpu/sample.h"

const cpu_isa cpu_isa_scalar = {"scalar", cpu_has_scalar, &cpu_linear_scalar, &cpu_attn_scalar};
const cpu_isa cpu_isa_avx2 = {"avx2", cpu_has_avx2, &cpu_linear_avx2, &cpu_attn_avx2};
const cpu_isa cpu_isa_avx512 = {"avx512", cpu_has_avx512, &cpu_linear_avx512, &cpu_attn_avx512};
const cpu_isa cpu_isa_avx512vnni = {"avx512vnni", cpu_has_avx512vnni, &cpu_linear_avx512vnni,
                                    &cpu_attn_avx512};

/* ---- memory ---- */

enum {
    HUGE_BYTES = 2 << 20,
    MAP_FROM = 4 << 20 /* smaller reservations are not worth a mapping of huge pages */
};

static size_t round_up(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

/* A mapping of `bytes` (a multiple of HUGE_BYTES) that starts at a multiple of HUGE_BYTES: one huge
 * page more is mapped and the ends are given back. */
static void *map_huge(size_t bytes) {
    uint8_t *at = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    uint8_t *start = (uint8_t *)round_up((uintptr_t)at, HUGE_BYTES);
    size_t before = (size_t)(start - at);
    if (before)
        munmap(at, before);
    if (before < HUGE_BYTES)
        munmap(start + bytes, HUGE_BYTES - before);
    madvise(start, bytes, MADV_HUGEPAGE); /* a wish: without huge pages it is only slower */
    return start;
}

static weft_status cpu_reserve(size_t bytes, kern_mem *out, weft_error *err) {
    void *at = NULL;
    if (bytes < MAP_FROM) {
        size_t padded = round_up(bytes ? bytes : 1, CPU_LINE);
        at = aligned_alloc(CPU_LINE, padded);
        if (at)
            memset(at, 0, padded);
    } else if (bytes <= SIZE_MAX / 4) {
        at = map_huge(round_up(bytes, HUGE_BYTES));
    }
    if (!at)
        return error_set(err, WEFT_ERR_MEMORY, "cannot reserve %zu bytes of memory", bytes);
#ifdef WEFT_DEBUG
    memset(at, 0xFF, bytes); /* NaN in every float format: a read before a write shows */
#endif
    out->at = (uintptr_t)at;
    return WEFT_OK;
}

static void cpu_release(kern_mem mem, size_t bytes) {
    if (!mem.at)
        return;
    if (bytes < MAP_FROM)
        free(cpu_ptr(mem));
    else
        munmap(cpu_ptr(mem), round_up(bytes, HUGE_BYTES));
}

static void cpu_upload(kern_dev *dev, kern_mem dst, const void *src, size_t bytes) {
    (void)dev;
    if (bytes)
        memcpy(cpu_ptr(dst), src, bytes);
}

static void cpu_download(kern_dev *dev, void *dst, kern_mem src, size_t bytes) {
    (void)dev;
    if (bytes)
        memcpy(dst, cpu_ptr(src), bytes);
}

static void cpu_fill(kern_dev *dev, kern_mem dst, uint8_t byte, size_t bytes) {
    (void)dev;
    if (bytes)
        memset(cpu_ptr(dst), byte, bytes);
}

/* Operations are done when their call returns. */
static void cpu_drain(kern_dev *dev) {
    (void)dev;
}

/* ---- the device ---- */

static size_t thread_scratch(const kern_limits *l) {
    size_t linear = cpu_linear_scratch_bytes(l), attn = cpu_attn_scratch_bytes(l);
    return packed_align(linear > attn ? linear : attn);
}

static size_t cpu_scratch_bytes(int32_t n_thread, const kern_limits *l) {
    return (size_t)n_thread * thread_scratch(l);
}

static weft_status open_isa(const cpu_isa *isa, int32_t n_thread, const kern_limits *limits,
                            kern_dev **out, weft_error *err) {
    kern_dev *dev = calloc(1, sizeof *dev);
    if (!dev)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a CPU device");
    *dev = (kern_dev){.n_thread = n_thread,
                      .limits = *limits,
                      .isa = isa,
                      .scratch_bytes = thread_scratch(limits)};
    weft_status s = team_open(n_thread, &dev->team, err);
    if (s != WEFT_OK)
        goto undo_dev;
    kern_mem scratch;
    s = cpu_reserve(cpu_scratch_bytes(n_thread, limits), &scratch, err);
    if (s != WEFT_OK)
        goto undo_team;
    dev->scratch = cpu_ptr(scratch);
    *out = dev;
    return WEFT_OK;

undo_team:
    team_close(dev->team);
undo_dev:
    free(dev);
    return s;
}

static void cpu_close(kern_dev *dev) {
    if (!dev)
        return;
    team_close(dev->team);
    cpu_release((kern_mem){(uintptr_t)dev->scratch},
                cpu_scratch_bytes(dev->n_thread, &dev->limits));
    free(dev);
}

static weft_status open_scalar(int32_t n_thread, const kern_limits *limits, kern_dev **out,
                               weft_error *err) {
    return open_isa(&cpu_isa_scalar, n_thread, limits, out, err);
}

static weft_status open_avx2(int32_t n_thread, const kern_limits *limits, kern_dev **out,
                             weft_error *err) {
    return open_isa(&cpu_isa_avx2, n_thread, limits, out, err);
}

static weft_status open_avx512(int32_t n_thread, const kern_limits *limits, kern_dev **out,
                               weft_error *err) {
    return open_isa(&cpu_isa_avx512, n_thread, limits, out, err);
}

static weft_status open_avx512vnni(int32_t n_thread, const kern_limits *limits, kern_dev **out,
                                   weft_error *err) {
    return open_isa(&cpu_isa_avx512vnni, n_thread, limits, out, err);
}

static void cpu_host_run(kern_dev *dev, team_fn f, void *arg) {
    team_run(dev->team, f, arg);
}

/* ---- the tables ---- */

#define CPU_TABLE(isa_name, open_function, sample_level)                                           \
    {                                                                                              \
        .device = "cpu", .isa = (isa_name),                                                        \
        .profile = {.name = "exact",                                                               \
                    .page_tokens = 16,                                                             \
                    .kv_shards = 16,                                                               \
                    .max_leaves = 16,                                                              \
                    .leaf_multiple = CPU_BLOCK,                                                    \
                    .panel = CPU_PANEL},                                                           \
        .open = (open_function), .close = cpu_close, .scratch_bytes = cpu_scratch_bytes,           \
        .reserve = cpu_reserve, .release = cpu_release, .upload = cpu_upload,                      \
        .download = cpu_download, .fill = cpu_fill, .drain = cpu_drain,                            \
        .packed_bytes = cpu_packed_bytes, .pack = cpu_pack, .embed = cpu_embed,                    \
        .linear = cpu_linear, .swiglu = cpu_swiglu, .glu = cpu_glu, .act_make = cpu_act_make,      \
        .reduce_norm = cpu_reduce_norm, .softcap = cpu_softcap, .route = cpu_route,                \
        .experts = cpu_experts, .dispatch = cpu_dispatch, .arrive = cpu_arrive,                    \
        .moe_sum = cpu_moe_sum, .pick = cpu_pick, .qk_rope = cpu_qk_rope,                          \
        .mla_rope = cpu_mla_rope, .kv_store = cpu_kv_store, .kv_pack = cpu_kv_pack,                \
        .attn_fold = cpu_attn_fold, .attn_finish = cpu_attn_finish, .host_run = cpu_host_run,      \
        .exp_below = cpu_exp_below__##sample_level, .noise = cpu_noise__##sample_level,            \
    }

/* Best first. */
static const struct {
    const cpu_isa *isa;
    kern_table table;
} levels[] = {
    {&cpu_isa_avx512vnni, CPU_TABLE("avx512vnni", open_avx512vnni, avx2)},
    {&cpu_isa_avx512, CPU_TABLE("avx512", open_avx512, avx2)},
    {&cpu_isa_avx2, CPU_TABLE("avx2", open_avx2, avx2)},
    {&cpu_isa_scalar, CPU_TABLE("scalar", open_scalar, scalar)},
};
enum { N_LEVEL = sizeof levels / sizeof levels[0] };

/* "avx512vnni, avx512, ...": all levels, or those of this machine. */
static void list_levels(bool present_only, char *out, size_t out_bytes) {
    size_t at = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < N_LEVEL && at < out_bytes; i++)
        if (!present_only || levels[i].isa->present())
            at += (size_t)snprintf(out + at, out_bytes - at, "%s%s", at ? ", " : "",
                                   levels[i].isa->name);
    if (at == 0)
        snprintf(out, out_bytes, "none");
}

weft_status kern_cpu_table(const char *isa, const kern_table **out, weft_error *err) {
    const char *forced = isa ? NULL : getenv("WEFT_ISA");
    if (forced && *forced)
        isa = forced;
    bool any = !isa || strcmp(isa, "auto") == 0, known = false;
    for (int32_t i = 0; i < N_LEVEL; i++) {
        if (!any && strcmp(isa, levels[i].isa->name) != 0)
            continue;
        known = true;
        if (levels[i].isa->present()) {
            *out = &levels[i].table;
            return WEFT_OK;
        }
    }
    char all[64], here[64];
    list_levels(false, all, sizeof all);
    list_levels(true, here, sizeof here);
    return error_set(err, WEFT_ERR_SETUP,
                     "instruction set \"%s\"%s %s; this machine has: %s; weft has kernels for: %s",
                     any ? "auto" : isa, isa && isa == forced ? " (from WEFT_ISA)" : "",
                     known ? "is not on this machine" : "is unknown", here, all);
}
