// Where keys and values lie in a quantised cache.
//
//   piece = block_size / 16 pages | page = key/value heads side by side | head:
//     key codes    u8 [dim / 4][16 tokens][4]   code + 128
//     key scales   f32 [16]
//     value codes  s8 [4][dim][4 tokens]
//     value scales f32 [16]
//
// Sixteen tokens by four dimensions (keys), or sixteen dimensions by four tokens (values), are the
// 64 bytes that one instruction multiplies.  A token that is not stored yet holds whatever was
// there before; readers give it weight zero.
#pragma once

#include <cstdint>

namespace chairlift {

constexpr int64_t kPageTokens = 16;
constexpr int64_t kGroupPages = 4;  // softmax and weights are computed over so many pages
constexpr int64_t kGroupTokens = kGroupPages * kPageTokens;
constexpr int64_t kMaxInt8HeadDim = 512;

constexpr int64_t kKvTileHeads = 16;  // key/value heads of a tile, at most

// Queries taken through a group at once, so few that what they need stays in L1, and its floats.
constexpr int64_t kKvBatchQueries = 24;
constexpr int64_t kKvBatchFloats =
    kKvBatchQueries * (kGroupTokens + kGroupTokens / 2 + 16) + 5 * 32;

struct KvLayout {
  int64_t head_dim;

  constexpr int64_t key_scales() const { return 16 * head_dim; }
  constexpr int64_t values() const { return 16 * head_dim + 64; }
  constexpr int64_t value_scales() const { return 32 * head_dim + 64; }
  constexpr int64_t head_bytes() const { return 32 * head_dim + 128; }
};

}  // namespace chairlift
