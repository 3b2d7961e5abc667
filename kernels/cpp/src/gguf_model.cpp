// The decoder families in GGUF files.
#include <cmath>
#include <string_view>

#include "checkpoint.h"
#include "error.h"
#include "gguf.h"

namespace turing {
namespace {

// The one gemma3 size whose query scale is not 1/sqrt(head_dim); GGUF does not store the scale.
constexpr int kGemma27bLayers = 62;

const char* name_of(Part part) {
  switch (part) {
    case Part::Embedding: return "token_embd";
    case Part::FinalNorm: return "output_norm";
    case Part::Head: return "output";
    case Part::AttentionNorm: return "attn_norm";
    case Part::Query: return "attn_q";
    case Part::Key: return "attn_k";
    case Part::Value: return "attn_v";
    case Part::Output: return "attn_output";
    case Part::QueryNorm: return "attn_q_norm";
    case Part::KeyNorm: return "attn_k_norm";
    case Part::PostAttentionNorm: return "post_attention_norm";
    case Part::FfnNorm: return "ffn_norm";
    case Part::Gate: return "ffn_gate";
    case Part::Up: return "ffn_up";
    case Part::Down: return "ffn_down";
    default: return "post_ffw_norm";
  }
}

bool once(Part part) {
  return part == Part::Embedding || part == Part::FinalNorm || part == Part::Head;
}

// The metadata below "<architecture>.".
class Fields {
 public:
  Fields(const GgufFile& file, const std::string& prefix) : file_(file), prefix_(prefix + ".") {}

  int integer(const std::string& key) const {
    const auto value = file_.integer(prefix_ + key);
    if (!value) fail(file_.path(), ": lacks ", prefix_, key);
    return bounded(key, *value);
  }
  int integer(const std::string& key, int otherwise) const {
    const auto value = file_.integer(prefix_ + key);
    return value ? bounded(key, *value) : otherwise;
  }
  double number(const std::string& key, double otherwise) const {
    const double value = file_.number(prefix_ + key).value_or(otherwise);
    if (!(value > 0 && std::isfinite(value))) {
      fail(file_.path(), ": ", prefix_, key, " is ", value, ", not a positive number");
    }
    return value;
  }
  bool has(const std::string& key) const { return file_.metadata().contains(prefix_ + key); }
  std::string text(const std::string& key, const std::string& otherwise) const {
    return file_.string(prefix_ + key).value_or(otherwise);
  }
  void refuse(const std::string& key) const {
    if (has(key)) fail(file_.path(), ": ", prefix_, key, " is not supported");
  }

 private:
  int bounded(const std::string& key, int64_t value) const {
    if (value < 1 || value > 1 << 24) {
      fail(file_.path(), ": ", prefix_, key, " is ", value, ", not from 1 to ", 1 << 24);
    }
    return static_cast<int>(value);
  }

  const GgufFile& file_;
  std::string prefix_;
};

std::vector<double> stored_divisors(const Tensor& tensor, int head_dim, const std::string& path) {
  if (tensor.kind != Kind::F32 || tensor.count() != head_dim / 2) {
    fail(path, ": tensor ", tensor.name, " is not ", head_dim / 2, " F32 numbers");
  }
  std::vector<float> values(static_cast<size_t>(head_dim / 2));
  info(Kind::F32).to_float(tensor.data, values.data(), head_dim / 2);
  for (float value : values) {
    if (!(value > 0 && std::isfinite(value))) fail(path, ": ", tensor.name, " is not positive");
  }
  return {values.begin(), values.end()};
}

Rope read_rope(const Fields& fields, const GgufFile& file, int head_dim, double theta) {
  Rope rope{fields.number("rope.freq_base", theta), {}};
  const std::string kind = fields.text("rope.scaling.type", "none");
  if (kind == "linear") {
    rope.divisors.assign(static_cast<size_t>(head_dim / 2),
                         fields.number("rope.scaling.factor", 1));
  } else if (kind != "none") {
    fail(file.path(), ": rope scaling ", kind, " is not supported");
  }
  if (const Tensor* stored = file.find("rope_freqs.weight")) {  // how the llama3 rule is stored
    rope.divisors = stored_divisors(*stored, head_dim, file.path());
  }
  return rope;
}

void read_sizes(ModelSpec& spec, const Fields& fields, const GgufFile& file) {
  spec.hidden = fields.integer("embedding_length");
  spec.layers = fields.integer("block_count");
  spec.heads = fields.integer("attention.head_count");
  spec.kv_heads = fields.integer("attention.head_count_kv", spec.heads);
  spec.head_dim = fields.integer("attention.key_length", std::max(1, spec.hidden / spec.heads));
  spec.intermediate = fields.integer("feed_forward_length");
  spec.context = fields.integer("context_length");
  spec.norm_eps = static_cast<float>(fields.number("attention.layer_norm_rms_epsilon", 1e-5));
  const Tensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr) fail(file.path(), ": lacks tensor token_embd.weight");
  spec.vocab_size = static_cast<int>(std::min<int64_t>(embedding->rows(), INT32_MAX));
  for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
    if (fields.integer(key, spec.head_dim) != spec.head_dim) {
      fail(file.path(), ": ", key, " is not the head size of ", spec.head_dim);
    }
  }
}

