// What is looked for in rows of logits that exist only as tiles, and what a thread has found.
//
// A thread passes over tiles of a row in the order of token ids.  Vectors that hold nothing of
// interest are passed by in ops/scan_logits.h; what might be something comes here, to be looked at
// exactly.  What is found of a row in the end does not depend on how the tiles were shared out.
#pragma once

#include <cstdint>

namespace chairlift {

// What is asked of a row.
struct LogitRow {
  uint64_t key;                // of the noise, see counter_random.py
  double inverse_temperature;  // 0: no noise
  float depth;                 // logits further below the largest need not be listed
  int32_t num_listed;          // the largest logits that are wanted; 0: none
  float weight_scale;          // of logits in weights; 0: no weights are added up
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
};

// A token that may win: logit / temperature + noise.
struct Contender {
  double score;
  float logit;
  int32_t id;
};

constexpr int kMaxContenders = 32;

// What a thread has found of a row.
struct LogitScan {
  float best;
  int32_t best_id;  // -1: nothing above minus infinity
  bool has_fault;   // something is not a number, or was infinite before it was edited
  bool has_too_many;

  double top_score;     // of the contenders
  float reach;          // logits below it cannot win whatever their noise
  float slope, offset;  // see ops/scan_logits.h
  int32_t num_contenders;

  int32_t num_listed;
  float floor;  // logits below it need not be listed
  uint64_t* listed;
  int64_t next_edit;
  Contender contenders[kMaxContenders];
};

// Logits of consecutive tokens from `first_id` on, a multiple of 16, for all rows.
struct LogitTile {
  const float* logits;  // [num_rows, stride]
  int64_t stride;
  int64_t num_rows;
  int64_t first_id;
  int64_t num_vectors;  // of sixteen; what is beyond the vocabulary is minus infinity
  float* weights;       // [num_rows][2], written for rows that ask: largest logit, sum of weights
};

// Each looks at sixteen logits from `first_id` on; the latter two at those in `lanes` only.
void offer_best(const LogitRow& row, LogitScan& scan, const float* logits, int64_t first_id);
void offer_listed(const LogitRow& row, LogitScan& scan, const float* logits, uint32_t lanes,
                  int64_t first_id);
void offer_contenders(const LogitRow& row, LogitScan& scan, const float* logits, uint32_t lanes,
                      int64_t first_id);

// Nothing found yet; `listed` has room for list_capacity() tokens.
void start_scan(LogitScan& scan, uint64_t* listed);

// A list is cut back to the tokens that are wanted whenever it is full.
constexpr int64_t list_capacity(int64_t num_listed) { return 2 * num_listed + 16; }

// A token in a list; the larger logit is the larger number, and of equals the lower id.
uint64_t listed_token(float logit, int64_t id);
float listed_logit(uint64_t token);
int32_t listed_id(uint64_t token);

// Logits below need not be listed, `best` being the largest so far.
float list_floor(const LogitRow& row, float best);

// A score this far below the largest may still be the largest where logits are scaled in float32:
// the logits of two tokens that score at least as much as the largest logit does are at most 27
// temperatures below it, and their float32 quotients are off by 2^-23 of that.
double score_slack(double score);

}  // namespace chairlift
