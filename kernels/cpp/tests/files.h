// Small checkpoint files for tests, in memory and on disk.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

// Builds the bytes of a GGUF file.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& text(const std::string& value) {
    put<uint64_t>(value.size());
    bytes_ += value;
    return *this;
  }
  GgufBytes& header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    bytes_ += "GGUF";
    return put(version).put(tensors).put(keys);
  }
  GgufBytes& string_key(const std::string& key, const std::string& value) {
    return text(key).put<uint32_t>(8).text(value);
  }
  GgufBytes& number_key(const std::string& key, uint32_t value) {
    return text(key).put<uint32_t>(4).put(value);
  }
  GgufBytes& float_key(const std::string& key, float value) {
    return text(key).put<uint32_t>(6).put(value);
  }
  GgufBytes& tensor(const std::string& name, const std::vector<uint64_t>& extents, uint32_t kind,
                    uint64_t offset) {
    text(name).put(static_cast<uint32_t>(extents.size()));
    for (uint64_t extent : extents) put(extent);
    return put(kind).put(offset);
  }
  GgufBytes& data(size_t size) {
    bytes_.resize((bytes_.size() + 31) / 32 * 32 + size, '\0');
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// The file of a llama with two layers of 64 dimensions and random Q4_1 weights.
inline std::string tiny_gguf() {
  GgufBytes file;
  file.header(20, 10);
  file.string_key("general.architecture", "llama");
  file.number_key("llama.block_count", 2).number_key("llama.context_length", 1024);
  file.number_key("llama.embedding_length", 64).number_key("llama.feed_forward_length", 96);
  file.number_key("llama.attention.head_count", 4);
  file.number_key("llama.attention.head_count_kv", 2);
  file.float_key("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  file.float_key("llama.rope.freq_base", 10000.0f);
  file.text("tokenizer.ggml.tokens").put<uint32_t>(9).put<uint32_t>(8).put<uint64_t>(3);
  for (const char* token : {"a", "b", "c"}) file.text(token);
  GgufBytes data;
  std::minstd_rand random(7);
  const auto norm = [&](const std::string& name) {
    file.tensor(name, {64}, 0, data.bytes().size());
    for (int i = 0; i < 64; i++) data.put(1.0f);
  };
  const auto matrix = [&](const std::string& name, uint64_t columns, uint64_t rows) {
    file.tensor(name, {columns, rows}, 3, data.bytes().size());
    for (uint64_t block = 0; block < columns * rows / 32; block++) {
      data.put<uint16_t>(0x2400).put<uint16_t>(0xac00);  // 1/64 and -1/16
      for (int i = 0; i < 16; i++) data.put(static_cast<uint8_t>(random()));
    }
    data.data(0);
  };
  matrix("token_embd.weight", 64, 200);
  norm("output_norm.weight");
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    norm(layer + "attn_norm.weight");
    norm(layer + "ffn_norm.weight");
    matrix(layer + "attn_q.weight", 64, 64);
    matrix(layer + "attn_k.weight", 64, 32);
    matrix(layer + "attn_v.weight", 64, 32);
    matrix(layer + "attn_output.weight", 64, 64);
    matrix(layer + "ffn_gate.weight", 64, 96);
    matrix(layer + "ffn_up.weight", 64, 96);
    matrix(layer + "ffn_down.weight", 96, 64);
  }
  return file.data(0).bytes() + data.bytes();
}

// A temporary folder that is removed with all it holds.
class Folder {
 public:
  Folder() {
    std::string pattern = "/tmp/turing-test-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() {
    for (const std::string& name : names_) unlink(path(name).c_str());
    rmdir(path_.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& bytes) {
    std::ofstream(path(name), std::ios::binary) << bytes;
    names_.push_back(name);
    return path(name);
  }

 private:
  std::string path_;
  std::vector<std::string> names_;
};
