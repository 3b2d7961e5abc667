#include "hf_config.h"

#include <cmath>
#include <functional>
#include <optional>

#include "error.h"

namespace turing {
namespace {

// Typed, bounded access to a table of untrusted values.
class Fields {
 public:
  Fields(const Json& values, std::string where) : values_(values), where_(std::move(where)) {}

  bool has(const char* key) const { return values_.find(key) != nullptr; }
  [[noreturn]] void invalid(const char* key, const char* words) const {
    fail(where_, ": ", key, " is not ", words);
  }
  // Refuses a field that is set to something other than false or an empty value.
  void refuse(const char* key) const {
    const Json* value = values_.find(key);
    if (value == nullptr) return;
    const bool* flag = value->boolean();
    if (flag == nullptr || *flag) fail(where_, ": ", key, " is not supported");
  }
  double number(const char* key, std::optional<double> otherwise = std::nullopt) const {
    const Json* value = values_.find(key);
    if (value == nullptr && otherwise) return *otherwise;
    const double* number = value == nullptr ? nullptr : value->number();
    if (number == nullptr || !(*number > 0 && std::isfinite(*number))) {
      invalid(key, "a positive number");
    }
    return *number;
  }
  int integer(const char* key, std::optional<int> otherwise = std::nullopt) const {
    if (!has(key) && otherwise) return *otherwise;
    const double value = number(key);
    if (value != std::floor(value) || value > 1 << 24) invalid(key, "a size from 1 to 16777216");
    return static_cast<int>(value);
  }
  bool flag(const char* key, bool otherwise) const {
    const Json* value = values_.find(key);
    if (value == nullptr) return otherwise;
    if (value->boolean() == nullptr) invalid(key, "true or false");
    return *value->boolean();
  }
  std::string text(const char* key, const char* otherwise) const {
    const Json* value = values_.find(key);
    if (value == nullptr) return otherwise;
    if (value->string() == nullptr) invalid(key, "text");
    return *value->string();
  }
  const JsonArray& items(const char* key) const {
    const Json* value = values_.find(key);
    if (value == nullptr || value->array() == nullptr) invalid(key, "a list");
    return *value->array();
  }
  Fields table(const char* key) const {
    const Json* value = values_.find(key);
    if (value == nullptr || value->object() == nullptr) invalid(key, "a table");
    return {*value, where_ + ": " + key};
  }
  const std::string& where() const { return where_; }