void read_gemma(ModelSpec& spec, const Fields& fields) {
  const int window = fields.integer("attention.sliding_window");
  const int pattern = fields.integer("attention.sliding_window_pattern", 6);
  for (int i = 0; i < spec.layers; i++)
    spec.windows[static_cast<size_t>(i)] = (i + 1) % pattern ? window : 0;
  spec.local_rope = {fields.number("rope.freq_base_swa", 1e4), {}};
  if (spec.layers == kGemma27bLayers) {
    spec.attention_scale = 1 / std::sqrt(static_cast<float>(spec.hidden / spec.heads));
  }
  spec.gelu = spec.post_norms = spec.qk_norm = true;
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden));
  if (fields.has("final_logit_softcapping")) {
    spec.logit_softcap = static_cast<float>(fields.number("final_logit_softcapping", 1));
  }
}

ModelSpec read_spec(const GgufFile& file) {
  ModelSpec spec;
  spec.family = file.string("general.architecture").value_or("");
  const std::string_view family = spec.family;
  if (family != "llama" && family != "qwen2" && family != "qwen3" && family != "gemma3") {
    fail(file.path(), ": architecture '", family,
         "' is not supported, only llama, qwen2, qwen3 and gemma3");
  }
  const Fields fields(file, spec.family);
  for (const char* key : {"expert_count", "attn_logit_softcapping", "attention.scale"}) {
    fields.refuse(key);
  }
  read_sizes(spec, fields, file);
  check_spec(spec, file.path());
  const bool gemma = family == "gemma3";
  spec.rope = spec.local_rope = read_rope(fields, file, spec.head_dim, gemma ? 1e6 : 1e4);
  spec.windows.assign(static_cast<size_t>(spec.layers), 0);
  spec.attention_scale = 1 / std::sqrt(static_cast<float>(spec.head_dim));
  spec.adjacent_pairs = family == "llama";
  spec.qk_norm = family == "qwen3";
  if (gemma) read_gemma(spec, fields);
  spec.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  spec.output_bias = file.find("blk.0.attn_output.bias") != nullptr;
  spec.ffn_bias = file.find("blk.0.ffn_gate.bias") != nullptr;
  spec.tied_head = file.find("output.weight") == nullptr;
  return spec;
}

class GgufCheckpoint final : public Checkpoint {
 public:
  explicit GgufCheckpoint(const std::string& path) : Checkpoint(path), file_(path) {
    spec_ = read_spec(file_);
  }
  void drop_resident() const override { file_.drop_resident(); }

 protected:
  const Tensor* find(const std::string& name) const override { return file_.find(name); }
  std::string stem(Part part, int layer) const override {
    if (once(part)) return name_of(part);
    return "blk." + std::to_string(layer) + "." + name_of(part);
  }

 private:
  GgufFile file_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf(const std::string& path) {
  return std::make_unique<GgufCheckpoint>(path);
}

}  // namespace turing
