#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

namespace turing {
namespace {

constexpr int kQueryTile = 16;  // rows of a span that one item attends from

int segments_to(int position) { return position / kSegmentTokens + 1; }

int first_visible(int position, int window) {
  return window == 0 ? 0 : std::max(0, position + 1 - window);
}

}  // namespace

Attention::Attention(const ModelSpec& spec, const Kernels& kernels, const KvCache& cache,
                     int threads)
    : spec_(spec),
      kernels_(kernels),
      cache_(cache),
      threads_(threads),
      group_(spec.heads / spec.kv_heads),
      unit_(kBlock / std::gcd(kBlock, group_ * spec.head_dim)),
      scratch_(static_cast<size_t>(threads)) {
  const auto queries = static_cast<size_t>(std::max(kQueryTile * group_ * unit_, spec.heads));
  const size_t floats = queries * static_cast<size_t>(spec.head_dim);
  for (Scratch& scratch : scratch_) {
    scratch.query = Pages(floats * sizeof(float));
    scratch.out = Pages(floats * sizeof(float));
    scratch.gathered = Pages(floats * sizeof(float));
    scratch.peak = Pages(queries * sizeof(float));
    scratch.sum = Pages(queries * sizeof(float));
    scratch.first.resize(queries);
    scratch.last.resize(queries);
  }
}

void Attention::plan(const Batch& batch) {
  batch_ = &batch;
  items_.clear();
  const int spans = static_cast<int>(batch.spans.size());
  stores_ = std::any_of(batch.spans.begin(), batch.spans.end(),
                        [](const Span& span) { return span.rows > 1; });
  split_ = !stores_ && spans * spec_.kv_heads < 2 * threads_;
  parts_ = 0;
  first_part_.assign(static_cast<size_t>(spans), 0);
  const int heads_per_item = spans >= 2 * threads_ ? spec_.kv_heads : unit_;
  for (int i = 0; i < spans; i++) {
    if (split_) {
      plan_split(batch, i);
    } else {
      plan_span(batch, i, batch.spans[static_cast<size_t>(i)].rows > 1 ? unit_ : heads_per_item);
    }
  }
  if (split_) {
    const auto rows = static_cast<size_t>(parts_ * group_);
    const size_t bytes = rows * static_cast<size_t>(spec_.head_dim) * sizeof(float);
    if (part_out_.size() < bytes) {
      part_out_ = Pages(2 * bytes);
      part_peak_ = Pages(2 * rows * sizeof(float));
      part_sum_ = Pages(2 * rows * sizeof(float));
    }
  }
  deal();
}

void Attention::plan_span(const Batch& batch, int index, int heads_per_item) {
  const Span& span = batch.spans[static_cast<size_t>(index)];
  for (int row = 0; row < span.rows; row += kQueryTile) {
    const int rows = std::min(kQueryTile, span.rows - row);
    const int segments = segments_to(span.start + row + rows - 1);
    for (int head = 0; head < spec_.kv_heads; head += heads_per_item) {
      const int heads = std::min(heads_per_item, spec_.kv_heads - head);
      items_.push_back({index, span.row0 + row, rows, head, heads, 0, segments, -1,
                        int64_t{rows} * heads * segments});
    }
  }
}

// A single row whose heads are too few for the threads: the items are segments of heads.
void Attention::plan_split(const Batch& batch, int index) {
  const Span& span = batch.spans[static_cast<size_t>(index)];
  const int segments = segments_to(span.start);
  const int each = (segments * spec_.kv_heads + 8 * threads_ - 1) / (8 * threads_);
  first_part_[static_cast<size_t>(index)] = parts_;
  for (int head = 0; head < spec_.kv_heads; head++) {
    for (int segment = 0; segment < segments; segment += each) {
      const int end = std::min(segments, segment + each);
      items_.push_back(
          {index, span.row0, 1, head, 1, segment, end, parts_ + segment, int64_t{end} - segment});
    }
    parts_ += segments;
  }
}

// Orders the items so that the threads' shares of the list, which the pool cuts evenly by number,
// cost about the same, and each share starts with its dearest.
void Attention::deal() {
  std::stable_sort(items_.begin(), items_.end(),
                   [](const Item& a, const Item& b) { return a.cost > b.cost; });
  const size_t count = items_.size(), team = static_cast<size_t>(threads_);
  std::vector<Item> dealt(count);
  std::vector<size_t> place(team), end(team);
  for (size_t i = 0; i < team; i++) {
    place[i] = count * i / team;
    end[i] = count * (i + 1) / team;
  }
  size_t thread = 0;
  for (const Item& item : items_) {
    while (place[thread] == end[thread]) thread = (thread + 1) % team;
    dealt[place[thread]++] = item;
    thread = (thread + 1) % team;
  }
  items_ = std::move(dealt);
}

void Attention::store(const Layer& layer, int index, const Projected& projected, int row) const {
  if (batch_->span(row).rows > 1) store_row(layer, index, projected, row, 0, spec_.kv_heads);
}

void Attention::store_row(const Layer& layer, int index, const Projected& projected, int row,
                          int head0, int heads) const {
  const int dim = spec_.head_dim, half = dim / 2;
  const Span& span = batch_->span(row);
  const int position = batch_->position(row);
  float* keys = projected.rows + static_cast<size_t>(row) * projected.stride +
                static_cast<size_t>(spec_.heads + head0) * dim;
  const float* values = keys + static_cast<size_t>(spec_.kv_heads) * dim;
  if (layer.key_norm != nullptr) {
    kernels_.head_norm(keys, layer.key_norm, spec_.norm_eps, heads, dim);
  }
  const size_t angle = static_cast<size_t>(row) * half;
  kernels_.rope(keys, heads, dim, dim, projected.cosine + angle, projected.sine + angle);
  kernels_.store_kv(cache_.format(), keys, values, heads, dim, position % kPageTokens,
                    cache_.at(span.pages[position / kPageTokens], index, head0));
}

// Puts the item's queries, normed, rotated and scaled, into the scratch as [heads][rows x group].
void Attention::fill_queries(const Layer& layer, const Projected& projected, const Item& item,
                             Scratch& scratch) const {
  const int dim = spec_.head_dim;
  const size_t width = static_cast<size_t>(group_) * dim;
  const float factor = spec_.attention_scale * static_cast<float>(std::numbers::log2e);
  const size_t element = kv_element_bytes(cache_.format());
  float* queries = scratch.gathered.as<float>();
  for (int r = 0; r < item.rows; r++) {
    const int row = item.row0 + r, position = batch_->position(row);
    const size_t angle = static_cast<size_t>(row) * (dim / 2);
    const float* from = projected.rows + static_cast<size_t>(row) * projected.stride +
                        static_cast<size_t>(item.head0) * width;
    const int heads = item.heads * group_;
    std::memcpy(queries, from, static_cast<size_t>(heads) * dim * sizeof(float));
    if (layer.query_norm != nullptr) {
      kernels_.head_norm(queries, layer.query_norm, spec_.norm_eps, heads, dim);
    }
    kernels_.rope(queries, heads, dim, dim, projected.cosine + angle, projected.sine + angle);
    for (int head = 0; head < item.heads; head++) {
      const size_t place = (static_cast<size_t>(head) * item.rows + r) * width;
      kernels_.store_query(cache_.format(), queries + head * width, factor, static_cast<int>(width),
                           scratch.query.data() + place * element);
    }
    for (int g = 0; g < group_; g++) {
      scratch.first[static_cast<size_t>(r * group_ + g)] = first_visible(position, layer.window);
      scratch.last[static_cast<size_t>(r * group_ + g)] = position;
    }
  }
}

AttendJob Attention::job(const Layer& layer, int index, const Item& item, Scratch& scratch) const {
  const Span& span = batch_->spans[static_cast<size_t>(item.span)];
  const int earliest = first_visible(batch_->position(item.row0), layer.window) / kSegmentTokens;
  return {
      .format = cache_.format(),
      .kv = cache_.at(0, index, item.head0),
      .page_stride = cache_.page_stride(),
      .pages = span.pages,
      .page_count = span.page_count,
      .head_dim = spec_.head_dim,
      .heads = item.heads,
      .queries = item.rows * group_,
      .segment0 = std::max(item.segment0, earliest),
      .segment1 = item.segment1,
      .first = scratch.first.data(),
      .last = scratch.last.data(),
      .query = scratch.query.data(),
      .out = scratch.out.as<float>(),
      .peak = scratch.peak.as<float>(),
      .sum = scratch.sum.as<float>(),
  };
}

void Attention::run(const Layer& layer, int index, const Projected& projected, int item_index,
                    int worker, const Operand& out) {
  const Item& item = items_[static_cast<size_t>(item_index)];
  Scratch& scratch = scratch_[static_cast<size_t>(worker)];
  const Span& span = batch_->spans[static_cast<size_t>(item.span)];
  if (span.rows == 1 && item.segment1 == segments_to(span.start)) {
    store_row(layer, index, projected, item.row0, item.head0, item.heads);
  }
  fill_queries(layer, projected, item, scratch);
  AttendJob whole = job(layer, index, item, scratch);
  if (item.part < 0) {
    kernels_.attend(whole);
    return write_rows(item, scratch, out);
  }
  for (int segment = item.segment0; segment < item.segment1; segment++) {
    const auto part =
        static_cast<size_t>(item.part + segment - item.segment0) * static_cast<size_t>(group_);
    AttendJob one = whole;
    one.segment0 = std::max(segment, whole.segment0);
    one.segment1 = segment + 1;
    one.out = part_out_.as<float>() + part * static_cast<size_t>(spec_.head_dim);
    one.peak = part_peak_.as<float>() + part;
    one.sum = part_sum_.as<float>() + part;
    kernels_.attend(one);
  }
}

void Attention::write_rows(const Item& item, Scratch& scratch, const Operand& out) const {
  const int dim = spec_.head_dim, width = group_ * dim;
  float* gathered = scratch.gathered.as<float>();
  for (int r = 0; r < item.rows; r++) {
    for (int head = 0; head < item.heads; head++) {
      const int index = (head * item.rows + r) * group_;
      float* from = scratch.out.as<float>() + static_cast<size_t>(index) * dim;
      for (int g = 0; g < group_; g++) {
        kernels_.scale(from + g * dim, 1.0f / scratch.sum.as<float>()[index + g], dim);
      }
      std::memcpy(gathered + head * width, from, static_cast<size_t>(width) * sizeof(float));
    }
    kernels_.quantize(gathered, item.head0 * width, item.heads * width, out, item.row0 + r);
  }
}

void Attention::merge(int row, int worker, const Operand& out, int out_row) {
  const Span& span = batch_->span(row);
  const int dim = spec_.head_dim, segments = segments_to(span.start);
  float* merged = scratch_[static_cast<size_t>(worker)].gathered.as<float>();
  const int part0 = first_part_[static_cast<size_t>(batch_->span_of[static_cast<size_t>(row)])];
  for (int head = 0; head < spec_.heads; head++) {
    float* to = merged + static_cast<size_t>(head) * dim;
    std::fill_n(to, dim, 0.0f);
    float peak = kNoScore, sum = 0;
    for (int segment = 0; segment < segments; segment++) {
      const int part = part0 + head / group_ * segments + segment;
      const auto index = static_cast<size_t>(part * group_ + head % group_);
      kernels_.merge(to, &peak, &sum, part_out_.as<float>() + index * static_cast<size_t>(dim),
                     part_peak_.as<float>()[index], part_sum_.as<float>()[index], dim);
    }
    kernels_.scale(to, 1.0f / sum, dim);
  }
  kernels_.quantize(merged, 0, spec_.heads * dim, out, out_row);
}

}  // namespace turing
