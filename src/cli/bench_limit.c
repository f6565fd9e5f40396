/* weft bench latency: the least time that a run can take on this machine, from the work that
 * `weft plan` counts and the limits that `weft bench kernels` measures. */
#include "cli/bench.h"

weft_status bench_work(const model_desc *d, const weft_engine_params *p, bool decode,
                       int32_t n_token, explain_work *out, weft_error *err) {
    weft_engine_params one = *p;
    if (!decode && one.max_num_batched_tokens < n_token)
        one.max_num_batched_tokens = n_token;
    explain_ask ask = decode ? (explain_ask){.decode = &n_token, .n_decode = 1}
                             : (explain_ask){.prompt = &n_token, .n_prompt = 1};
    explain *e = NULL;
    weft_status s = explain_open(d, &one, &ask, &e, err);
    if (s == WEFT_OK)
        *out = e->work;
    explain_close(e);
    return s;
}

weft_status bench_peaks(int32_t n_thread, double peak[KERN_N_PEAK], weft_error *err) {
    kern_peaks *p = NULL;
    weft_status s = kern_cpu_peaks_open(n_thread, &p, err);
    for (int32_t i = 0; s == WEFT_OK && i < KERN_N_PEAK; i++)
        peak[i] = kern_peaks_measure(p, (kern_peak)i);
    kern_peaks_close(p);
    return s;
}
