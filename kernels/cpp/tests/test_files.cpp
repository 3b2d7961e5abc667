// The readers of checkpoints against truncated, hostile and mutated files.
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "checkpoint.h"
#include "error.h"
#include "files.h"
#include "gguf.h"
#include "pool.h"
#include "weights.h"

namespace {

using turing::Error;
using turing::GgufFile;

constexpr int kMutants = 500;

void test_reads_what_was_written() {
  Folder folder;
  const GgufFile file(folder.write("a.gguf", tiny_gguf()));
  CHECK(file.string("general.architecture") == "llama");
  CHECK(file.integer("llama.embedding_length") == 64);
  CHECK(!file.integer("llama.missing"));
  CHECK(file.strings("tokenizer.ggml.tokens")->at(2) == "c");
  CHECK(file.find("blk.0.attn_k.weight")->rows() == 32);
  CHECK(file.find("blk.0.attn_k.weight")->columns() == 64);
  CHECK(contains(message_of([&] { file.integer("general.architecture"); }), "not an integer"));
  CHECK(turing::open_checkpoint(file.path())->spec().heads == 4);
}

// Every way to lie in a header is answered by a message that names the liar.
void test_hostile_headers() {
  const uint64_t huge = uint64_t{1} << 60;
  const auto says = [](const GgufBytes& bytes, const char* words) {
    Folder folder;
    const std::string path = folder.write("a.gguf", bytes.bytes());
    const std::string message = message_of([&] { GgufFile file(path); });
    if (!contains(message, words)) std::fprintf(stderr, "%s\n", message.c_str());
    CHECK(contains(message, words));
  };
  says(GgufBytes().put<uint32_t>(7), "not a GGUF file");
  says(GgufBytes().header(1, 1, 1), "version 1 is not supported");
  says(GgufBytes().header(huge, 0), "claims 1152921504606846976 tensors");
  says(GgufBytes().header(0, huge), "claims 1152921504606846976 keys");
  says(GgufBytes().header(0, 1).put<uint64_t>(huge), "ends inside a key");
  says(GgufBytes().header(0, 1).text("k").put<uint32_t>(77), "k has the unknown type 77");
  says(GgufBytes().header(0, 1).text("k").put<uint32_t>(8).put(huge), "ends inside k");
  says(GgufBytes().header(0, 1).text("k").put<uint32_t>(9).put<uint32_t>(8).put(huge),
       "ends inside k");
  says(GgufBytes().header(0, 1).text("k").put<uint32_t>(9).put<uint32_t>(4).put(huge),
       "ends inside k");
  says(GgufBytes().header(0, 1).text("k").put<uint32_t>(9).put<uint32_t>(9).put(huge),
       "array of type 9");
  says(GgufBytes().header(0, 2).number_key("k", 1).number_key("k", 2), "duplicate key k");
  says(GgufBytes().header(1, 0).tensor("t", {}, 0, 0), "tensor t has 0 dimensions");
  says(GgufBytes().header(1, 0).tensor("t", {1, 1, 1, 1, 1}, 0, 0), "has 5 dimensions");
  says(GgufBytes().header(1, 0).tensor("t", {huge, huge}, 0, 0), "t has an impossible shape");
  says(GgufBytes().header(1, 0).tensor("t", {0}, 0, 0), "t has an impossible shape");
  says(GgufBytes().header(1, 0).tensor("t", {32}, 16, 0), "t has kind IQ2_XXS");
  says(GgufBytes().header(1, 0).tensor("t", {32}, 999, 0), "t has kind number 999");
  says(GgufBytes().header(1, 0).tensor("t", {33}, 2, 0), "not a multiple of 32");
  says(GgufBytes().header(1, 0).tensor("t", {32}, 0, 0), "t lies outside of the file");
  says(GgufBytes().header(1, 0).tensor("t", {32}, 0, huge).data(128), "lies outside of the file");
  says(GgufBytes().header(1, 0).tensor("t", {32}, 0, 8).data(256), "t is not aligned");
  says(GgufBytes().header(2, 0).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 0).data(32),
       "duplicate tensor t");
  says(GgufBytes().header(0, 1).number_key("general.alignment", 3), "general.alignment is 3");
}

