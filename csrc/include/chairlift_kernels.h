// The only public surface of the native kernels: plain C, pointers and integers.
//
// The library knows nothing of Python, requests or text.  Every function that can fail returns a
// CHAIRLIFT_* status, or nothing (0 or "") instead of a size, a rate or names, and leaves a
// one-line message for chairlift_last_error() of the same thread.
// Arguments are checked before memory is touched: nulls, alignment, sizes and their products, ids
// of blocks and rows, and whether structures fit each other.  How much memory is behind a pointer
// is the caller's word.
// Batch invariance holds for every op: what is computed for a row depends on that row (and, for
// attention, on its own sequence) only, to the last bit, whatever other rows and however many
// threads take part.
#ifndef CHAIRLIFT_KERNELS_H
#define CHAIRLIFT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#if defined(CHAIRLIFT_BUILD)
#define CHAIRLIFT_API __declspec(dllexport)
#else
#define CHAIRLIFT_API __declspec(dllimport)
#endif
#else
#define CHAIRLIFT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CHAIRLIFT_ABI_VERSION 1

#define CHAIRLIFT_OK 0
#define CHAIRLIFT_INVALID_ARGUMENT 1
#define CHAIRLIFT_UNSUPPORTED_ISA 2
#define CHAIRLIFT_OUT_OF_MEMORY 3

// Columns of a packed weight panel, the same for every instruction set.
#define CHAIRLIFT_PANEL_WIDTH 32

// -- the library ---------------------------------------------------------------------------------

// CHAIRLIFT_ABI_VERSION of the built library; a caller written for another must not go on.
CHAIRLIFT_API int32_t chairlift_abi_version(void);

// Message of the last failure on the calling thread; "" if there was none.
CHAIRLIFT_API const char* chairlift_last_error(void);

// -- instruction sets ----------------------------------------------------------------------------

// Names that this machine can run, widest first, separated by commas: "avx512,avx2,scalar".
CHAIRLIFT_API const char* chairlift_available_isas(void);

// Name of the one in use.
CHAIRLIFT_API const char* chairlift_isa(void);

// Choose one for the whole process: a name, or FLOATS+BYTES with the names of two levels (below);
// "auto" is the widest of both.  Not while an op is running.
CHAIRLIFT_API int32_t chairlift_set_isa(const char* name);

// Kinds of arithmetic.  Each has levels of its own.
#define CHAIRLIFT_FLOATS 0
#define CHAIRLIFT_BYTES 1

// Levels that this machine can run, widest first: "avx512_vnni,avx2,scalar"; "" for no such kind.
CHAIRLIFT_API const char* chairlift_levels(int32_t arithmetic);

// rates[i]: 1e9 multiply-adds per second of the calling thread at level i, in its linear kernel on
// a tile that stays in L1.  Takes about ten milliseconds.
CHAIRLIFT_API int32_t chairlift_measure_levels(int32_t arithmetic, double* rates);

// The processor's identity, with all that decides what it can run: equal texts, equal levels.  ""
// where it cannot be asked.
CHAIRLIFT_API const char* chairlift_processor(void);

// float32 multiply-adds per second that one thread reaches from registers, in units of 1e9.
CHAIRLIFT_API double chairlift_measure_fma(void);

// -- threads -------------------------------------------------------------------------------------

typedef struct chairlift_pool chairlift_pool;

// A pool of `num_threads`, the calling thread included.  Workers start with the first op, and
// again in a child process after fork.  Several threads may share a pool; their ops take turns.
CHAIRLIFT_API int32_t chairlift_pool_create(int32_t num_threads, chairlift_pool** pool);
CHAIRLIFT_API void chairlift_pool_destroy(chairlift_pool* pool);

// -- linear --------------------------------------------------------------------------------------

// What weights are stored as.  They are read as the floats that they stand for: products of equal
// floats have equal bits, however they are stored.
#define CHAIRLIFT_FLOAT32 0
#define CHAIRLIFT_FLOAT16 1   // binary16
#define CHAIRLIFT_BFLOAT16 2  // the upper half of a float32

