// The whole native runner: a model, its pages and slots, and one call per step.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "decoder.h"
#include "kv.h"
#include "pool.h"
#include "sampler.h"
#include "weights.h"

namespace turing {

struct EngineOptions {
  std::string path;
  std::string isa;  // "" = the best this processor has
  int threads = 0;  // 0 = the cores this process may use
  Quantize quantize = Quantize::None;
  // Exact: fp32 activations, weights and pages, no rounding beyond the file's own.
  bool exact = false;
  int64_t pages = 0;  // 0 = as many as fit into kv_bytes
  int64_t kv_bytes = 0;
  int slots = 0;
  int max_rows = 0;
};

// One sequence's share of a step; see Plan in the engine.
struct Chunk {
  int slot;
  int start;
  std::span<const int32_t> ids;
  std::span<const int32_t> pages;
  bool sample;
  const uint32_t* mask = nullptr;  // the ids that may be sampled, one bit each; null = all
};

class Engine {
 public:
  // Throws Error.
  explicit Engine(const EngineOptions& options);

  const ModelSpec& spec() const { return weights_.spec(); }
  int64_t pages() const { return pages_; }
  int64_t kv_bytes_per_token() const {
    return static_cast<int64_t>(cache_.page_stride()) / kPageTokens;
  }
  int threads() const { return pool_.threads(); }
  const char* isa() const { return kernels_.name; }

  // Throws Error when the slot or an id is out of range.
  void start(int slot, SamplingOptions options, std::span<const int32_t> prompt,
             std::span<const int32_t> output);
  void stop(int slot);

  // Computes a step and returns one Choice per chunk that samples, in order. With `logits` the raw
  // logits of these rows are written there, one after the other. Throws Error, and then has
  // changed nothing but pages and slots of these chunks.
  std::span<const Choice> step(std::span<const Chunk> chunks, float* logits);

 private:
  void check_slot(int slot) const;
  void check(const Chunk& chunk) const;
  void fill(std::span<const Chunk> chunks);

  Pool pool_;
  const Kernels& kernels_;
  Weights weights_;
  int64_t pages_;
  int slots_;
  int max_rows_;
  KvCache cache_;
  Sampler sampler_;
  Decoder decoder_;
  Batch batch_;
};

}  // namespace turing