// Reads and packs all weights, in either way.
void load(const std::string& path) {
  turing::Pool pool(1);
  for (bool exact : {false, true}) {
    const std::shared_ptr<const turing::Checkpoint> checkpoint = turing::open_checkpoint(path);
    const turing::Weights weights(checkpoint, turing::Quantize::None, exact, pool);
    std::vector<float> embedding(static_cast<size_t>(weights.spec().hidden));
    weights.embed(weights.spec().vocab_size - 1, embedding.data());
  }
}

// Everything but an Error is a failure of the test.
void open_all(const std::string& path) {
  try {
    load(path);
  } catch (const Error& error) {
    CHECK(std::strlen(error.what()) > 0);
  }
}

long peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Replaces some bytes or words of the first `header` bytes, or cuts the file.
std::string mutate(std::string bytes, size_t header, std::mt19937_64& random) {
  const auto below = [&](uint64_t limit) { return random() % limit; };
  if (below(8) == 0) bytes.resize(below(bytes.size()));
  const uint64_t interesting[] = {0,          1,          ~uint64_t{0}, 1ull << 31,
                                  1ull << 32, 1ull << 60, 1ull << 63,   random()};
  for (uint64_t i = 0, count = 1 + below(4); i < count && bytes.size() > 32; i++) {
    const size_t at = below(std::min(header, bytes.size() - 8));
    const uint64_t value = interesting[below(std::size(interesting))];
    std::memcpy(bytes.data() + at, &value, size_t{1} << below(4));
  }
  return bytes;
}

void test_mutants(const std::string& original, size_t header, const char* name) {
  std::mt19937_64 random(7);
  Folder folder;
  const long before = peak_kilobytes();
  for (int i = 0; i < kMutants; i++) {
    const std::string path = folder.write(name, mutate(original, header, random));
    const auto start = std::chrono::steady_clock::now();
    open_all(contains(name, "gguf") ? path : folder.path());
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  }
  CHECK(peak_kilobytes() - before < 256 << 10);
}

void test_mutated_gguf() {
  const std::string original = tiny_gguf();
  test_mutants(original, original.find("blk.1.ffn_down.weight") + 64, "a.gguf");
}

// A llama without layers' worth of data, which still has every kind of entry.
std::string tiny_safetensors() {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"model.norm.weight":{"dtype":"F32","shape":[32],)"
      R"("data_offsets":[0,128]},"model.embed_tokens.weight":{"dtype":"BF16","shape":[8,32],)"
      R"("data_offsets":[128,640]},"position_ids":{"dtype":"I64","shape":[1],)"
      R"("data_offsets":[640,648]}})";
  GgufBytes file;
  file.put<uint64_t>(header.size());
  return file.bytes() + header + std::string(648, '\0');
}

constexpr const char* kConfig =
    R"({"model_type":"llama","hidden_size":32,"num_attention_heads":2,"num_hidden_layers":1,)"
    R"("intermediate_size":32,"vocab_size":8,"max_position_embeddings":64,"rope_theta":1e4,)"
    R"("rope_scaling":{"rope_type":"linear","factor":2.0},"text":"\u00e9\ud83e\udee0"})";

void test_mutated_safetensors() {
  std::mt19937_64 random(7);
  const std::string weights = tiny_safetensors();
  for (int i = 0; i < kMutants; i++) {
    Folder folder;
    const bool config = i % 2 == 0;
    const std::string text = kConfig;
    folder.write("config.json", config ? mutate(text, text.size() - 8, random) : text);
    folder.write("model.safetensors", config ? weights : mutate(weights, 400, random));
    open_all(folder.path());
  }
}

void test_safetensors_messages() {
  const auto says = [](const std::string& config, const std::string& weights, const char* words) {
    Folder folder;
    folder.write("config.json", config);
    folder.write("model.safetensors", weights);
    const std::string message =
        message_of([&] { load(folder.path()); });
    if (!contains(message, words)) std::fprintf(stderr, "%s\n", message.c_str());
    CHECK(contains(message, words));
  };
  says(kConfig, tiny_safetensors(), "lacks tensor model.layers.0");
  says(R"({"model_type":"mamba"})", "", "model_type 'mamba' is not supported");
  says(R"({"model_type":"llama"})", "", "hidden_size is not a positive number");
  says(R"({"a":[[[)", "", "not JSON");
  says(std::string(100, '['), "", "nested too deeply");
  says(kConfig, "12345678", "header claims");
}

}  // namespace

int main() {
  test_reads_what_was_written();
  test_hostile_headers();
  test_mutated_gguf();
  test_mutated_safetensors();
  test_safetensors_messages();
}
