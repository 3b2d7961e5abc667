// Softmax attention over paged keys and values, one segment of two pages at a time.
//
// A segment's scores, weights and sum of values do not depend on other segments, and segments are
// folded together in the order of their positions (Milakov and Gimelshein 2018, "Online normalizer
// calculation for softmax"). A masked position has weight zero and a masked segment folds to
// nothing, so a row gets the same bits whatever rows share its pass and whoever computes which
// segment.
#pragma once

#include "simd/math.inl"

namespace turing::TURING_ISA {

// Both formats contract one 32-bit unit at a time: a pair of bf16, or one fp32.
struct PairFormat {
  static constexpr KvFormat kFormat = KvFormat::BF16;
  static constexpr int kStep = 2;
  using Vector = Pairs;
  static Vector load_units(const std::byte* p) { return load_pairs(p); }
  static F contract(F acc, Vector x, uint32_t y) { return dot_pairs(acc, x, y); }
  static void store_weights(uint32_t* row, int token, F weights) {
    store_bfloat(reinterpret_cast<uint16_t*>(row) + token, weights);
  }
};

struct FloatFormat {
  static constexpr KvFormat kFormat = KvFormat::F32;
  static constexpr int kStep = 1;
  using Vector = F;
  static Vector load_units(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }
  static F contract(F acc, Vector x, uint32_t y) {
    return fma(x, set(__builtin_bit_cast(float, y)), acc);
  }
  static void store_weights(uint32_t* row, int token, F weights) {
    store(reinterpret_cast<float*>(row) + token, weights);
  }
};

constexpr int kUnitRow = kPageTokens * 4;  // bytes of one unit of all tokens of a page

// The part of a sequence that one softmax pass covers.
struct Segment {
  const std::byte* keys[kSegmentPages];
  const std::byte* values[kSegmentPages];
  const std::byte* next[kSegmentPages];  // keys that will be read after this segment
  int pages;
  int start;   // position of the first token
  int tokens;  // up to the last one that any row of the pass sees
};

struct Scratch {
  alignas(64) float scores[kQueryRows][kSegmentTokens];
  alignas(64) uint32_t weights[kQueryRows][kSegmentTokens];
  alignas(64) float out[kQueryRows][256];
  float peak[kQueryRows];
  float sum[kQueryRows];
};

// scores[r][0 ... 63] = query rows x keys of one page; `ahead` is fetched meanwhile.
template <class Format, int R>
inline void score_page(const std::byte* keys, const uint32_t* query, int units,
                       float (*scores)[kSegmentTokens], const std::byte* ahead) {
  for (int pass = 0; pass < 4; pass += kPassVectors) {
    F acc[R][kPassVectors];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
      for (int j = 0; j < kPassVectors; j++) acc[r][j] = zero();
    }
    const std::byte* row = keys + pass * 64;
    for (int u = 0; u < units; u++, row += kUnitRow) {
      if (pass == 0) {
#pragma GCC unroll 4
        for (int line = 0; line < kUnitRow; line += 64) fetch_far(ahead + u * kUnitRow + line);
      }
      typename Format::Vector vector[kPassVectors];
#pragma GCC unroll 4
      for (int j = 0; j < kPassVectors; j++) vector[j] = Format::load_units(row + j * 64);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < kPassVectors; j++) {
          acc[r][j] = Format::contract(acc[r][j], vector[j], query[r * units + u]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
      for (int j = 0; j < kPassVectors; j++) store(&scores[r][(pass + j) * 16], acc[r][j]);
    }
  }
}

// Turns a row's scores into weights. Positions first ... last of the segment are visible.
template <class Format>
inline void soften(const float* scores, int vectors, int first, int last, uint32_t* weights,
                   float& peak, float& total) {
  const F none = set(kNoScore);
  const bool whole = first <= 0 && last >= vectors * 16 - 1;
  F highest = none;
  for (int j = 0; j < vectors; j++) {
    const F score = load(scores + j * 16);
    highest =
        max(highest, whole ? score : pick(lanes(first - j * 16, last + 1 - j * 16), score, none));
  }
  peak = top(highest);
  const F base = set(peak);
  F weight_sum = zero();
  for (int j = 0; j < vectors; j++) {
    F weight = exp2(load(scores + j * 16) - base);
    if (!whole) weight = pick(lanes(first - j * 16, last + 1 - j * 16), weight, zero());
    weight_sum = weight_sum + weight;
    Format::store_weights(weights, j * 16, weight);
  }
  total = sum(weight_sum);
}

// out[r][16 (d0 ... d0 + V - 1)] = weights x values of the segment.
template <class Format, int R, int V>
inline void mix_values(const Segment& segment, const uint32_t (*weights)[kSegmentTokens],
                       int head_dim, int d0, float (*out)[256], bool ahead) {
  F acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) acc[r][j] = zero();
  }
  for (int page = 0; page < segment.pages; page++) {
    const int left = segment.tokens - page * kPageTokens;
    const int units =
        ((left < kPageTokens ? left : kPageTokens) + Format::kStep - 1) / Format::kStep;
    const std::byte* row = segment.values[page] + d0 * 64;
    const int unit0 = page * kPageTokens / Format::kStep;
    for (int u = 0; u < units; u++, row += head_dim * 4) {
      if (ahead) {
#pragma GCC unroll 4
        for (int line = 0; line < 256; line += 64) fetch_far(segment.next[page] + u * 256 + line);
      }
      typename Format::Vector vector[V];
#pragma GCC unroll 4
      for (int j = 0; j < V; j++) vector[j] = Format::load_units(row + j * 64);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) {
          acc[r][j] = Format::contract(acc[r][j], vector[j], weights[r][unit0 + u]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) store(&out[r][(d0 + j) * 16], acc[r][j]);
  }
}