// Numbers in the packed form, panels of 32 outputs, the last one padded with zeros; 0 if there is
// no such matrix.
CHAIRLIFT_API int64_t chairlift_linear_f32_size(int64_t out_features, int64_t in_features);

// Pack a row-major matrix [out_features, in_features] of numbers of `weight_type`, which they keep.
CHAIRLIFT_API int32_t chairlift_linear_f32_pack(chairlift_pool* pool, const void* weight,
                                                int32_t weight_type, int64_t out_features,
                                                int64_t in_features, void* packed);

// out[rows, out_features] = x[rows, in_features] W^T + bias.  All dense and row-major; `bias` may
// be null.  Each output is one chain of multiply-adds in the order of in_features.
CHAIRLIFT_API int32_t chairlift_linear_f32(chairlift_pool* pool, const float* x, int64_t rows,
                                           const void* packed, int32_t weight_type,
                                           const float* bias, int64_t out_features,
                                           int64_t in_features, float* out);

// out[num_ids, in_features] = rows `ids` of a packed matrix.
CHAIRLIFT_API int32_t chairlift_rows_f32(chairlift_pool* pool, const void* packed,
                                         int32_t weight_type, int64_t out_features,
                                         int64_t in_features, const int32_t* ids, int64_t num_ids,
                                         float* out);

// -- linear on bytes -----------------------------------------------------------------------------

// A quantised matrix as it is handed over: weight = scale * code + minimum.
typedef struct chairlift_grouped_weights {
  int64_t struct_size;  // sizeof(chairlift_grouped_weights), checked

  const uint8_t* codes;  // [out_features, in_features], below 2^bits, checked
  const float* scales;   // [out_features, ceil(in_features / group_size)]
  const float* mins;     // the same shape
  int64_t out_features;
  int64_t in_features;
  int32_t bits;        // 4 or 8
  int32_t group_size;  // 16 or 32

  // Not 0: the rows are gates and then as many ups; pack them in turn, 16 or 32 of each.
  int32_t interleave;
  // Not 0: requantise to signed bytes with one scale per row, multiplied with activations in groups
  // of 64 (of 32 if 64 does not divide in_features).
  int32_t per_channel;
} chairlift_grouped_weights;

// Bytes of the packed form; 0 if the weights are no such matrix.
CHAIRLIFT_API int64_t chairlift_linear_q8_size(const chairlift_grouped_weights* weights);

// `packed` is aligned to 8 bytes, best to 64.
CHAIRLIFT_API int32_t chairlift_linear_q8_pack(chairlift_pool* pool,
                                               const chairlift_grouped_weights* weights,
                                               void* packed);

// out[rows, out_features] = q(x)[rows, in_features] W^T + bias + residual, where q quantises each
// group of 32 or 64 of a row to signed bytes.  `bias` and `residual` may be null; `residual` may be
// `out`.  Integer sums are exact; each output is one chain of multiply-adds in the order of groups.
CHAIRLIFT_API int32_t chairlift_linear_q8(chairlift_pool* pool, const float* x, int64_t rows,
                                          const void* packed, const float* bias,
                                          const float* residual, float* out);

// out = q(silu(gate) * up) W_down^T + residual, with gate and up from q(x); `gate_up` is packed
// with an interleave.
CHAIRLIFT_API int32_t chairlift_mlp_q8(chairlift_pool* pool, const float* x, int64_t rows,
                                       const void* gate_up, const void* down, const float* residual,
                                       float* out);

// The same on norm(x) = x / sqrt(mean(x^2) + eps) * norm, row by row; `norm` [in_features] may be
// null, and so may biases.  That of `gate_up` is interleaved like its rows.
CHAIRLIFT_API int32_t chairlift_norm_linear_q8(chairlift_pool* pool, const float* x, int64_t rows,
                                               const float* norm, float eps, const void* packed,
                                               const float* bias, const float* residual,
                                               float* out);
