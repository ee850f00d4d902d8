// Where keys and values lie in a cache.
//
//   piece = pages of 16 tokens | page = key/value heads side by side | head, as bytes:
//     key codes    u8 [dim / 4][16 tokens][4]   code + 128
//     key scales   f32 [16]
//     value codes  s8 [4][dim][4 tokens]
//     value scales f32 [16]
//   or as floats of type T:
//     keys         T [dim][16 tokens]
//     values       T [16 tokens][dim rounded up to 16]
//
// Sixteen tokens (keys), or sixteen dimensions (values), are what one instruction multiplies; of
// bytes it takes four dimensions, or four tokens, at a time.  A token that is not stored yet holds
// whatever was there before; readers leave it out.
//
// Pages of floats are smaller where 16 does not divide the block size: they have as many tokens as
// the largest power of two that does.
#pragma once

#include <cstdint>

namespace chairlift {

constexpr int64_t kPageTokens = 16;
constexpr int64_t kGroupPages = 4;  // softmax and weights are computed over so many pages
constexpr int64_t kGroupTokens = kGroupPages * kPageTokens;
constexpr int64_t kLaneFloats = 16;
constexpr int64_t kMaxInt8HeadDim = 512;

constexpr int64_t kKvTileHeads = 16;  // key/value heads of a tile, at most

// Queries taken through a group at once, so few that what they need stays in L1, and its floats.
constexpr int64_t kKvBatchQueries = 24;
constexpr int64_t kKvBatchFloats =
    kKvBatchQueries * (kGroupTokens + kGroupTokens / 2 + 16) + 5 * 32;

// Heads of floats that storing a row takes as scratch.
constexpr int64_t kStoreScratchHeads = 18;

struct KvLayout {
  int64_t head_dim;

  constexpr int64_t key_scales() const { return 16 * head_dim; }
  constexpr int64_t values() const { return 16 * head_dim + 64; }
  constexpr int64_t value_scales() const { return 32 * head_dim + 64; }
  constexpr int64_t head_bytes() const { return 32 * head_dim + 128; }
};

struct FloatKvLayout {
  int64_t head_dim;
  int64_t number_bytes;
  int64_t page_tokens;

  constexpr int64_t padded_dim() const {
    return (head_dim + kLaneFloats - 1) / kLaneFloats * kLaneFloats;
  }
  constexpr int64_t values() const { return page_tokens * head_dim * number_bytes; }
  constexpr int64_t head_bytes() const {
    return page_tokens * (head_dim + padded_dim()) * number_bytes;
  }
};

// Tokens of a page of floats.
constexpr int64_t float_page_tokens(int64_t block_size) {
  const int64_t power = block_size & -block_size;
  return power < kPageTokens ? power : kPageTokens;
}

}  // namespace chairlift
