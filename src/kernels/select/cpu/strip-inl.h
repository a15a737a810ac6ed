// Strips: 64 keys of the indexer, transposed to [head_size, 64] and converted to the arithmetic type.
//
// With one query the transposition is as much work as the scores. It moves words of 32 bits, whatever the
// type: a word is one float, two bfloat16 or four int8, taken apart when it has arrived. Keys may lie in
// pages and may have 8 bits; strips begin at multiples of 64 positions, so that four neighbours share a page.
// Included once per Highway target.
#if defined(GSA_KERNELS_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GSA_KERNELS_STRIP_INL_H_
#undef GSA_KERNELS_STRIP_INL_H_
#else
#define GSA_KERNELS_STRIP_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "kernels/common/bf16_tile-inl.h"
#include "kernels/common/key_rows.h"
#include "kernels/common/tile-inl.h"
#include "kernels/select/select.h"

HWY_BEFORE_NAMESPACE();
namespace gsa {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kStrip = 64;
// Values of a strip: whole 16-byte vectors of a key are written, whatever its size.
constexpr std::int64_t strip_values(std::int64_t head_size) { return padded(head_size) * kStrip; }

// The indexer's keys of one sequence.
struct IndexKeys {
  IndexKeys(const Indexer& x, DType dtype, std::int64_t sequence, std::int64_t first_key)
      : type(dtype),
        size(x.head_size),
        eight_bit(x.k_scale != nullptr),
        rows(x.k, x.pages, sequence, first_key, 0, eight_bit ? 1 : size_of(dtype)),
        scales({x.k_scale, 1, 0, x.k_scale_stride}, x.pages, sequence, first_key, 0, sizeof(float)) {}

  std::int64_t bytes() const { return size * (eight_bit ? 1 : static_cast<std::int64_t>(size_of(type))); }

  const DType type;
  const std::int64_t size;
  const bool eight_bit;
  const KeyRows rows;
  const KeyRows scales;
};

// The factors of four neighbouring keys, of which `count` are there.
HWY_INLINE void load_scales(const IndexKeys& keys, std::int64_t position, std::int64_t count, float* scales) {
  std::memcpy(scales, keys.scales.at(position), static_cast<std::size_t>(count) * sizeof(float));
}

using WordTag = hn::CappedTag<std::uint32_t, 16>;
using WordVec = hn::Vec<WordTag>;

// Sixteen bytes of keys 0, 4, 8, ... of as many keys as D has lanes: one 128-bit block each.
template <class D>
HWY_INLINE hn::Vec<D> every_fourth(D d, const char* const* key, std::int64_t offset) {
  constexpr int kKeys = static_cast<int>(hn::MaxLanes(D()));
  if constexpr (kKeys == 4) {
    const hn::Repartition<std::uint8_t, D> bytes;
    return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(key[0] + offset)));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, every_fourth(half, key + kKeys / 2, offset), every_fourth(half, key, offset));
  }
}

// Calls emit(w, words) for each word w of the keys: lane i of words is word w of key i. bytes: a multiple of
// 16.
template <class Emit>
HWY_INLINE void transpose_words(const char* const (&key)[kLanes], std::int64_t bytes, const Emit& emit) {
  const WordTag d;
  const hn::Repartition<std::uint64_t, WordTag> d64;
  for (std::int64_t offset = 0; offset < bytes; offset += 16) {
    const WordVec r0 = every_fourth(d, key, offset), r1 = every_fourth(d, key + 1, offset);
    const WordVec r2 = every_fourth(d, key + 2, offset), r3 = every_fourth(d, key + 3, offset);
    const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
    const std::int64_t w = offset / 4;
    emit(w, hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)));
    emit(w + 1, hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)));
    emit(w + 2, hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)));
    emit(w + 3, hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)));
  }
}

// strip[c, 0..kLanes) of keys in their storage type; bytes is a multiple of 16.
HWY_INLINE void transpose_floats(const char* const (&key)[kLanes], std::int64_t bytes, float* strip) {
  transpose_words(key, bytes, [&](std::int64_t w, WordVec words) {
    hn::Store(hn::BitCast(FloatTag(), words), FloatTag(), strip + w * kStrip);
  });
}

HWY_INLINE void transpose_bfloats(const char* const (&key)[kLanes], std::int64_t bytes, float* strip) {
  const WordTag d;
  transpose_words(key, bytes, [&](std::int64_t w, WordVec words) {
    const WordVec even = hn::ShiftLeft<16>(words);
    const WordVec odd = hn::And(words, hn::Set(d, 0xFFFF0000u));
    hn::Store(hn::BitCast(FloatTag(), even), FloatTag(), strip + 2 * w * kStrip);
    hn::Store(hn::BitCast(FloatTag(), odd), FloatTag(), strip + (2 * w + 1) * kStrip);
  });
}

// strip[w, i]: word w of key i, two bfloat16 side by side.
HWY_INLINE void transpose_pairs(const char* const (&key)[kLanes], std::int64_t bytes, std::uint32_t* strip) {
  transpose_words(key, bytes,
                  [&](std::int64_t w, WordVec words) { hn::Store(words, WordTag(), strip + w * kStrip); });
}

