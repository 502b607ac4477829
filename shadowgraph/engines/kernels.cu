// The device side of every check. One launch looks at all guards and copies or compares all shadowed ranges.
//
// A check never waits for the host. What it finds goes as a record into a ring in pinned host memory; a record's
// sequence number is written last, behind a system-wide fence, so that the host never reads half of one.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define PERIOD 4096u   // of the canary table, which is stored twice in a row
#define WINDOW 256
#define RANGES 16
#define SCAN 65536ull  // bytes searched for separate ranges once something broke
#define LANES 8        // lanes that look at one guard's near part

struct Guard { u64 near_lo, whole_lo, whole_len; u32 near_len, after; };
struct Chunk { u64 source, shadow, mirror; u32 nbytes, part; };  // mirror: pinned host memory, or 0
struct Part { u64 start, shadow, nbytes, first, last, count; u32 done, chunks; };
struct Record {
  u64 sequence;
  u32 check, is_part, index, truncated;
  u64 first, last, count, window;
  u32 window_len, ranges_listed, ranges_total, unused;
  u64 ranges[2 * RANGES];
  u8 expected[WINDOW], found[WINDOW];
};
struct Ring { u32 head, capacity; u64 records; };

__device__ __forceinline__ u32 differing(uint4 a, uint4 b) {
  // One bit for each of 16 bytes that differ.
  u32 words[4] = {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w}, mask = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w)
#pragma unroll
    for (int i = 0; i < 4; ++i) mask |= (((words[w] >> (8 * i)) & 0xffu) ? 1u : 0u) << (4 * w + i);
  return mask;
}

__device__ __forceinline__ u32 inside(u64 p, u64 lo, u64 hi) {
  // The bytes of [p, p + 16) that lie in [lo, hi), as bits.
  u32 mask = 0xffffu;
  if (p < lo) mask &= 0xffffu << (lo - p);
  if (p + 16 > hi) mask &= 0xffffu >> (p + 16 - hi);
  return mask & 0xffffu;
}

__device__ __forceinline__ bool same(uint4 a, uint4 b) { return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w; }

__device__ __forceinline__ u64 warp_min(u64 v) {
  for (int d = 16; d; d >>= 1) { u64 o = __shfl_xor_sync(~0u, v, d); v = o < v ? o : v; }
  return v;
}
__device__ __forceinline__ u64 warp_max(u64 v) {
  for (int d = 16; d; d >>= 1) { u64 o = __shfl_xor_sync(~0u, v, d); v = o > v ? o : v; }
  return v;
}
__device__ __forceinline__ u64 warp_sum(u64 v) {
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
  return v;
}

// `base` is where the expected bytes lie for address `start`: a shadow, or null for the canary table.
__device__ __forceinline__ u8 wanted(u64 p, u64 start, u64 base, const u8* table) {
  return base ? *(const u8*)(base + (p - start)) : table[p & (PERIOD - 1)];
}

// A whole warp writes one record about [lo, hi) with changed bytes from `first` to `last`.
__device__ void emit(Ring* ring, const u8* table, u32 check, u32 is_part, u32 index, u64 lo, u64 hi, u64 base, bool before,
                     bool truncated, u64 first, u64 last, u64 count) {
  int lane = threadIdx.x & 31;
  u32 n = 0;
  if (lane == 0) n = atomicAdd(&ring->head, 1u);
  n = __shfl_sync(~0u, n, 0);
  Record* r = (Record*)ring->records + (n % ring->capacity);
  u64 window = before ? (last + 1 - lo > WINDOW ? last + 1 - WINDOW : lo) : (first - lo > 16 ? first - 16 : lo);
  u64 end = window + WINDOW < hi ? window + WINDOW : hi;
  for (u64 p = window + lane; p < end; p += 32) {
    r->found[p - window] = *(const u8*)p;
    r->expected[p - window] = wanted(p, lo, base, table);
  }
  if (lane == 0) {
    u32 listed = 0, total = 0;
    u64 stop = last - first < SCAN ? last : first + SCAN, begun = 0;
    bool open = false;
    for (u64 p = first; p <= stop; ++p) {
      bool changed = *(const u8*)p != wanted(p, lo, base, table);
      if (changed && !open) { begun = p; open = true; }
      if (open && (!changed || p == stop)) {
        if (listed < RANGES) { r->ranges[2 * listed] = begun; r->ranges[2 * listed + 1] = changed ? p : p - 1; ++listed; }
        ++total; open = false;
      }
    }
    if (stop < last) ++total;
    r->check = check; r->is_part = is_part; r->index = index; r->truncated = truncated;
    r->first = first; r->last = last; r->count = count; r->window = window;
    r->window_len = (u32)(end - window); r->ranges_listed = listed; r->ranges_total = total;
  }
  __threadfence_system();
  __syncwarp();
  if (lane == 0) *(volatile u64*)&r->sequence = (u64)n + 1;
  __threadfence_system();  // before the check counts as done; intact guards pay for no such fence
}

