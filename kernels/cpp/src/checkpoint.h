// A model on disk: its description and its tensors, whatever the file format.
#pragma once

#include <memory>
#include <string>

#include "kinds.h"
#include "spec.h"

namespace turing {

// The tensors of a decoder. The first three exist once, the others in every layer.
enum class Part {
  Embedding,
  FinalNorm,
  Head,
  AttentionNorm,
  Query,
  Key,
  Value,
  Output,
  QueryNorm,
  KeyNorm,
  PostAttentionNorm,
  FfnNorm,
  Gate,
  Up,
  Down,
  PostFfnNorm,
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  const ModelSpec& spec() const { return spec_; }
  // The weight or the bias of a part. Throws Error when it is missing or not of the shape that
  // the spec asks for. The data stay valid as long as the checkpoint.
  const Tensor& weight(Part part, int layer = 0) const;
  const Tensor& bias(Part part, int layer = 0) const;
  // Gives the memory of what was read back; it is read again when touched.
  virtual void drop_resident() const = 0;

 protected:
  explicit Checkpoint(std::string path) : path_(std::move(path)) {}
  virtual const Tensor* find(const std::string& name) const = 0;
  // The name of a part without ".weight" and ".bias".
  virtual std::string stem(Part part, int layer) const = 0;

  std::string path_;
  ModelSpec spec_;

 private:
  const Tensor& checked(const std::string& name, int64_t rows, int64_t columns) const;
};

// Opens a GGUF file or a safetensors folder. Throws Error.
std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path);
std::unique_ptr<Checkpoint> open_gguf(const std::string& path);
std::unique_ptr<Checkpoint> open_safetensors(const std::string& folder);

}  // namespace turing
