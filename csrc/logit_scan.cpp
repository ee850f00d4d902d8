#include "logit_scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace chairlift {
namespace {

constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
constexpr double kLargestNoise = 23.0;  // 22.9, rounded up
constexpr double kLog2E = 1.4426950408889634;
constexpr double kFloatBits = 8388608.0;  // units of an exponent in the bits of a float
constexpr double kSteepScores = 1e6;      // beyond them a float does not resolve noise
constexpr float kLargestFloat = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float clamp_to_float(double x) {
  const double limit = static_cast<double>(kLargestFloat);
  return static_cast<float>(std::min(std::max(x, -limit), limit));
}

uint32_t noise_word(uint64_t key, int64_t id) {
  uint64_t z = key + (static_cast<uint64_t>(id) / 2 + 1) * kGamma;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return static_cast<uint32_t>(id % 2 == 0 ? z : z >> 32);
}

double gumbel(uint32_t word) { return -std::log(-std::log((word + 0.5) * (1.0 / 4294967296.0))); }

void drop_losers(LogitScan& scan) {
  const double limit = scan.top_score - score_slack(scan.top_score);
  Contender* end = std::remove_if(scan.contenders, scan.contenders + scan.num_contenders,
                                  [&](const Contender& c) { return c.score < limit; });
  scan.num_contenders = static_cast<int32_t>(end - scan.contenders);
}

void set_top_score(const LogitRow& row, LogitScan& scan, double score) {
  scan.top_score = score;
  const double low = score - score_slack(score);
  const float reach = clamp_to_float((low - kLargestNoise) / row.inverse_temperature);
  scan.reach = std::nextafter(reach, -kInfinity);
  const double slope = row.inverse_temperature * kLog2E * kFloatBits;
  if (std::fabs(low) > kSteepScores || slope > kLargestFloat) {
    scan.slope = 0;
    scan.offset = kInfinity;
    return;
  }
  // The margin outweighs the rounding of floats: of the slope, of the offset and of their sum.
  const double margin = 1e-3 + 1e-6 * std::fabs(low);
  scan.slope = static_cast<float>(slope);
  scan.offset = static_cast<float>((127.0 + 32.0 - low * kLog2E + margin) * kFloatBits);
}

void add_contender(LogitScan& scan, const Contender& contender) {
  if (scan.num_contenders == kMaxContenders) drop_losers(scan);
  if (scan.num_contenders == kMaxContenders) {
    scan.has_too_many = true;
    return;
  }
  scan.contenders[scan.num_contenders++] = contender;
}

// The lowest lane, taken out.
int take_lane(uint32_t* lanes) {
#if defined(__GNUC__)
  const int lane = __builtin_ctz(*lanes);
#else
  int lane = 0;
  while ((*lanes >> lane & 1) == 0) ++lane;
#endif
  *lanes &= *lanes - 1;
  return lane;
}

// Keeps the largest.
void cut_list(const LogitRow& row, LogitScan& scan) {
  uint64_t* last = scan.listed + row.num_listed - 1;
  std::nth_element(scan.listed, last, scan.listed + scan.num_listed, std::greater<uint64_t>());
  scan.num_listed = row.num_listed;
  scan.floor = std::max(scan.floor, listed_logit(*last));
}

}  // namespace

double score_slack(double score) { return 2e-5 + 1e-14 * std::fabs(score); }

float list_floor(const LogitRow& row, float best) {
  return clamp_to_float(best - row.depth * (1.0 + 1e-6) - 1e-6 * std::fabs(best));
}

uint64_t listed_token(float logit, int64_t id) {
  logit += 0.0f;  // one zero: the negative one is its equal
  uint32_t bits;
  std::memcpy(&bits, &logit, sizeof bits);
  bits = bits & 0x80000000 ? ~bits : bits | 0x80000000;
  return static_cast<uint64_t>(bits) << 32 | (0xffffffff - static_cast<uint32_t>(id));
}

float listed_logit(uint64_t token) {
  uint32_t bits = static_cast<uint32_t>(token >> 32);
  bits = bits & 0x80000000 ? bits & 0x7fffffff : ~bits;
  float logit;
  std::memcpy(&logit, &bits, sizeof logit);
  return logit;
}

int32_t listed_id(uint64_t token) {
  return static_cast<int32_t>(0xffffffff - static_cast<uint32_t>(token));
}

void start_scan(LogitScan& scan, uint64_t* listed) {
  scan.best = -kInfinity;
  scan.best_id = -1;
  scan.has_fault = scan.has_too_many = false;
  scan.top_score = -std::numeric_limits<double>::infinity();
  scan.reach = scan.floor = -kInfinity;
  scan.slope = 0;
  scan.offset = kInfinity;
  scan.num_contenders = scan.num_listed = 0;
  scan.listed = listed;
  scan.next_edit = 0;
}

void offer_best(const LogitRow& row, LogitScan& scan, const float* logits, int64_t first_id) {
  for (int lane = 0; lane < 16; ++lane) {
    const float x = logits[lane];
    if (x > scan.best) {
      scan.best = x;
      scan.best_id = static_cast<int32_t>(first_id + lane);
    } else if (std::isnan(x)) {
      scan.has_fault = true;
    }
  }
  if (row.num_listed > 0) scan.floor = std::max(scan.floor, list_floor(row, scan.best));
}

void offer_listed(const LogitRow& row, LogitScan& scan, const float* logits, uint32_t lanes,
                  int64_t first_id) {
  while (lanes != 0) {
    const int lane = take_lane(&lanes);
    const float x = logits[lane];
    if (x < scan.floor || x == -kInfinity) continue;
    if (scan.num_listed == list_capacity(row.num_listed)) cut_list(row, scan);
    scan.listed[scan.num_listed++] = listed_token(x, first_id + lane);
  }
}

void offer_contenders(const LogitRow& row, LogitScan& scan, const float* logits, uint32_t lanes,
                      int64_t first_id) {
  while (lanes != 0) {
    const int lane = take_lane(&lanes);
    if (!std::isfinite(logits[lane])) continue;
    const int64_t id = first_id + lane;
    const double score = logits[lane] * row.inverse_temperature + gumbel(noise_word(row.key, id));
    if (score < scan.top_score - score_slack(scan.top_score)) continue;
    if (score > scan.top_score) set_top_score(row, scan, score);
    add_contender(scan, {score, logits[lane], static_cast<int32_t>(id)});
  }
}

}  // namespace chairlift