// A whole warp measures a broken guard over its full length, reports it and arms it again.
__device__ void broken(const Guard& g, u32 index, Ring* ring, const u8* table, u32 check) {
  int lane = threadIdx.x & 31;
  u64 lo = g.whole_lo, hi = lo + g.whole_len, first = ~0ull, last = 0, count = 0;
  for (u64 p = (lo & ~15ull) + 16 * lane; p < hi; p += 512) {
    u32 bad = differing(*(const uint4*)p, *(const uint4*)(table + (p & (PERIOD - 1)))) & inside(p, lo, hi);
    if (bad) {
      u64 a = p + __ffs(bad) - 1, z = p + 31 - __clz(bad);
      first = a < first ? a : first; last = z > last ? z : last; count += __popc(bad);
    }
  }
  first = warp_min(first); last = warp_max(last); count = warp_sum(count);
  if (!count) return;
  emit(ring, table, check, 0, index, lo, hi, 0, !g.after, g.after ? last == hi - 1 : first == lo, first, last, count);
  __syncwarp();
  for (u64 p = first + lane; p <= last; p += 32) *(u8*)p = table[p & (PERIOD - 1)];
}

__device__ void guards_of_block(const Guard* guards, int n, Ring* ring, const u8* table, u32 check, int block) {
  int group = (block * blockDim.x + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
  bool bad = false;
  Guard g;
  if (group < n) {
    g = guards[group];
    u64 lo = g.near_lo, hi = lo + g.near_len;
    for (u64 p = (lo & ~15ull) + 16 * lane; p < hi; p += 16 * LANES) {
      uint4 v = *(const uint4*)p, t = *(const uint4*)(table + (p & (PERIOD - 1)));
      if (!same(v, t)) bad = bad || (differing(v, t) & inside(p, lo, hi));
    }
  }
  u32 votes = __ballot_sync(~0u, bad);
  while (votes) {
    int leader = (__ffs(votes) - 1) / LANES * LANES;
    Guard hit;
    hit.whole_lo = __shfl_sync(~0u, g.whole_lo, leader); hit.whole_len = __shfl_sync(~0u, g.whole_len, leader);
    hit.after = __shfl_sync(~0u, g.after, leader); hit.near_lo = 0; hit.near_len = 0;
    broken(hit, (u32)__shfl_sync(~0u, group, leader), ring, table, check);
    votes &= ~(((1u << LANES) - 1u) << leader);
  }
}

__device__ void copy_chunk(const Chunk& c) {
  u64 lo = c.source, hi = lo + c.nbytes, shift = c.shadow - c.source;  // all are equally aligned to 16
  u64 mirror = c.mirror ? c.mirror - c.source : 0;
  for (u64 p = (lo & ~15ull) + 16ull * threadIdx.x; p < hi; p += 16ull * blockDim.x) {
    if (p >= lo && p + 16 <= hi) {
      uint4 v = *(const uint4*)p;
      *(uint4*)(p + shift) = v;
      if (mirror) *(uint4*)(p + mirror) = v;
    } else {
      for (u64 q = p < lo ? lo : p; q < p + 16 && q < hi; ++q) {
        *(u8*)(q + shift) = *(const u8*)q;
        if (mirror) *(u8*)(q + mirror) = *(const u8*)q;
      }
    }
  }
}

__device__ void diff_chunk(const Chunk& c, Part* parts, Ring* ring, const u8* table, u32 check) {
  __shared__ u64 first, last, count;
  __shared__ bool closing;
  if (threadIdx.x == 0) { first = ~0ull; last = 0; count = 0; closing = false; }
  __syncthreads();
  u64 lo = c.source, hi = lo + c.nbytes, shift = c.shadow - c.source;
  for (u64 p = (lo & ~15ull) + 16ull * threadIdx.x; p < hi; p += 16ull * blockDim.x) {
    u32 bad = 0;
    if (p >= lo && p + 16 <= hi) {
      uint4 a = *(const uint4*)p, b = *(const uint4*)(p + shift);
      if (!same(a, b)) bad = differing(a, b);
    } else {
      for (u64 q = p < lo ? lo : p; q < p + 16 && q < hi; ++q)
        bad |= (*(const u8*)q != *(const u8*)(q + shift) ? 1u : 0u) << (q - p);
    }
    if (bad) {
      atomicMin(&first, p + __ffs(bad) - 1); atomicMax(&last, p + 31 - __clz(bad)); atomicAdd(&count, (u64)__popc(bad));
    }
  }
  __syncthreads();
  Part* part = parts + c.part;
  if (threadIdx.x == 0) {
    if (count) { atomicMin(&part->first, first); atomicMax(&part->last, last); atomicAdd(&part->count, count); }
    __threadfence();
    closing = atomicAdd(&part->done, 1u) == part->chunks - 1;
  }
  __syncthreads();
  if (!closing || threadIdx.x >= 32) return;
  __threadfence();
  u64 f = *(volatile u64*)&part->first, l = *(volatile u64*)&part->last, n = *(volatile u64*)&part->count;
  if (n) emit(ring, table, check, 1, c.part, part->start, part->start + part->nbytes, part->shadow, false, false, f, l, n);
  __syncwarp();
  if (threadIdx.x == 0) { part->first = ~0ull; part->last = 0; part->count = 0; part->done = 0; }
}

// mode: 0 guards only, 1 copy chunks, 2 compare chunks.
extern "C" __global__ void __launch_bounds__(256) check_step(const Guard* guards, int n_guards, int guard_blocks, const Chunk* chunks,
    Part* parts, int mode, Ring* ring, const u8* table, u32 check, u32* blocks_done, volatile u32* checks_done, u32 slot) {
  int block = blockIdx.x;
  if (block < guard_blocks) guards_of_block(guards, n_guards, ring, table, check, block);
  else if (mode == 1) copy_chunk(chunks[block - guard_blocks]);
  else if (mode == 2) diff_chunk(chunks[block - guard_blocks], parts, ring, table, check);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&blocks_done[slot], 1u) == gridDim.x - 1) {
      blocks_done[slot] = 0;
      checks_done[slot] = check;
    }
  }
}

// One block fills one range.
extern "C" __global__ void arm_many(const ulonglong2* ranges, const u8* table) {
  u64 lo = ranges[blockIdx.x].x, hi = ranges[blockIdx.x].y;
  for (u64 p = (lo & ~15ull) + 16ull * threadIdx.x; p < hi; p += 16ull * blockDim.x) {
    if (p >= lo && p + 16 <= hi) *(uint4*)p = *(const uint4*)(table + (p & (PERIOD - 1)));
    else for (u64 q = p < lo ? lo : p; q < p + 16 && q < hi; ++q) *(u8*)q = table[q & (PERIOD - 1)];
  }
}

extern "C" __global__ void arm(u64 lo, u64 nbytes, const u8* table) {
  u64 hi = lo + nbytes;
  for (u64 p = (lo & ~15ull) + 16ull * (blockIdx.x * blockDim.x + threadIdx.x); p < hi; p += 16ull * gridDim.x * blockDim.x) {
    if (p >= lo && p + 16 <= hi) *(uint4*)p = *(const uint4*)(table + (p & (PERIOD - 1)));
    else for (u64 q = p < lo ? lo : p; q < p + 16 && q < hi; ++q) *(u8*)q = table[q & (PERIOD - 1)];
  }
}
