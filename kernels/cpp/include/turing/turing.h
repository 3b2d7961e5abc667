/* The C interface of turing_native: a language model on the CPU, one call per step.
 *
 * Functions that can fail return 0 or a valid pointer on success, and otherwise -1 or NULL with a
 * message in `error` (cut to `error_size` bytes, the final zero included). An engine is used by
 * one thread at a time. */
#ifndef TURING_TURING_H_
#define TURING_TURING_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TURING_ABI_VERSION 2
#define TURING_API __attribute__((visibility("default")))

typedef struct turing_engine turing_engine;

enum turing_quantize { TURING_QUANTIZE_NONE = 0, TURING_QUANTIZE_W4 = 4, TURING_QUANTIZE_W8 = 8 };

typedef struct {
  const char* path; /* a GGUF file or a safetensors folder */
  const char* isa;  /* "" = the best; else portable, avx2, avx512, avx512_bf16 or neon */
  int32_t threads;  /* 0 = the cores this process may use */
  int32_t quantize; /* what F32, F16 and BF16 matrices become, a turing_quantize */
  int32_t exact;    /* fp32 activations and pages instead of int8 and bf16 */
  int32_t slots;    /* sequences that may be in a step together */
  int32_t max_rows; /* rows of the largest step */
  int64_t pages;    /* KV pages of 64 tokens; 0 = as many as fit into kv_bytes */
  int64_t kv_bytes;
} turing_options;

typedef struct {
  int64_t pages;
  int64_t kv_bytes_per_token;
  int32_t vocab_size;
  int32_t context; /* tokens that the model was trained for */
  int32_t threads;
  const char* isa;
} turing_info;

/* What a slot asks of sampling. Order of application: bias, repetition, frequency and presence
 * penalties, banned ids while fewer than min_tokens are out, the chunk's mask; then the arg-max
 * (greedy) or a draw after temperature, min_p, top_k and top_p, keyed by seed and position. */
typedef struct {
  double temperature;
  double top_p;
  double min_p;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t top_k; /* <= 0 = no limit */
  int32_t min_tokens;
  int32_t logprobs; /* alternatives to report per token, -1 = no log-probabilities */
  int32_t greedy;
  int64_t seed;
} turing_sampling;

typedef struct {
  const int32_t* data;
  int64_t count;
} turing_ids;

/* A step. Chunk i is `lengths[i]` consecutive tokens of one sequence from position starts[i] on;
 * its ids follow those of chunk i - 1, its page table those of chunk i - 1. */
typedef struct {
  int32_t chunks;
  const int32_t* slots;
  const int32_t* starts;
  const int32_t* lengths;
  const int32_t* page_counts;
  const int32_t* samples; /* whether to sample behind the chunk's last token */
  const int32_t* ids;
  const int32_t* pages;
  /* NULL, or per chunk NULL or the ids that it may sample, at least one: id i is bit i % 32 of word
   * i / 32 */
  const uint32_t* const* masks;
} turing_step;

/* Room for the results of a step, one place per chunk. */
typedef struct {
  int32_t* ids;     /* -1 where nothing was sampled */
  float* logprobs;  /* of ids, where the slot asked */
  int32_t* top_ids; /* [chunks][top_stride], most likely first; may be NULL */
  float* top;
  int32_t top_stride;
  float* logits; /* NULL, or [sampled chunks][vocab_size] for the raw logits */
} turing_result;

TURING_API int32_t turing_abi_version(void);
/* Why a model cannot be run, without loading its weights. */
TURING_API int turing_check(const char* path, char* error, size_t error_size);
TURING_API turing_engine* turing_open(const turing_options* options, char* error,
                                      size_t error_size);
TURING_API void turing_close(turing_engine* engine);
TURING_API turing_info turing_describe(const turing_engine* engine);
TURING_API int turing_start(turing_engine* engine, int32_t slot, const turing_sampling* sampling,
                            turing_ids prompt, turing_ids output, turing_ids banned,
                            turing_ids bias_ids, const float* biases, char* error,
                            size_t error_size);
TURING_API int turing_stop(turing_engine* engine, int32_t slot, char* error, size_t error_size);
TURING_API int turing_run(turing_engine* engine, const turing_step* step,
                          const turing_result* result, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif
