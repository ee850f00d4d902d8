// What a cache of keys and values may be, checked in one place.
#pragma once

#include <cstdint>

namespace chairlift {

struct KvCacheForm {
  int32_t kv_type;  // CHAIRLIFT_KV_*
  int64_t block_size;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
};

// A status, with a message that begins with the name of the op.
int32_t check_form(const char* op, const KvCacheForm& form);

// Bytes of the keys and values of one block and layer, of a form that has been checked.
int64_t piece_bytes(const KvCacheForm& form);

// Whether pieces of a form that has been checked lie apart, and their numbers where numbers may.
int32_t check_pieces(const char* op, const KvCacheForm& form, const uint8_t* kv_cache,
                     int64_t num_blocks, int64_t block_stride);

}  // namespace chairlift
