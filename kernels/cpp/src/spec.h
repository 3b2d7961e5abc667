// One description for every decoder family.
#pragma once

#include <string>
#include <vector>

namespace turing {

// Rotary position embedding: pair i of a head turns by theta^(-2 i / head_dim) / divisors[i] per
// position. `divisors` is empty (all 1) or has one number per pair; every scaling rule is one.
struct Rope {
  double theta = 10000;
  std::vector<double> divisors;

  // The angle per position of each pair, in the precision that the models were trained with.
  std::vector<float> frequencies(int head_dim) const;
};

// What distinguishes the llama, mistral, qwen2, qwen3 and gemma3 decoders from each other.
struct ModelSpec {
  std::string family;
  int layers = 0;
  int hidden = 0;
  int intermediate = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int context = 0;  // longest sequence in tokens that the model was trained for
  float norm_eps = 0;
  // Per layer, how many keys a query sees, its own included; 0 = all before it.
  std::vector<int> windows;
  Rope rope;
  Rope local_rope;            // of layers with a window
  float attention_scale = 0;  // factor of the dot products
  bool gelu = false;          // gates with the tanh form of GELU instead of SiLU
  float norm_offset = 0;      // added to every stored norm weight
  float embedding_scale = 1;
  float logit_softcap = 0;  // logits become cap tanh(logits / cap); 0 = off
  bool qkv_bias = false;
  bool output_bias = false;
  bool ffn_bias = false;
  bool qk_norm = false;
  bool post_norms = false;  // norms behind attention and feed-forward, before the residual
  bool tied_head = false;
  // Whether the rows of q and k keep rotary pairs side by side, as GGUF's llama does.
  bool adjacent_pairs = false;
};

// Throws Error naming `where` when the numbers contradict each other or a limit.
void check_spec(const ModelSpec& spec, const std::string& where);

// The divisors of Llama 3.1's rule: wavelengths up to context / high tokens stay, those above
// context / low are stretched by `factor`, the ones between are interpolated.
std::vector<double> llama3_divisors(double theta, int head_dim, double factor, double low,
                                    double high, double context);

}  // namespace turing