CHAIRLIFT_API int32_t chairlift_norm_mlp_q8(chairlift_pool* pool, const float* x, int64_t rows,
                                            const float* norm, float eps, const void* gate_up,
                                            const float* gate_up_bias, const void* down,
                                            const float* down_bias, const float* residual,
                                            float* out);

// out[num_ids, in_features] = rows `ids` of a packed matrix that is not interleaved.
CHAIRLIFT_API int32_t chairlift_rows_q8(chairlift_pool* pool, const void* packed,
                                        const int32_t* ids, int64_t num_ids, float* out);

// Rows of ceil(width / group_size) records, one after the other: group_size codes (int8), scale
// (float), scale * sum of the codes (float), their sum (int32), that of the first half (int32).
// Scales are the largest magnitude / 127, rounded to eleven bits; a group that is not finite has a
// scale that is not a number.  group_size is 32 or 64.
CHAIRLIFT_API int32_t chairlift_quantize_rows(chairlift_pool* pool, const float* x, int64_t rows,
                                              int64_t width, int64_t group_size, uint8_t* records);

// Products of bytes per second that all threads of a pool reach together, in units of 1e9.
// 0 for a null.
CHAIRLIFT_API double chairlift_measure_int8_dot(chairlift_pool* pool);

// -- output head and sampling --------------------------------------------------------------------

// Contenders of a row that are handed over at most.
#define CHAIRLIFT_MAX_CONTENDERS 8

// What to find in one row of logits.
typedef struct chairlift_row_query {
  uint64_t key;          // of the row's noise
  float temperature;     // 0: nothing but the largest logit
  float depth;           // logits further below the largest are not listed
  int32_t list_size;     // how many of the largest logits are wanted
  int32_t wants_weight;  // 1: the total weight is wanted

  // Edits of single logits before anything is looked for: edit_values[i] is added to the logit of
  // edit_ids[i] for first_edit <= i < first_penalty, then penalties apply for edit_values[i]
  // occurrences for i < last_edit.  Minus infinity masks a token.
  int64_t first_edit;
  int64_t first_penalty;
  int64_t last_edit;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t reserved;
} chairlift_row_query;

// What was found in it.
typedef struct chairlift_row_candidates {
  // Sum of exp((logit - best_logit) / temperature), to about 1e-6.
  double total_weight;

  // The largest logit and the lowest id that has it; -1 if all are minus infinity.  Not a number if
  // some logit is not, or was infinite before an edit; infinite if one is.  If it is not finite,
  // nothing else was looked for.
  float best_logit;
  int32_t best_id;

  // Every token that may have the largest sum of logit / temperature and Gumbel noise, the quotient
  // being computed as float32((logit - best) / temperature) or more exactly; by id.
  int32_t num_contenders;  // -1: too many

  // The `list_size` largest logits that are at most `depth` below the largest, best first, of
  // equals the lowest ids.  Some that lie slightly deeper may be there as well.
  int32_t num_listed;

  int32_t contender_ids[CHAIRLIFT_MAX_CONTENDERS];
  float contender_logits[CHAIRLIFT_MAX_CONTENDERS];
} chairlift_row_candidates;

// Rows of logits, which themselves are not kept.  The rest of sampling (softmax in float32, top-p,
// ties of scores) is the caller's, who decides alone.
typedef struct chairlift_candidates {
  int64_t struct_size;  // sizeof(chairlift_candidates), checked

  const chairlift_row_query* queries;  // [rows]
  const int32_t* edit_ids;             // [num_edits]
  const float* edit_values;            // [num_edits]
  int64_t num_edits;
  int64_t max_listed;  // at least every list size

  chairlift_row_candidates* found;  // [rows]
  int32_t* listed_ids;              // [rows][max_listed]
  float* listed_logits;             // [rows][max_listed]
} chairlift_candidates;