void merge(float* out, float* peak, float* total, const float* later, float later_peak,
           float later_total, int head_dim) {
  const float highest = *peak > later_peak ? *peak : later_peak;
  const F keep = exp2(set(*peak - highest)), take = exp2(set(later_peak - highest));
  *peak = highest;
  *total = *total * lane0(keep) + later_total * lane0(take);
  for (int i = 0; i < head_dim; i += 16) {
    store(out + i, fma(load(later + i), take, load(out + i) * keep));
  }
}

// R query rows against one segment of one KV head, folded into the job's results.
template <class Format, int R>
inline void attend_rows(const AttendJob& job, const Segment& segment, int head, int row,
                        Scratch& scratch) {
  const int units = job.head_dim / Format::kStep;
  const size_t index = static_cast<size_t>(head) * job.queries + row;
  const auto* query = reinterpret_cast<const uint32_t*>(job.query) + index * units;
  for (int page = 0; page < segment.pages; page++) {
    float(*scores)[kSegmentTokens] =
        reinterpret_cast<float(*)[kSegmentTokens]>(&scratch.scores[0][page * kPageTokens]);
    score_page<Format, R>(segment.keys[page], query, units, scores, segment.values[page]);
  }
  for (int r = 0; r < R; r++) {
    soften<Format>(scratch.scores[r], segment.pages * 4, job.first[row + r] - segment.start,
                   job.last[row + r] - segment.start, scratch.weights[r], scratch.peak[r],
                   scratch.sum[r]);
  }
  const int vectors = job.head_dim / 16;
  int d0 = 0;
  for (; d0 + kPassVectors <= vectors; d0 += kPassVectors) {
    mix_values<Format, R, kPassVectors>(segment, scratch.weights, job.head_dim, d0, scratch.out,
                                        d0 == 0);
  }
  for (; d0 < vectors; d0++) {
    mix_values<Format, R, 1>(segment, scratch.weights, job.head_dim, d0, scratch.out, false);
  }
  for (int r = 0; r < R; r++) {
    merge(job.out + (index + r) * job.head_dim, job.peak + index + r, job.sum + index + r,
          scratch.out[r], scratch.peak[r], scratch.sum[r], job.head_dim);
  }
}

inline const std::byte* page_at(const AttendJob& job, int segment, int page, int head) {
  int index = segment * kSegmentPages + page;
  if (index >= job.page_count) index = job.page_count - 1;
  return job.kv + static_cast<size_t>(job.pages[index]) * job.page_stride +
         static_cast<size_t>(head) * kv_head_bytes(job.format, job.head_dim);
}

inline Segment segment_at(const AttendJob& job, int index, int head, int last) {
  Segment segment;
  segment.start = index * kSegmentTokens;
  segment.tokens = least(last + 1 - segment.start, kSegmentTokens);
  segment.pages = (segment.tokens + kPageTokens - 1) / kPageTokens;
  const bool more = head + 1 < job.heads;
  const int next = more ? index : least(index + 1, job.segment1 - 1);
  for (int page = 0; page < kSegmentPages; page++) {
    segment.keys[page] = page_at(job, index, page, head);
    segment.values[page] = segment.keys[page] + kv_head_bytes(job.format, job.head_dim) / 2;
    segment.next[page] = page_at(job, next, page, more ? head + 1 : 0);
  }
  return segment;
}

template <class Format>
inline void attend_format(const AttendJob& job) {
  Scratch scratch;
  const int rows = job.heads * job.queries;
  for (int r = 0; r < rows; r++) {
    job.peak[r] = kNoScore;
    job.sum[r] = 0;
    for (int i = 0; i < job.head_dim; i += 16) store(job.out + r * job.head_dim + i, zero());
  }
  int last = 0;
  for (int r = 0; r < job.queries; r++) last = job.last[r] > last ? job.last[r] : last;
  for (int index = job.segment0; index < job.segment1; index++) {
    for (int head = 0; head < job.heads; head++) {
      const Segment segment = segment_at(job, index, head, last);
      for (int row = 0; row < job.queries; row += kQueryRows) {
        with_rows<kQueryRows>(least(kQueryRows, job.queries - row), [&]<int R>() {
          attend_rows<Format, R>(job, segment, head, row, scratch);
        });
      }
    }
  }
}

void attend(const AttendJob& job) {
  if (job.format == KvFormat::BF16) {
    attend_format<PairFormat>(job);
  } else {
    attend_format<FloatFormat>(job);
  }
}

}  // namespace turing::TURING_ISA
