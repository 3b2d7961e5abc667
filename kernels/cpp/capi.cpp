// The C interface: plain data in, plain data out, exceptions to messages.
#include <algorithm>
#include <cstring>
#include <exception>
#include <vector>

#include "checkpoint.h"
#include "engine.h"
#include "error.h"
#include "turing/turing.h"

struct turing_engine {
  explicit turing_engine(const turing::EngineOptions& options) : engine(options) {}

  turing::Engine engine;
  std::vector<turing::Chunk> chunks;
};

namespace {

using turing::fail;

void report(const char* message, char* error, size_t error_size) {
  if (error == nullptr || error_size == 0) return;
  const size_t length = std::min(std::strlen(message), error_size - 1);
  std::memcpy(error, message, length);
  error[length] = '\0';
}

// Runs `body` and returns 0, or reports what it threw and returns -1.
template <class Body>
int guarded(char* error, size_t error_size, Body body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::bad_alloc&) {
    report("out of memory", error, error_size);
  } catch (const std::exception& failure) {
    report(failure.what(), error, error_size);
  }
  return -1;
}

turing::Quantize quantize_of(int32_t value) {
  switch (value) {
    case TURING_QUANTIZE_NONE: return turing::Quantize::None;
    case TURING_QUANTIZE_W4: return turing::Quantize::W4;
    case TURING_QUANTIZE_W8: return turing::Quantize::W8;
    default: fail("quantize must be 0, 4 or 8");
  }
}

std::span<const int32_t> span_of(turing_ids ids) {
  return {ids.data, static_cast<size_t>(ids.count)};
}

turing::SamplingOptions options_of(const turing_sampling& from, turing_ids banned,
                                   turing_ids bias_ids, const float* biases) {
  turing::SamplingOptions options;
  options.temperature = from.temperature;
  options.top_k = from.top_k;
  options.top_p = from.top_p;
  options.min_p = from.min_p;
  options.repetition_penalty = from.repetition_penalty;
  options.frequency_penalty = from.frequency_penalty;
  options.presence_penalty = from.presence_penalty;
  options.seed = from.seed;
  options.min_tokens = from.min_tokens;
  options.logprobs = from.logprobs;
  options.greedy = from.greedy != 0;
  options.banned.assign(banned.data, banned.data + banned.count);
  for (int64_t i = 0; i < bias_ids.count; i++)
    options.bias.emplace_back(bias_ids.data[i], biases[i]);
  return options;
}

void fill_chunks(std::vector<turing::Chunk>& chunks, const turing_step& step) {
  chunks.clear();
  const int32_t* ids = step.ids;
  const int32_t* pages = step.pages;
  for (int32_t i = 0; i < step.chunks; i++) {
    if (step.lengths[i] < 0 || step.page_counts[i] < 0) fail("a length is negative");
    const auto length = static_cast<size_t>(step.lengths[i]);
    const auto count = static_cast<size_t>(step.page_counts[i]);
    chunks.push_back({step.slots[i],
                      step.starts[i],
                      {ids, length},
                      {pages, count},
                      step.samples[i] != 0,
                      step.masks == nullptr ? nullptr : step.masks[i]});
    ids += length;
    pages += count;
  }
}

void write_choice(const turing::Choice& choice, int32_t chunk, const turing_result& result) {
  result.ids[chunk] = choice.id;
  result.logprobs[chunk] = choice.logprob;
  const size_t place = static_cast<size_t>(chunk) * static_cast<size_t>(result.top_stride);
  for (size_t i = 0; i < choice.top.size() && i < static_cast<size_t>(result.top_stride); i++) {
    result.top_ids[place + i] = choice.top[i].first;
    result.top[place + i] = choice.top[i].second;
  }
}

}  // namespace

int32_t turing_abi_version(void) { return TURING_ABI_VERSION; }

int turing_check(const char* path, char* error, size_t error_size) {
  return guarded(error, error_size, [&] { turing::open_checkpoint(path); });
}

turing_engine* turing_open(const turing_options* options, char* error, size_t error_size) {
  turing_engine* engine = nullptr;
  guarded(error, error_size, [&] {
    engine = new turing_engine({.path = options->path,
                                .isa = options->isa,
                                .threads = options->threads,
                                .quantize = quantize_of(options->quantize),
                                .exact = options->exact != 0,
                                .pages = options->pages,
                                .kv_bytes = options->kv_bytes,
                                .slots = options->slots,
                                .max_rows = options->max_rows});
  });
  return engine;
}

void turing_close(turing_engine* engine) { delete engine; }

turing_info turing_describe(const turing_engine* engine) {
  const turing::Engine& from = engine->engine;
  return {from.pages(),           from.kv_bytes_per_token(),
          from.spec().vocab_size, from.spec().context,
          from.threads(),         from.isa()};
}

int turing_start(turing_engine* engine, int32_t slot, const turing_sampling* sampling,
                 turing_ids prompt, turing_ids output, turing_ids banned, turing_ids bias_ids,
                 const float* biases, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    engine->engine.start(slot, options_of(*sampling, banned, bias_ids, biases), span_of(prompt),
                         span_of(output));
  });
}

int turing_stop(turing_engine* engine, int32_t slot, char* error, size_t error_size) {
  return guarded(error, error_size, [&] { engine->engine.stop(slot); });
}

int turing_run(turing_engine* engine, const turing_step* step, const turing_result* result,
               char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    fill_chunks(engine->chunks, *step);
    const auto choices = engine->engine.step(engine->chunks, result->logits);
    size_t sampled = 0;
    for (int32_t i = 0; i < step->chunks; i++) {
      result->ids[i] = -1;
      if (step->samples[i] != 0) write_choice(choices[sampled++], i, *result);
    }
  });
}