// Logits as by chairlift_linear_f32.
CHAIRLIFT_API int32_t chairlift_candidates_f32(chairlift_pool* pool, const float* x, int64_t rows,
                                               const void* packed, int32_t weight_type,
                                               const float* bias, int64_t out_features,
                                               int64_t in_features,
                                               const chairlift_candidates* task);

// Logits as by chairlift_norm_linear_q8.
CHAIRLIFT_API int32_t chairlift_candidates_q8(chairlift_pool* pool, const float* x, int64_t rows,
                                              const float* norm, float eps, const void* packed,
                                              const float* bias, const chairlift_candidates* task);

// -- cache of keys and values --------------------------------------------------------------------

// What keys and values are stored as.
#define CHAIRLIFT_KV_INT8 1
#define CHAIRLIFT_KV_FLOAT16 2
#define CHAIRLIFT_KV_BFLOAT16 3
#define CHAIRLIFT_KV_FLOAT32 4

// Bytes of a *piece*, the keys and values of one block and layer; 0 if the cache cannot have that
// form (chairlift_last_error() says why).  Pieces should start on a cache line.  Of bytes they are
// opaque to the caller; of floats they are [2 = keys, values][block_size][num_kv_heads][head_dim].
CHAIRLIFT_API int64_t chairlift_kv_piece_bytes(int32_t kv_type, int64_t block_size,
                                               int64_t num_kv_heads, int64_t head_dim);

typedef struct chairlift_kv_to_cache {
  int64_t struct_size;  // sizeof(chairlift_kv_to_cache), checked

  const float* key;      // [num_tokens][num_kv_heads, head_dim], dense heads
  const float* value;    // the same
  const int64_t* slots;  // [num_tokens] block * block_size + offset
  uint8_t* kv_cache;     // piece of block 0 of the layer in question

  int64_t key_stride;    // floats from token to token; may be negative
  int64_t value_stride;  // the same
  int64_t block_stride;  // bytes
  int64_t num_blocks;
  int64_t num_tokens;
  int64_t block_size;
  int64_t num_kv_heads;
  int64_t head_dim;
  int32_t kv_type;  // one of the floats
} chairlift_kv_to_cache;

// Stores keys and values of a step, rounded to the nearest number of the cache's type (ties to
// even).
CHAIRLIFT_API int32_t chairlift_store_kv(chairlift_pool* pool, const chairlift_kv_to_cache* task);

typedef struct chairlift_qkv_to_cache {
  int64_t struct_size;  // sizeof(chairlift_qkv_to_cache), checked

  const float* qkv;          // [num_tokens, (num_heads + 2 num_kv_heads) * head_dim], dense
  const float* q_norm;       // [head_dim], or null
  const float* k_norm;       // the same
  const float* cos;          // [max_position, rope_dim / 2]
  const float* sin;          // the same
  const int32_t* positions;  // [num_tokens]
  const int64_t* slots;      // [num_tokens] block * block_size + offset
  uint8_t* kv_cache;         // piece of block 0 of the layer in question
  void* query;               // [num_tokens, num_heads, head_dim], written: int8_t, or float
  float* query_scales;       // [num_tokens, num_heads], written; for a cache of bytes only

  int64_t block_stride;  // bytes
  int64_t num_blocks;
  int64_t num_tokens;
  int64_t max_position;
  int64_t block_size;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t rope_dim;
  int64_t rope_interleaved;
  float norm_eps;
  int32_t kv_type;
} chairlift_qkv_to_cache;

// For every token: normalises its query and key heads (if weights are given), rotates them, stores
// keys and values, and leaves the queries.  A cache of bytes makes all three bytes, each head of
// each token alone: scale = max |x| / 127, code = x / scale to the nearest.  The same bits on every
// machine.
CHAIRLIFT_API int32_t chairlift_store_qkv(chairlift_pool* pool, const chairlift_qkv_to_cache* task);

