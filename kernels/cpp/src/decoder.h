// One step of the decoder over a ragged batch, as a program for the pool.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "batch.h"
#include "memory.h"
#include "pool.h"
#include "sampler.h"
#include "simd/kernels.h"
#include "weights.h"

namespace turing {

struct DecoderOptions {
  int max_rows = 0;
  int max_sampled = 0;
  int threads = 1;
};

class Decoder final : public Program {
 public:
  Decoder(const Weights& weights, const Kernels& kernels, const KvCache& cache, Sampler& sampler,
          const DecoderOptions& options);

  // Makes the program that computes `batch`; its results are in choices(), one per sampled row.
  // With `logits` the raw logits of sampled row i are also written to logits + i * vocab_size.
  // The batch must stay unchanged while the program runs.
  void prepare(const Batch& batch, float* logits);
  std::vector<Choice>& choices() { return choices_; }

  int phases() const override { return static_cast<int>(phases_.size()); }
  int chunks(int phase) const override { return phases_[static_cast<size_t>(phase)].chunks; }
  void run(int phase, int chunk, int worker) noexcept override;

 private:
  enum class Op {
    Embed,
    AttentionNorm,
    Project,
    Store,
    Attend,
    Merge,
    Output,
    FfnNorm,
    Gate,
    Down,
    FinishFfn,
    HeadNorm,
    Head,
    Sample,
  };
  struct Phase {
    Op op;
    int layer;
    int chunks;
  };
  // Operands of a thread of its own, for batches so small that everyone computes all of them.
  struct Own {
    Pages hidden, attended;
    uint64_t made = 0;  // number of the phase whose input they hold
  };

  void add_layer(int index);
  int row_chunks(int rows) const;
  int tile_chunks(int tiles) const;

  void embed(int row);
  void project(const Layer& layer, const Operand& input, int chunk, int chunks);
  void finish_attention(const Layer& layer, int row);
  void gate(const Layer& layer, const Operand& input, int chunk, int chunks);
  void down(const Layer& layer, int chunk, int chunks);
  void head(const Operand& input, int chunk, int chunks);
  void sample(int index);
  void run_rows(const Phase& phase, int chunk, int worker);
  Operand input_of(const Phase& phase, int number, int worker);
  void make_own(const Phase& phase, Own& own, int worker);

  // Memory as the operand of the batch's rows, or of its sampled rows.
  Operand operand(const Pages& memory, int k) const {
    return {memory.data(), batch_->rows(), k, kind_};
  }
  Operand sampled_operand(const Pages& memory) const {
    return {memory.data(), static_cast<int>(batch_->sampled.size()), spec_.hidden, kind_};
  }
  int attended_width() const { return spec_.heads * spec_.head_dim; }
  Projected projected(const Layer& layer) const;
  float* x(int row) const { return x_.as<float>() + static_cast<size_t>(row) * width_; }
  float* y(int row) const { return y_.as<float>() + static_cast<size_t>(row) * width_; }
  int last_row(int sampled) const;

  const Weights& weights_;
  const ModelSpec& spec_;
  const Kernels& kernels_;
  Sampler& sampler_;
  Attention attention_;
  Activations kind_;
  int threads_;
  size_t width_;      // floats of a hidden row, padded
  size_t projected_;  // floats of a projected row
  std::vector<float> frequencies_, local_frequencies_;

  Pages x_, y_, qkv_;
  Pages cosine_, sine_, local_cosine_, local_sine_;
  Pages hidden_, attended_, gated_, normed_;  // operands
  std::vector<Own> own_;

  const Batch* batch_ = nullptr;
  std::vector<Phase> phases_;
  bool small_ = false;
  uint64_t prepared_ = 0;
  float* wanted_logits_ = nullptr;
  Pages logits_;
  std::vector<float*> logit_rows_;
  std::vector<float> best_;       // [head chunks][sampled]
  std::vector<int32_t> best_id_;  // [head chunks][sampled]
  std::vector<Choice> choices_;
};

}  // namespace turing
