// From logits to tokens: what each slot asked for, kept from step to step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "simd/kernels.h"

namespace turing {

struct SamplingOptions {
  double temperature = 1;
  int32_t top_k = 0;  // <= 0 = no limit
  double top_p = 1;
  double min_p = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int64_t seed = 0;
  int32_t min_tokens = 0;
  int32_t logprobs = -1;  // alternatives to report, -1 = no logprobs at all
  bool greedy = false;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<int32_t> banned;  // while fewer than min_tokens outputs exist
};

// The number in [0, 1) that decides the token at absolute `position`:
// splitmix64(splitmix64(seed + 0x9E3779B97F4A7C15 (position + 1))), of which the upper 53 bits are
// the fraction (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
double uniform(int64_t seed, int64_t position);

// A sampled token and, where asked for, log-probabilities in the model's own distribution.
struct Choice {
  int32_t id = -1;  // stays -1 when the logits are not numbers
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // most likely first, ties by lower id
};

class Sampler {
 public:
  Sampler(int slots, int vocab_size, const Kernels& kernels);
  ~Sampler();

  // Begins (again) to sample for a slot. Penalties count prompt and output.
  void start(int slot, SamplingOptions options, std::span<const int32_t> prompt,
             std::span<const int32_t> output);
  void stop(int slot);
  bool started(int slot) const { return slots_[static_cast<size_t>(slot)] != nullptr; }
  // Whether choose() needs all logits and not only the best.
  bool needs_logits(int slot) const;
  // The token for `position`, given the arg-max and, if needed or masked, the logits, which it
  // changes. `mask` has one bit per id that may be chosen, at least one; null = all.
  // Different slots may choose at the same time.
  Choice choose(int slot, int64_t position, int32_t best, float* logits,
                const uint32_t* mask = nullptr);

 private:
  struct Slot;

  int vocab_size_;
  const Kernels& kernels_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace turing