 private:
  const Json& values_;
  std::string where_;
};

void read_sizes(ModelSpec& spec, const Fields& fields, int head_dim = 0) {
  spec.hidden = fields.integer("hidden_size");
  spec.heads = fields.integer("num_attention_heads");
  spec.layers = fields.integer("num_hidden_layers");
  spec.intermediate = fields.integer("intermediate_size");
  spec.kv_heads = fields.integer("num_key_value_heads", spec.heads);
  spec.head_dim = fields.integer("head_dim", head_dim ? head_dim : spec.hidden / spec.heads);
  spec.vocab_size = fields.integer("vocab_size");
  spec.context = fields.integer("max_position_embeddings");
  spec.norm_eps = static_cast<float>(fields.number("rms_norm_eps", 1e-6));
  check_spec(spec, fields.where());
}

std::vector<double> read_divisors(const Fields& rope, double theta, int head_dim) {
  const std::string kind = rope.text(rope.has("rope_type") ? "rope_type" : "type", "default");
  if (kind == "default") return {};
  if (kind == "linear") {
    return std::vector<double>(static_cast<size_t>(head_dim / 2), rope.number("factor"));
  }
  if (kind != "llama3") fail(rope.where(), ": rope type ", kind, " is not supported");
  const double low = rope.number("low_freq_factor"), high = rope.number("high_freq_factor");
  if (low >= high) rope.invalid("high_freq_factor", "above low_freq_factor");
  return llama3_divisors(theta, head_dim, rope.number("factor"), low, high,
                         rope.number("original_max_position_embeddings"));
}

Rope rope_of(const Fields& rope, double theta, int head_dim) {
  if (rope.number("partial_rotary_factor", 1) != 1) {
    fail(rope.where(), ": partial_rotary_factor is not supported");
  }
  return {theta, read_divisors(rope, theta, head_dim)};
}

// Reads rope_parameters (per kind of layer in gemma3) or the older pair of fields.
Rope read_rope(const Fields& fields, int head_dim, const char* kind = "", double theta = 1e4) {
  if (fields.has("rope_parameters")) {
    const Fields all = fields.table("rope_parameters");
    const Fields rope = all.has(kind) ? all.table(kind) : all;
    return rope_of(rope, rope.number("rope_theta", theta), head_dim);
  }
  theta = fields.number("rope_theta", theta);
  if (!fields.has("rope_scaling")) return {theta, {}};
  return rope_of(fields.table("rope_scaling"), theta, head_dim);
}

// The window per layer; layer_types, where given, overrules the family's own rule.
void read_windows(ModelSpec& spec, const Fields& fields, int window,
                  const std::function<bool(int)>& slides) {
  for (int i = 0; i < spec.layers; i++) spec.windows.push_back(slides(i) ? window : 0);
  if (!fields.has("layer_types")) return;
  const JsonArray& types = fields.items("layer_types");
  if (types.size() != spec.windows.size()) fields.invalid("layer_types", "one type per layer");
  for (size_t i = 0; i < types.size(); i++) {
    const std::string* type = types[i].string();
    const bool sliding = type != nullptr && *type == "sliding_attention";
    if (!sliding && (type == nullptr || *type != "full_attention")) {
      fields.invalid("layer_types", "a list of sliding_attention and full_attention");
    }
    spec.windows[i] = sliding ? window : 0;
  }
}

void read_llama_like(ModelSpec& spec, const Fields& fields) {
  const std::string act = fields.text("hidden_act", "silu");
  if (act != "silu" && act != "swish") fields.invalid("hidden_act", "silu");
  spec.rope = spec.local_rope = read_rope(fields, spec.head_dim);
  spec.attention_scale = 1 / std::sqrt(static_cast<float>(spec.head_dim));
  spec.tied_head = fields.flag("tie_word_embeddings", false);
  spec.windows.resize(static_cast<size_t>(spec.layers), 0);
}

void read_llama(ModelSpec& spec, const Fields& fields) {
  read_sizes(spec, fields);
  spec.qkv_bias = spec.output_bias = fields.flag("attention_bias", false);
  spec.ffn_bias = fields.flag("mlp_bias", false);
  read_llama_like(spec, fields);
}

void read_mistral(ModelSpec& spec, const Fields& fields) {
  read_sizes(spec, fields);
  const int window = fields.has("sliding_window") ? fields.integer("sliding_window") : 0;
  spec.windows.assign(static_cast<size_t>(spec.layers), window);
  read_llama_like(spec, fields);
}

// Layers from max_window_layers on have the window, and only if use_sliding_window.
void read_qwen_windows(ModelSpec& spec, const Fields& fields) {
  if (!fields.flag("use_sliding_window", false)) return;
  const int first = fields.integer("max_window_layers", 28);
  read_windows(spec, fields, fields.integer("sliding_window", 4096),
               [&](int layer) { return layer >= first; });
}

void read_qwen2(ModelSpec& spec, const Fields& fields) {
  read_sizes(spec, fields);
  spec.qkv_bias = true;
  read_qwen_windows(spec, fields);
  read_llama_like(spec, fields);
}

void read_qwen3(ModelSpec& spec, const Fields& fields) {
  read_sizes(spec, fields, 128);
  spec.qkv_bias = spec.output_bias = fields.flag("attention_bias", false);
  spec.qk_norm = true;
  read_qwen_windows(spec, fields);
  read_llama_like(spec, fields);
}

void read_gemma3(ModelSpec& spec, const Fields& fields) {
  read_sizes(spec, fields, 256);
  const char* act = fields.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  if (fields.text(act, "gelu_pytorch_tanh") != "gelu_pytorch_tanh") {
    fields.invalid(act, "gelu_pytorch_tanh");
  }
  const int pattern = fields.integer("sliding_window_pattern", 6);
  read_windows(spec, fields, fields.integer("sliding_window", 4096),
               [&](int layer) { return (layer + 1) % pattern != 0; });
  spec.rope = read_rope(fields, spec.head_dim, "full_attention", 1e6);
  spec.local_rope = fields.has("rope_parameters")
                        ? read_rope(fields, spec.head_dim, "sliding_attention", 1e4)
                        : Rope{fields.number("rope_local_base_freq", 1e4), {}};
  spec.attention_scale =
      1 / std::sqrt(static_cast<float>(fields.number("query_pre_attn_scalar", 256)));
  spec.gelu = spec.qk_norm = spec.post_norms = true;
  spec.norm_offset = 1;
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden));
  if (fields.has("final_logit_softcapping")) {
    spec.logit_softcap = static_cast<float>(fields.number("final_logit_softcapping"));
  }
  spec.qkv_bias = spec.output_bias = fields.flag("attention_bias", false);
  spec.tied_head = fields.flag("tie_word_embeddings", true);
}

struct Family {
  const char* type;
  const char* name;
  void (*read)(ModelSpec&, const Fields&);
};

constexpr Family kFamilies[] = {
    {"llama", "llama", read_llama},         {"mistral", "mistral", read_mistral},
    {"qwen2", "qwen2", read_qwen2},         {"qwen3", "qwen3", read_qwen3},
    {"gemma3_text", "gemma3", read_gemma3},
};

}  // namespace

ModelSpec spec_from_config(const Json& config, const std::string& where) {
  const Fields outer(config, where);
  outer.refuse("quantization_config");
  const std::string type = outer.text("model_type", "");
  if (type == "gemma3") {  // the multimodal checkpoint: its text half is a gemma3_text
    const Json* inner = config.find("text_config");
    if (inner == nullptr || inner->object() == nullptr) outer.invalid("text_config", "a table");
    ModelSpec spec;
    spec.family = type;
    read_gemma3(spec, Fields(*inner, where + ": text_config"));
    return spec;
  }
  outer.refuse("attn_logit_softcapping");
  outer.refuse("use_bidirectional_attention");
  for (const Family& family : kFamilies) {
    if (type != family.type) continue;
    ModelSpec spec;
    spec.family = family.name;
    family.read(spec, outer);
    return spec;
  }
  fail(where, ": model_type '", type,
       "' is not supported, only llama, mistral, qwen2, qwen3 and gemma3");
}

}  // namespace turing
