#include "weights.h"

#include "number.h"

namespace turing {

namespace {

// Whether no matrix of the layers is quantised.
bool stores_floats(const Checkpoint& checkpoint) {
  for (int i = 0; i < checkpoint.spec().layers; i++) {
    for (Part part :
         {Part::Query, Part::Key, Part::Value, Part::Output, Part::Gate, Part::Up, Part::Down}) {
      if (info(checkpoint.weight(part, i).kind).block > 1) return false;
    }
  }
  return true;
}

}  // namespace

Weights::Weights(std::shared_ptr<const Checkpoint> checkpoint, Quantize quantize, bool exact,
                 Pool& pool)
    : spec_(checkpoint->spec()) {
  const bool floats = stores_floats(*checkpoint);
  if (exact || (floats && quantize == Quantize::None)) activations_ = Activations::Float;
  // The few float matrices of a quantised file must meet int8 rows too.
  if (!exact && !floats && quantize == Quantize::None) quantize = Quantize::W8;
  Packer packer(quantize, exact);
  layers_.resize(static_cast<size_t>(spec_.layers));
  for (int i = 0; i < spec_.layers; i++) collect(packer, *checkpoint, i);
  final_norm_ = vector(checkpoint->weight(Part::FinalNorm), spec_.norm_offset);
  const Tensor& embedding = checkpoint->weight(Part::Embedding);
  packer.add_at_least_w8(spec_.tied_head ? embedding : checkpoint->weight(Part::Head), head_);
  packed_ = packer.pack(pool);
  if (spec_.tied_head && keeps_exactly(embedding.kind, head_.tile)) return;
  checkpoint->drop_resident();
  embedding_ = &embedding;
  checkpoint_ = std::move(checkpoint);
}

void Weights::collect(Packer& packer, const Checkpoint& checkpoint, int index) {
  const ModelSpec& spec = checkpoint.spec();
  const int paired = spec.adjacent_pairs ? spec.head_dim : 0;
  Layer& layer = layers_[static_cast<size_t>(index)];
  const auto matrix = [&](Part part, Matrix& to, int pairs = 0) {
    packer.add(checkpoint.weight(part, index), to, pairs);
  };
  const auto bias = [&](bool present, Part part, int pairs = 0) {
    return present ? vector(checkpoint.bias(part, index), 0, pairs) : nullptr;
  };
  const auto norm = [&](bool present, Part part) {
    return present ? vector(checkpoint.weight(part, index), spec.norm_offset) : nullptr;
  };
  matrix(Part::Query, layer.query, paired);
  matrix(Part::Key, layer.key, paired);
  matrix(Part::Value, layer.value);
  matrix(Part::Output, layer.output);
  matrix(Part::Gate, layer.gate);
  matrix(Part::Up, layer.up);
  matrix(Part::Down, layer.down);
  layer.query_bias = bias(spec.qkv_bias, Part::Query, paired);
  layer.key_bias = bias(spec.qkv_bias, Part::Key, paired);
  layer.value_bias = bias(spec.qkv_bias, Part::Value);
  layer.output_bias = bias(spec.output_bias, Part::Output);
  layer.gate_bias = bias(spec.ffn_bias, Part::Gate);
  layer.up_bias = bias(spec.ffn_bias, Part::Up);
  layer.down_bias = bias(spec.ffn_bias, Part::Down);
  layer.attention_norm = norm(true, Part::AttentionNorm);
  layer.ffn_norm = norm(true, Part::FfnNorm);
  layer.post_attention_norm = norm(spec.post_norms, Part::PostAttentionNorm);
  layer.post_ffn_norm = norm(spec.post_norms, Part::PostFfnNorm);
  layer.query_norm = norm(spec.qk_norm, Part::QueryNorm);
  layer.key_norm = norm(spec.qk_norm, Part::KeyNorm);
  layer.window = spec.windows[static_cast<size_t>(index)];
}

const float* Weights::vector(const Tensor& tensor, float offset, int paired_head) {
  const int64_t count = tensor.count();
  std::vector<float> stored(static_cast<size_t>(count));
  info(tensor.kind).to_float(tensor.data, stored.data(), count);
  auto values = std::make_unique<float[]>(static_cast<size_t>(round_up(count, kBlock)));
  for (int64_t i = 0; i < count; i++) {
    values[static_cast<size_t>(i)] =
        stored[static_cast<size_t>(source_row(i, paired_head))] + offset;
  }
  vectors_.push_back(std::move(values));
  return vectors_.back().get();
}

void Weights::embed(int token, float* out) const {
  if (embedding_ == nullptr) return unpack_row(head_, token, spec_.hidden, out);
  embedding_->row_to_float(token, out);
}

}  // namespace turing