typedef struct chairlift_attention {
  int64_t struct_size;  // sizeof(chairlift_attention), checked

  const void* query;            // [num_tokens, num_heads, head_dim], dense: int8_t, or float
  const float* query_scales;    // [num_tokens, num_heads]; for a cache of bytes only
  float* out;                   // [num_tokens, num_heads, head_dim]
  const uint8_t* kv_cache;      // piece of block 0 of the layer in question
  const int32_t* query_start;   // [num_sequences + 1]
  const int32_t* context_lens;  // [num_sequences]
  const int32_t* block_tables;  // [num_sequences, max_blocks]

  int64_t block_stride;  // bytes
  int64_t num_blocks;
  int64_t num_tokens;
  int64_t num_sequences;
  int64_t max_blocks;
  int64_t block_size;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t sliding_window;  // 0: none
  float scale;
  int32_t kv_type;
} chairlift_attention;

// Causal attention of new tokens (the last ones of their sequences) over a stored context, their
// own keys and values included.  A prompt computed at once, in chunks or token by token gives equal
// bits.
// Floats: multiply-adds in float32 over what is stored; softmax runs online over groups of 16
// positions, in order of position.
// Bytes: query-key products are products of bytes; weights are rounded to 16 bits within groups of
// 64 positions, and meet the values' bytes in exact integers.
CHAIRLIFT_API int32_t chairlift_paged_attention(chairlift_pool* pool,
                                                const chairlift_attention* task);

// -- halves of layers ----------------------------------------------------------------------------

// The half with attention: out = x + W_o attention(rope(W_qkv norm(x))); the keys and values of all
// tokens are stored first.
typedef struct chairlift_attention_block {
  int64_t struct_size;  // sizeof(chairlift_attention_block), checked

  const float* x;            // [num_tokens, hidden], dense
  float* out;                // the same shape, not `x`
  const float* norm;         // [hidden]
  const void* qkv;           // packed; queries, keys and values below each other
  const float* qkv_bias;     // may be null
  const void* output;        // packed
  const float* output_bias;  // may be null
  const float* q_norm;       // [head_dim], or null
  const float* k_norm;       // the same
  uint8_t* kv_cache;         // piece of block 0 of this layer

  // What layers have in common.  Left out there: whatever is a field here, and what is computed in
  // between: `qkv`, `query`, `query_scales`, and `out` of the second.  `norm_eps` is that of `norm`
  // too.
  const chairlift_qkv_to_cache* store;
  const chairlift_attention* attention;
} chairlift_attention_block;

// The half without: out = x + W_down (silu(W_gate norm(x)) * W_up norm(x)).
typedef struct chairlift_mlp_block {
  int64_t struct_size;  // sizeof(chairlift_mlp_block), checked

  const float* x;             // [rows, hidden], dense
  float* out;                 // the same shape; may be `x`
  const float* norm;          // [hidden]
  const void* gate_up;        // packed with interleave
  const float* gate_up_bias;  // may be null
  const void* down;           // packed
  const float* down_bias;     // may be null
  int64_t rows;
  float eps;
} chairlift_mlp_block;

// One or the other.
typedef struct chairlift_block {
  const chairlift_attention_block* attention;
  const chairlift_mlp_block* mlp;
} chairlift_block;

// Blocks one after the other; ends with the first that fails.
CHAIRLIFT_API int32_t chairlift_run_blocks(chairlift_pool* pool, const chairlift_block* blocks,
                                           int64_t num_blocks);

// 1e9 bytes per second at which all threads together read `num_bytes` of each of the blocks; 0 if
// they cannot be read.
CHAIRLIFT_API double chairlift_measure_read(chairlift_pool* pool, const uint8_t* memory,
                                            int64_t stride, int64_t num_bytes,
                                            const int32_t* blocks, int64_t num_blocks);

#ifdef __cplusplus
}
#endif

#endif  // CHAIRLIFT_KERNELS_H
