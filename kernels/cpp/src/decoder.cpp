#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "number.h"

namespace turing {
namespace {

// Up to this many rows every thread makes the operands it needs itself instead of waiting for a
// phase that makes them.
constexpr int kSmallRows = 2;

size_t floats(size_t count) { return count * sizeof(float); }

}  // namespace

Decoder::Decoder(const Weights& weights, const Kernels& kernels, const KvCache& cache,
                 Sampler& sampler, const DecoderOptions& options)
    : weights_(weights),
      spec_(weights.spec()),
      kernels_(kernels),
      sampler_(sampler),
      attention_(spec_, kernels, cache, options.threads),
      kind_(weights.activations()),
      threads_(options.threads),
      width_(static_cast<size_t>(round_up(spec_.hidden, kBlock))),
      projected_(static_cast<size_t>(spec_.heads + 2 * spec_.kv_heads) *
                 static_cast<size_t>(spec_.head_dim)),
      frequencies_(spec_.rope.frequencies(spec_.head_dim)),
      local_frequencies_(spec_.local_rope.frequencies(spec_.head_dim)),
      own_(static_cast<size_t>(options.threads)) {
  const auto rows = static_cast<size_t>(round_up(options.max_rows, kRowTile));
  const size_t tiles = rows / kRowTile;
  const size_t angles = rows * static_cast<size_t>(spec_.head_dim / 2);
  const int attended = spec_.heads * spec_.head_dim;
  x_ = Pages(floats(rows * width_));
  if (spec_.post_norms) y_ = Pages(floats(rows * width_));
  qkv_ = Pages(floats(rows * projected_));
  for (Pages* pages : {&cosine_, &sine_, &local_cosine_, &local_sine_}) {
    *pages = Pages(floats(angles));
  }
  hidden_ = Pages(tiles * operand_stride(spec_.hidden, kind_));
  attended_ = Pages(tiles * operand_stride(attended, kind_));
  gated_ = Pages(tiles * operand_stride(spec_.intermediate, kind_));
  const auto sampled = static_cast<size_t>(round_up(options.max_sampled, kRowTile));
  normed_ = Pages(sampled / kRowTile * operand_stride(spec_.hidden, kind_));
  logits_ = Pages(floats(sampled * static_cast<size_t>(spec_.vocab_size)));
  for (Own& own : own_) {
    own.hidden = Pages(operand_stride(spec_.hidden, kind_));
    own.attended = Pages(operand_stride(attended, kind_));
  }
}

int Decoder::row_chunks(int rows) const { return (rows + kRowTile - 1) / kRowTile; }

int Decoder::tile_chunks(int tiles) const {
  const int wanted = threads_ * (batch_->rows() <= 4 ? 2 : 5);
  return std::min({tiles, wanted, Pool::kMaxChunks});
}

void Decoder::prepare(const Batch& batch, float* logits) {
  batch_ = &batch;
  prepared_++;
  small_ = batch.rows() <= kSmallRows && !spec_.post_norms;
  attention_.plan(batch);
  phases_.clear();
  phases_.push_back({Op::Embed, 0, row_chunks(batch.rows())});
  for (int i = 0; i < spec_.layers; i++) add_layer(i);

  const size_t sampled = batch.sampled.size();
  wanted_logits_ = logits;
  choices_.assign(sampled, {});
  logit_rows_.assign(sampled, nullptr);
  if (sampled == 0) return;
  const auto vocab = static_cast<size_t>(spec_.vocab_size);
  for (size_t i = 0; i < sampled; i++) {
    const Span& span = batch.spans[static_cast<size_t>(batch.sampled[i])];
    if (logits != nullptr || span.mask != nullptr || sampler_.needs_logits(span.slot)) {
      logit_rows_[i] = logits_.as<float>() + i * vocab;
    }
  }
  if (!small_) phases_.push_back({Op::HeadNorm, 0, row_chunks(static_cast<int>(sampled))});
  const int tiles = static_cast<int>(round_up(spec_.vocab_size, kColumnTile)) / kColumnTile;
  const int chunks = std::min(tiles, threads_ * (sampled <= 4 ? 8 : 32));
  phases_.push_back({Op::Head, 0, chunks});
  phases_.push_back({Op::Sample, 0, static_cast<int>(sampled)});
  best_.resize(static_cast<size_t>(chunks) * sampled);
  best_id_.resize(best_.size());
}

void Decoder::add_layer(int index) {
  const int rows = row_chunks(batch_->rows());
  const auto add = [&](Op op, int chunks) { phases_.push_back({op, index, chunks}); };
  if (!small_) add(Op::AttentionNorm, rows);
  add(Op::Project, tile_chunks(static_cast<int>(projected_) / kColumnTile));
  if (attention_.stores()) add(Op::Store, rows);
  add(Op::Attend, attention_.items());
  if (!small_ && attention_.split()) add(Op::Merge, rows);
  const int hidden = static_cast<int>(width_) / kColumnTile;
  add(Op::Output, tile_chunks(hidden));
  if (!small_) add(Op::FfnNorm, rows);
  add(Op::Gate, tile_chunks(static_cast<int>(round_up(spec_.intermediate, kBlock)) / kBlock));
  add(Op::Down, tile_chunks(hidden));
  if (spec_.post_norms) add(Op::FinishFfn, rows);
}

void Decoder::run(int number, int chunk, int worker) noexcept {
  const Phase& phase = phases_[static_cast<size_t>(number)];
  const Layer& layer = weights_.layers()[static_cast<size_t>(phase.layer)];
  switch (phase.op) {
    case Op::Project: return project(layer, input_of(phase, number, worker), chunk, phase.chunks);
    case Op::Attend:
      return attention_.run(layer, phase.layer, projected(layer), chunk, worker,
                            operand(attended_, attended_width()));
    case Op::Output: {
      const Operand input = input_of(phase, number, worker);
      const int tiles = static_cast<int>(width_) / kColumnTile;
      return kernels_.matmul({layer.output, input, tiles * chunk / phase.chunks,
                              tiles * (chunk + 1) / phase.chunks, spec_.post_norms ? y(0) : x(0),
                              width_, layer.output_bias, !spec_.post_norms});
    }
    case Op::Gate: return gate(layer, input_of(phase, number, worker), chunk, phase.chunks);
    case Op::Down: return down(layer, chunk, phase.chunks);
    case Op::Head: return head(input_of(phase, number, worker), chunk, phase.chunks);
    case Op::Sample: return sample(chunk);
    default: return run_rows(phase, chunk, worker);
  }
}

// The phases whose chunks are tiles of 8 rows.
void Decoder::run_rows(const Phase& phase, int chunk, int worker) {
  const Layer& layer = weights_.layers()[static_cast<size_t>(phase.layer)];
  const bool head = phase.op == Op::HeadNorm;
  const int rows = head ? static_cast<int>(batch_->sampled.size()) : batch_->rows();
  const int hidden = static_cast<int>(width_);
  const auto norm = [&](const float* from, const float* weight, const Operand& to, int row) {
    kernels_.norm(from, weight, spec_.norm_eps, hidden, spec_.hidden, to, row);
  };
  for (int row = chunk * kRowTile; row < std::min(rows, (chunk + 1) * kRowTile); row++) {
    switch (phase.op) {
      case Op::Embed: embed(row); break;
      case Op::AttentionNorm:
        norm(x(row), layer.attention_norm, operand(hidden_, spec_.hidden), row);
        break;
      case Op::Store: attention_.store(layer, phase.layer, projected(layer), row); break;
      case Op::Merge:
        attention_.merge(row, worker, operand(attended_, attended_width()), row);
        break;
      case Op::FfnNorm:
        if (spec_.post_norms) {
          kernels_.add_norm(x(row), y(row), layer.post_attention_norm, spec_.norm_eps, hidden,
                            spec_.hidden);
        }
        norm(x(row), layer.ffn_norm, operand(hidden_, spec_.hidden), row);
        break;
      case Op::FinishFfn:
        kernels_.add_norm(x(row), y(row), layer.post_ffn_norm, spec_.norm_eps, hidden,
                          spec_.hidden);
        break;
      default: norm(x(last_row(row)), weights_.final_norm(), sampled_operand(normed_), row); break;
    }
  }
}

int Decoder::last_row(int sampled) const {
  const Span& span =
      batch_->spans[static_cast<size_t>(batch_->sampled[static_cast<size_t>(sampled)])];
  return span.row0 + span.rows - 1;
}

Projected Decoder::projected(const Layer& layer) const {
  const bool local = layer.window != 0;
  return {qkv_.as<float>(), projected_, (local ? local_cosine_ : cosine_).as<float>(),
          (local ? local_sine_ : sine_).as<float>()};
}

// The operand that a phase multiplies: shared, or for small batches the thread's own.
Operand Decoder::input_of(const Phase& phase, int number, int worker) {
  const bool attended = phase.op == Op::Output;
  if (!small_ || (attended && !attention_.split())) {
    if (attended) return operand(attended_, attended_width());
    return phase.op == Op::Head ? sampled_operand(normed_) : operand(hidden_, spec_.hidden);
  }
  Own& own = own_[static_cast<size_t>(worker)];
  const uint64_t wanted = prepared_ << 20 | static_cast<uint64_t>(number);
  if (own.made != wanted) {
    make_own(phase, own, worker);
    own.made = wanted;
  }
  if (attended) return operand(own.attended, attended_width());
  return phase.op == Op::Head ? sampled_operand(own.hidden) : operand(own.hidden, spec_.hidden);
}

void Decoder::make_own(const Phase& phase, Own& own, int worker) {
  const Layer& layer = weights_.layers()[static_cast<size_t>(phase.layer)];
  if (phase.op == Op::Output) {
    const Operand attended = operand(own.attended, attended_width());
    for (int row = 0; row < attended.rows; row++) attention_.merge(row, worker, attended, row);
    return;
  }
  const bool head = phase.op == Op::Head;
  const Operand hidden = head ? sampled_operand(own.hidden) : operand(own.hidden, spec_.hidden);
  const float* weight = head                      ? weights_.final_norm()
                        : phase.op == Op::Project ? layer.attention_norm
                                                  : layer.ffn_norm;
  for (int row = 0; row < hidden.rows; row++) {
    kernels_.norm(x(head ? last_row(row) : row), weight, spec_.norm_eps, static_cast<int>(width_),
                  spec_.hidden, hidden, row);
  }
}

void Decoder::embed(int row) {
  weights_.embed(batch_->ids[static_cast<size_t>(row)], x(row));
  if (spec_.embedding_scale != 1) {
    kernels_.scale(x(row), spec_.embedding_scale, static_cast<int>(width_));
  }
  const size_t half = frequencies_.size(), place = static_cast<size_t>(row) * half;
  const auto position = static_cast<float>(batch_->position(row));
  const auto turn = [&](const std::vector<float>& frequencies, const Pages& cosine,
                        const Pages& sine) {
    for (size_t i = 0; i < half; i++) {
      cosine.as<float>()[place + i] = std::cos(position * frequencies[i]);
      sine.as<float>()[place + i] = std::sin(position * frequencies[i]);
    }
  };
  turn(frequencies_, cosine_, sine_);
  turn(local_frequencies_, local_cosine_, local_sine_);
}

void Decoder::project(const Layer& layer, const Operand& input, int chunk, int chunks) {
  const int total = static_cast<int>(projected_) / kColumnTile;
  const int from = total * chunk / chunks, to = total * (chunk + 1) / chunks;
  int base = 0;
  const std::pair<const Matrix*, const float*> parts[] = {{&layer.query, layer.query_bias},
                                                          {&layer.key, layer.key_bias},
                                                          {&layer.value, layer.value_bias}};
  for (const auto& [matrix, bias] : parts) {
    const int tiles = matrix->rows / kColumnTile;
    const int tile0 = std::max(from - base, 0), tile1 = std::min(to - base, tiles);
    if (tile0 < tile1) {
      kernels_.matmul({*matrix, input, tile0, tile1,
                       qkv_.as<float>() + static_cast<size_t>(base) * kColumnTile, projected_, bias,
                       false});
    }
    base += tiles;
  }
}

void Decoder::gate(const Layer& layer, const Operand& input, int chunk, int chunks) {
  const int blocks = static_cast<int>(round_up(spec_.intermediate, kBlock)) / kBlock;
  kernels_.gated({layer.gate, layer.up, layer.gate_bias, layer.up_bias, input,
                  operand(gated_, spec_.intermediate), blocks * chunk / chunks,
                  blocks * (chunk + 1) / chunks, spec_.gelu});
}

void Decoder::down(const Layer& layer, int chunk, int chunks) {
  const int tiles = static_cast<int>(width_) / kColumnTile;
  kernels_.matmul({layer.down, operand(gated_, spec_.intermediate), tiles * chunk / chunks,
                   tiles * (chunk + 1) / chunks, spec_.post_norms ? y(0) : x(0), width_,
                   layer.down_bias, !spec_.post_norms});
}

void Decoder::head(const Operand& input, int chunk, int chunks) {
  const int tiles = static_cast<int>(round_up(spec_.vocab_size, kColumnTile)) / kColumnTile;
  const size_t sampled = batch_->sampled.size(), place = static_cast<size_t>(chunk) * sampled;
  kernels_.head({weights_.head(), input, tiles * chunk / chunks, tiles * (chunk + 1) / chunks,
                 logit_rows_.data(), best_.data() + place, best_id_.data() + place});
}

void Decoder::sample(int index) {
  const size_t sampled = batch_->sampled.size();
  float best = -INFINITY;
  int32_t id = -1;
  for (size_t place = static_cast<size_t>(index); place < best_.size(); place += sampled) {
    if (best_[place] > best) {  // chunks are in the order of ids, so ties keep the lower one
      best = best_[place];
      id = best_id_[place];
    }
  }
  float* logits = logit_rows_[static_cast<size_t>(index)];
  const auto vocab = static_cast<size_t>(spec_.vocab_size);
  if (const float cap = spec_.logit_softcap; logits != nullptr && cap > 0) {
    for (size_t i = 0; i < vocab; i++) logits[i] = cap * std::tanh(logits[i] / cap);
  }
  if (wanted_logits_ != nullptr) {
    std::memcpy(wanted_logits_ + static_cast<size_t>(index) * vocab, logits, floats(vocab));
  }
  if (id < 0) return;  // no logit is a number; the choice stays empty
  const Span& span =
      batch_->spans[static_cast<size_t>(batch_->sampled[static_cast<size_t>(index)])];
  choices_[static_cast<size_t>(index)] =
      sampler_.choose(span.slot, span.start + span.rows, id, logits, span.mask);
}

}  // namespace turing
