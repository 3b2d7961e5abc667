// The weights of a decoder, packed for the kernels.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint.h"
#include "memory.h"
#include "pack.h"
#include "pool.h"
#include "simd/kernels.h"

namespace turing {

// Vectors are fp32, padded with zeros to a multiple of 16; null where the family has none.
struct Layer {
  Matrix query, key, value, output, gate, up, down;
  const float *query_bias, *key_bias, *value_bias, *output_bias, *gate_bias, *up_bias, *down_bias;
  const float *attention_norm, *ffn_norm, *post_attention_norm, *post_ffn_norm;
  const float *query_norm, *key_norm;
  int window;  // keys that a query sees, 0 = all
};

class Weights {
 public:
  // Packs the checkpoint's tensors; throws Error naming the one that is missing or misshapen.
  Weights(std::shared_ptr<const Checkpoint> checkpoint, Quantize quantize, bool exact, Pool& pool);

  // How rows must be represented to meet these weights.
  Activations activations() const { return activations_; }
  const ModelSpec& spec() const { return spec_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const Matrix& head() const { return head_; }
  const float* final_norm() const { return final_norm_; }
  // Writes the embedding of a token, `hidden` floats.
  void embed(int token, float* out) const;

 private:
  void collect(Packer& packer, const Checkpoint& checkpoint, int index);
  const float* vector(const Tensor& tensor, float offset = 0, int paired_head = 0);

  ModelSpec spec_;
  // Kept only where embeddings are read from the file, because the head's tiles do not hold them.
  std::shared_ptr<const Checkpoint> checkpoint_;
  const Tensor* embedding_ = nullptr;
  std::vector<Layer> layers_;
  Activations activations_ = Activations::Int8;
  Matrix head_{};
  const float* final_norm_ = nullptr;
  Pages packed_;
  std::vector<std::unique_ptr<float[]>> vectors_;
};

}  // namespace turing