HWY_INLINE void transpose_bytes(const char* const (&key)[kLanes], std::int64_t bytes,
                                const float* HWY_RESTRICT scales, float* strip) {
  const hn::RebindToSigned<WordTag> di;
  const FloatTag d;
  const FloatVec scale = hn::Load(d, scales);
  transpose_words(key, bytes, [&](std::int64_t w, WordVec words) {
    const auto v = hn::BitCast(di, words);
    float* out = strip + 4 * w * kStrip;
    const auto value = [&](auto integer) { return hn::Mul(hn::ConvertTo(d, integer), scale); };
    hn::Store(value(hn::ShiftRight<24>(hn::ShiftLeft<24>(v))), d, out);
    hn::Store(value(hn::ShiftRight<24>(hn::ShiftLeft<16>(v))), d, out + kStrip);
    hn::Store(value(hn::ShiftRight<24>(hn::ShiftLeft<8>(v))), d, out + 2 * kStrip);
    hn::Store(value(hn::ShiftRight<24>(v)), d, out + 3 * kStrip);
  });
}

// The keys of a strip that will be loaded next. With one query scoring is bound by memory: they are asked for
// while the strip before them is scored, one key at a time, so that memory and arithmetic work at once.
class NextStrip {
 public:
  NextStrip() {}  // none; key_ is not read then
  NextStrip(const IndexKeys& keys, std::int64_t first, std::int64_t count)
      : bytes_(keys.bytes()), count_(count) {
    for (std::int64_t i = 0; i < count; i += 4) {
      const char* row = keys.rows.at(first + i);
      for (std::int64_t r = 0; r < 4; ++r) key_[i + r] = row + r * keys.rows.step();
    }
  }

  HWY_INLINE void fetch(std::int64_t i) const {
    if (i >= count_) return;
    for (std::int64_t b = 0; b < bytes_; b += 64) hwy::Prefetch(key_[i] + b);
  }

 private:
  std::int64_t bytes_ = 0, count_ = 0;
  const char* key_[kStrip];
};

// strip[c, i] = coordinate c of the key at position first + i, or, of bfloat16 keys in words, strip[w, i] =
// coordinates 2w and 2w + 1; keys beyond count are zeros. first: a multiple of kStrip.
template <typename Value>
HWY_INLINE void load_strip(const IndexKeys& keys, std::int64_t first, std::int64_t count,
                           Value* HWY_RESTRICT strip) {
  const std::int64_t bytes = keys.bytes(), step = keys.rows.step();
  const bool halves = !keys.eight_bit && keys.type == DType::f16;
  const bool copied = halves || bytes % 16 != 0;
  HWY_ALIGN float rows[kLanes][256];
  HWY_ALIGN float scales[kLanes];
  HWY_ALIGN static constexpr char kZeros[256 * sizeof(float)] = {};
  for (std::int64_t i = 0; i < kStrip; i += kLanes) {
    const char* key[kLanes];
    for (std::int64_t j = 0; j < kLanes; j += 4) {
      const std::int64_t position = first + i + j, there = std::clamp<std::int64_t>(count - i - j, 0, 4);
      std::fill(key + j, key + j + 4, kZeros);
      std::fill(scales + j, scales + j + 4, 0.0f);
      if (there == 0) continue;
      const char* source = keys.rows.at(position);
      for (std::int64_t r = 0; r < there; ++r) key[j + r] = source + r * step;
      if (keys.eight_bit) load_scales(keys, position, there, scales + j);
    }
    if (copied) {
      for (std::int64_t j = 0; j < kLanes; ++j) {
        if (key[j] == kZeros) continue;
        if (halves) {
          load_row<float>(rows[j], key[j], DType::f16, keys.size, 1.0f);
        } else {
          rows[j][bytes / 16 * 4 + 0] = rows[j][bytes / 16 * 4 + 1] = 0;
          rows[j][bytes / 16 * 4 + 2] = rows[j][bytes / 16 * 4 + 3] = 0;
          std::memcpy(rows[j], key[j], static_cast<std::size_t>(bytes));
        }
        key[j] = reinterpret_cast<const char*>(rows[j]);
      }
    }
    const std::int64_t whole = (bytes + 15) / 16 * 16;
    if constexpr (std::is_same_v<Value, std::uint32_t>) {
      transpose_pairs(key, whole, strip + i);
    } else if (keys.eight_bit) {
      transpose_bytes(key, whole, scales, strip + i);
    } else if (halves) {
      transpose_floats(key, padded(keys.size) * static_cast<std::int64_t>(sizeof(float)), strip + i);
    } else if (keys.type == DType::bf16) {
      transpose_bfloats(key, whole, strip + i);
    } else {
      transpose_floats(key, whole, strip + i);
    }
  }
}

// double serves gradient checks: plain loops.
HWY_INLINE void load_strip(const IndexKeys& keys, std::int64_t first, std::int64_t count,
                           double* HWY_RESTRICT strip) {
  HWY_ALIGN double row[256];
  std::fill_n(strip, keys.size * kStrip, 0.0);
  for (std::int64_t i = 0; i < count; ++i) {
    const char* source = keys.rows.at(first + i);
    if (keys.eight_bit) {
      float scale = 0;
      load_scales(keys, first + i, 1, &scale);
      for (std::int64_t c = 0; c < keys.size; ++c) {
        row[c] = static_cast<double>(static_cast<std::int8_t>(source[c])) * static_cast<double>(scale);
      }
    } else {
      load_row<double>(row, source, keys.type, keys.size, 1.0);
    }
    for (std::int64_t c = 0; c < keys.size; ++c) strip[c * kStrip + i] = row[c];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gsa
HWY_AFTER_NAMESPACE();

#endif  // GSA_KERNELS_STRIP_INL_H_
