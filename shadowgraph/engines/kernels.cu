// CUDA kernels of the checks. One launch compares all guards and copies or compares all shadowed ranges.
//
// A check never waits for the host. It writes its evidence as a record into a ring in pinned host memory; a record's
// sequence number is written last, behind a system-wide fence, so that the host never reads a partial record.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define PERIOD 4096u   // of the canary table, which is stored twice in a row
#define WINDOW 256
#define RANGES 16
#define SCAN 65536ull  // bytes searched for separate ranges once something broke
#define LANES 8        // lanes that compare one guard's near part
#define EMPTIED 64     // slots of the listed guards that one launch empties
#define FAR_BYTES 8192 // of a guard's far part that one block compares
#define SLOTS 1024     // checks in flight
#define KEPT 512       // records of broken guards
#define CLAIMED 1ull   // address of a record of a broken guard that is being filled
#define SEEN 4096      // bytes of the damage that are compared with the last report

struct Guard { u64 near_lo; u32 near_len, flags; u64 whole_lo, whole_len; };  // flags: 1 after its buffer, 2 never rearmed
struct Chunk { u64 source, shadow, mirror; u32 nbytes, part; };  // mirror: pinned host memory, or 0
struct Part { u64 start, shadow, nbytes, first, last, count; };
struct Far { u64 lo, nbytes; u32 guard, unused; };
struct Record {
  u64 sequence;
  u32 check, is_part, index, truncated;  // is_part: 0 a guard, 1 a range, 2 a range that may have changed legally
  u64 first, last, count, window;
  u32 window_len, ranges_listed, ranges_total, unused;
  u64 graph, replay;  // of a check in a graph: serial, and number of the replay << 1 | 1 at its end
  u64 ranges[2 * RANGES];
  u8 expected[WINDOW], found[WINDOW];
};
struct Ring { u64 head, capacity, records; };
// A broken guard, by its start address, as last reported: first and last byte and extent of the damage, the
// compared bytes, [near_lo, near_hi) and [lo, hi), and a hash of their contents.
struct Kept { u64 whole_lo, near_lo, near_hi, lo, hi, first, last, count, hash; };

__device__ __forceinline__ u32 differing(uint4 a, uint4 b) {
  // A bit mask of the 16 bytes that differ.
  u32 words[4] = {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w}, mask = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w)
#pragma unroll
    for (int i = 0; i < 4; ++i) mask |= (((words[w] >> (8 * i)) & 0xffu) ? 1u : 0u) << (4 * w + i);
  return mask;
}

__device__ __forceinline__ u32 inside(u64 p, u64 lo, u64 hi) {
  // A bit mask of the bytes of [p, p + 16) that lie in [lo, hi).
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

// `base` is the address of the expected bytes for address `start`: a shadow, or null for the canary table.
__device__ __forceinline__ u8 wanted(u64 p, u64 start, u64 base, const u8* table) {
  return base ? *(const u8*)(base + (p - start)) : table[p & (PERIOD - 1)];
}

// The check that a record is of: a launched one by its serial, or one in a graph.
struct Origin { u32 check; u64 graph, replay; };

// A whole warp writes one record about [lo, hi) with changed bytes from `first` to `last`.
__device__ void emit(Ring* ring, const u8* table, Origin origin, u32 is_part, u32 index, u64 lo, u64 hi, u64 base, bool before,
                     bool truncated, u64 first, u64 last, u64 count) {
  int lane = threadIdx.x & 31;
  u64 n = 0;
  if (lane == 0) n = atomicAdd(&ring->head, 1ull);
  n = __shfl_sync(~0u, n, 0);
  Record* r = (Record*)ring->records + (n % ring->capacity);
  // A reader that still copies the overwritten record must see that it is no longer valid.
  if (lane == 0) *(volatile u64*)&r->sequence = 0;
  __threadfence_system();
  __syncwarp();
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
    r->check = origin.check; r->graph = origin.graph; r->replay = origin.replay;
    r->is_part = is_part; r->index = index; r->truncated = truncated;
    r->first = first; r->last = last; r->count = count; r->window = window;
    r->window_len = (u32)(end - window); r->ranges_listed = listed; r->ranges_total = total;
  }
  __threadfence_system();
  __syncwarp();
  if (lane == 0) *(volatile u64*)&r->sequence = n + 1;
  __threadfence_system();  // before the check counts as done; intact guards pay for no such fence
}

// A hash of the contents of two ranges; by a whole warp.
__device__ u64 hash_of(u64 lo, u64 hi, u64 other_lo, u64 other_hi) {
  int lane = threadIdx.x & 31;
  u64 sum = 0;
  for (int range = 0; range < 2; ++range, lo = other_lo, hi = other_hi)
    for (u64 p = lo + lane; p < hi; p += 32) {
      u64 x = (p << 8 | *(const u8*)p) * 0x9e3779b97f4a7c15ull;
      x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
      sum += x ^ x >> 32;
    }
  return warp_sum(sum);
}

// The record of a broken guard, or null; by a whole warp.
__device__ Kept* kept_of(Kept* kept, u64 whole_lo) {
  for (u32 base = 0; base < KEPT; base += 32) {
    u32 votes = __ballot_sync(~0u, *(volatile u64*)&kept[base + (threadIdx.x & 31)].whole_lo == whole_lo);
    if (votes) return kept + base + __ffs(votes) - 1;
  }
  return 0;
}

// Claim a free record, or null; by a whole warp. Another warp may claim a free record first. It stays `CLAIMED`, so that
// no other check reads it, until its owner has filled it and set its address.
__device__ Kept* room_in(Kept* kept) {
  while (Kept* free = kept_of(kept, 0)) {
    u64 was = 0;
    if ((threadIdx.x & 31) == 0) was = atomicCAS(&free->whole_lo, 0ull, CLAIMED);
    if (!__shfl_sync(~0u, was, 0)) return free;
  }
  return 0;
}

// A whole warp measures a broken guard over its full length and reports it. The damage stays: the program may read
// it, as it would without the debugger. So the guard is recorded, and reported again when its contents change. The
// recorded bytes are compared, whatever the width of the check's near part; `in_full` measures the guard as well.
__device__ bool broken(const Guard& g, u32 index, Ring* ring, const u8* table, Kept* kept, bool in_full, Origin origin) {
  int lane = threadIdx.x & 31;
  u64 lo = g.whole_lo, hi = lo + g.whole_len, first = ~0ull, last = 0, count = 0;
  bool after = g.flags & 1, ours = !(g.flags & 2);
  Kept* known = kept_of(kept, lo);
  bool unchanged = known && known->hash == hash_of(known->near_lo, known->near_hi, known->lo, known->hi);
  if (unchanged && !in_full) return false;
  for (u64 p = (lo & ~15ull) + 16 * lane; p < hi; p += 512) {
    u32 bad = differing(*(const uint4*)p, *(const uint4*)(table + (p & (PERIOD - 1)))) & inside(p, lo, hi);
    if (bad) {
      u64 a = p + __ffs(bad) - 1, z = p + 31 - __clz(bad);
      first = a < first ? a : first; last = z > last ? z : last; count += __popc(bad);
    }
  }
  first = warp_min(first); last = warp_max(last); count = warp_sum(count);
  if (!count || (unchanged && first == known->first && last == known->last && count == known->count)) return false;
  emit(ring, table, origin, 0, index, lo, hi, 0, !after, after ? last == hi - 1 : first == lo, first, last, count);
  __syncwarp();
  if (!known) known = room_in(kept);
  if (known) {
    u64 near_lo = g.near_lo, near_hi = near_lo + g.near_len;
    if (near_hi - near_lo > SEEN) { if (after) near_hi = near_lo + SEEN; else near_lo = near_hi - SEEN; }
    u64 from = after || last - first < SEEN ? first : last + 1 - SEEN, to = last - from < SEEN ? last + 1 : from + SEEN;
    u64 hash = hash_of(near_lo, near_hi, from, to);
    if (lane == 0) {
      known->near_lo = near_lo; known->near_hi = near_hi; known->lo = from; known->hi = to;
      known->first = first; known->last = last; known->count = count; known->hash = hash;
      __threadfence();
      *(volatile u64*)&known->whole_lo = lo;
    }
    __syncwarp();
    return true;
  }
  if (!ours) return true;
  for (u64 p = first + lane; p <= last; p += 32) *(u8*)p = table[p & (PERIOD - 1)];  // no record: better than silence
  return true;
}

// Drop the records of guards that begin in a range, which is rearmed; by one block.
__device__ void forget(Kept* kept, u64 lo, u64 hi) {
  for (u32 i = threadIdx.x; i < KEPT; i += blockDim.x)
    if (kept[i].whole_lo >= lo && kept[i].whole_lo < hi) kept[i].whole_lo = 0;
}

// Whether 16 bytes at `p` differ from the expected ones within [lo, hi). Short: a check in a graph runs from a cold
// instruction cache.
__device__ __forceinline__ bool differs(uint4 v, uint4 t, u64 p, u64 lo, u64 hi) {
  u64 a = (u64)(v.y ^ t.y) << 32 | (v.x ^ t.x), b = (u64)(v.w ^ t.w) << 32 | (v.z ^ t.z);
  if (!(a | b)) return false;
  u32 skip = p < lo ? 8 * (u32)(lo - p) : 0, cut = p + 16 > hi ? 8 * (u32)(p + 16 - hi) : 0;  // bits; both below 128
  if (skip) { b &= skip < 64 ? ~0ull : ~0ull << (skip - 64); a = skip < 64 ? a & ~0ull << skip : 0; }
  if (cut) { a &= cut < 64 ? ~0ull : ~0ull >> (cut - 64); b = cut < 64 ? b & ~0ull >> cut : 0; }
  return a | b;
}

// Near parts: `LANES` lanes for each guard. Marks broken guards; the check's last block reports them.
__device__ bool look_near(const Guard* guards, u32* hits, u32 n, const u8* table, u32 group) {
  u32 lane = threadIdx.x % LANES;
  if (group >= n) return false;
  ulonglong2 near = *(const ulonglong2*)(guards + group);  // address and size as one: a slot may be set meanwhile
  u64 lo = near.x, nbytes = (u32)near.y, hi = lo + nbytes;
  if (!nbytes) return false;
  bool bad = false;
  for (u64 p = (lo & ~15ull) + 16 * lane; p < hi; p += 16 * LANES) {
    uint4 v = *(const uint4*)p, t = *(const uint4*)(table + (p & (PERIOD - 1)));
    if (!same(v, t)) bad = bad || (differing(v, t) & inside(p, lo, hi));
  }
  if (bad) hits[group] = 1;
  return bad;
}

// One piece of one guard's far part, in rotation: every guard's first piece, then every guard's second, and so on.
__device__ bool look_piece(const Far& f, u32* hits, u64 piece, const u8* table) {
  u32 pieces = (f.nbytes + FAR_BYTES - 1) / FAR_BYTES;
  u64 lo = f.lo + (u64)((u32)piece % pieces) * FAR_BYTES, end = f.lo + f.nbytes, hi = lo + FAR_BYTES < end ? lo + FAR_BYTES : end;
  bool bad = false;
  for (u64 p = (lo & ~15ull) + 16ull * threadIdx.x; p < hi; p += 16ull * blockDim.x) {
    bad |= differs(*(const uint4*)p, *(const uint4*)(table + (p & (PERIOD - 1))), p, lo, hi);
  }
  if (bad) hits[f.guard] = 1;
  return bad;
}

__device__ bool look_far(const Far* far, u32* hits, u32 n, u64 turn, bool all, const u8* table) {
  const Far& f = far[turn % n];
  if (all && turn / n >= (f.nbytes + FAR_BYTES - 1) / FAR_BYTES) return false;
  return look_piece(f, hits, turn / n, table);
}

// Near parts of two guards of a table, by `LANES` lanes each: their loads wait for memory together. Marks broken guards.
__device__ __forceinline__ bool look_near_pair(const Guard* guards, u32* hits, u32 n, const u8* table, u32 first, u32 second) {
  u32 lane = threadIdx.x % LANES;
  // Address and size as one: a slot may be set meanwhile.
  ulonglong2 x = *(const ulonglong2*)(guards + first), y = make_ulonglong2(0, 0);
  if (second < n) y = *(const ulonglong2*)(guards + second);
  bool bad = false, other = false;
#pragma unroll 1
  for (u64 at = 16 * lane;; at += 16 * LANES) {
    u64 p = (x.x & ~15ull) + at, q = (y.x & ~15ull) + at, x_hi = x.x + (u32)x.y, y_hi = y.x + (u32)y.y;
    bool of_x = p < x_hi, of_y = q < y_hi;
    if (!of_x && !of_y) break;
    uint4 zero = make_uint4(0, 0, 0, 0), v = zero, t = zero, w = zero, u = zero;
    if (of_x) { v = *(const uint4*)p; t = *(const uint4*)(table + (p & (PERIOD - 1))); }
    if (of_y) { w = *(const uint4*)q; u = *(const uint4*)(table + (q & (PERIOD - 1))); }
    bad |= differs(v, t, p, x.x, x_hi);
    other |= differs(w, u, q, y.x, y_hi);
  }
  if (bad) hits[first] = 1;
  if (other) hits[second] = 1;
  return bad || other;
}

// The same for a slot of the listed guards, which may be empty or have no far part.
__device__ bool look_slot(const Guard* guards, u32* hits, u32 n, u32 turn, const u8* table) {
  u32 slot = turn % n;
  Guard g = guards[slot];
  if (!g.near_len || g.whole_len <= g.near_len) return false;
  Far far = {g.flags & 1 ? g.near_lo + g.near_len : g.whole_lo, g.whole_len - g.near_len, slot, 0};
  return look_piece(far, hits, turn / n, table);
}

// The mirror equals the shadow, so that only values that changed since the last copy are written to the host.
__device__ void copy_chunk(const Chunk& c) {
  u64 lo = c.source, hi = lo + c.nbytes, shift = c.shadow - c.source;  // all have equal alignment modulo 16
  u64 mirror = c.mirror ? c.mirror - c.source : 0;
  for (u64 p = (lo & ~15ull) + 16ull * threadIdx.x; p < hi; p += 16ull * blockDim.x) {
    if (p >= lo && p + 16 <= hi) {
      uint4 v = *(const uint4*)p;
      if (mirror && !same(v, *(const uint4*)(p + shift))) *(uint4*)(p + mirror) = v;
      *(uint4*)(p + shift) = v;
    } else {
      for (u64 q = p < lo ? lo : p; q < p + 16 && q < hi; ++q) {
        if (mirror) *(u8*)(q + mirror) = *(const u8*)q;
        *(u8*)(q + shift) = *(const u8*)q;
      }
    }
  }
}

__device__ bool diff_chunk(const Chunk& c, Part* parts) {
  u64 lo = c.source, hi = lo + c.nbytes, shift = c.shadow - c.source, first = ~0ull, last = 0, count = 0;
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
      u64 a = p + __ffs(bad) - 1, z = p + 31 - __clz(bad);
      first = a < first ? a : first; last = z > last ? z : last; count += __popc(bad);
    }
  }
  if (!__any_sync(~0u, count != 0)) return false;
  first = warp_min(first); last = warp_max(last); count = warp_sum(count);
  if ((threadIdx.x & 31) == 0) {
    Part* part = parts + c.part;
    atomicMin(&part->first, first); atomicMax(&part->last, last); atomicAdd(&part->count, count);
  }
  return true;
}

// The input of one check. `far_turn` advances with every check; with `far_all` every far piece is compared.
struct Step {
  const Guard* guards; u32* hits; const Far* far; const Chunk* chunks; Part* parts;
  u32 n_guards, guard_blocks, n_far, far_blocks, n_parts, mode;  // mode: 0 guards only, 1 copy chunks, 2 compare chunks
};

// The last block of a check with evidence: one warp for each broken guard, one warp for each changed part. Returns whether
// a warp has written a record.
__device__ __noinline__ bool report(const Step& s, Ring* ring, const u8* table, Kept* kept, bool in_full, Origin origin) {
  u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31, warps = blockDim.x / 32;
  bool written = false;
  for (u32 base = warp * 32; base < s.n_guards; base += warps * 32) {
    u32 g = base + lane;
    u32 votes = __ballot_sync(~0u, g < s.n_guards && *(volatile u32*)&s.hits[g] && atomicExch(&s.hits[g], 0u));
    for (; votes; votes &= votes - 1) {
      u32 hit = base + __ffs(votes) - 1;
      written |= broken(s.guards[hit], hit, ring, table, kept, in_full, origin);
    }
  }
  for (u32 i = warp; s.mode == 2 && i < s.n_parts; i += warps) {
    Part* part = s.parts + i;
    u64 first = *(volatile u64*)&part->first, last = *(volatile u64*)&part->last, count = *(volatile u64*)&part->count;
    __syncwarp();
    if (!count) continue;
    emit(ring, table, origin, 1, i, part->start, part->start + part->nbytes, part->shadow, false, false, first, last, count);
    written = true;
    __syncwarp();
    if (lane == 0) { part->first = ~0ull; part->last = 0; part->count = 0; }
  }
  return __syncthreads_or(written);
}

// `counters`, by slot: finished blocks in the low half, blocks with evidence in the high half.
extern "C" __global__ void __launch_bounds__(256) check_step(Step s, Ring* ring, const u8* table, u64* counters,
    volatile u32* checks_done, Kept* kept, u64 far_turn, u32 far_all, u32 check) {
  __shared__ u64 before;
  u32 block = blockIdx.x, slot = check % SLOTS;
  bool found = false;
  if (block < s.guard_blocks) found = look_near(s.guards, s.hits, s.n_guards, table, (block * blockDim.x + threadIdx.x) / LANES);
  else if ((block -= s.guard_blocks) < s.far_blocks) found = look_far(s.far, s.hits, s.n_far, far_turn + block, far_all, table);
  else if (s.mode == 1) copy_chunk(s.chunks[block - s.far_blocks]);
  else if (s.mode == 2) found = diff_chunk(s.chunks[block - s.far_blocks], s.parts);
  found = __syncthreads_or(found);
  u64 own = found ? (1ull << 32) + 1 : 1;
  if (threadIdx.x == 0) {
    if (found) __threadfence();
    before = atomicAdd(&counters[slot], own);
    if ((u32)before == gridDim.x - 1) counters[slot] = 0;
  }
  __syncthreads();
  if ((u32)before != gridDim.x - 1) return;
  if ((before + own) >> 32) {
    __threadfence();
    report(s, ring, table, kept, far_all, Origin{check, 0, 0});
  }
  if (threadIdx.x == 0) checks_done[slot] = check;
}

// -- checks in graphs ---------------------------------------------------------------------------------------------

// All standing guards, by slot; an empty slot has no near part. Each half is read and written as one vector. `hits` begin
// behind `capacity` rows.
struct Listed { u64 rows; u32 n, capacity; u32 paused, far_turn, unused[2]; };

// One graph that carries checks. The device orders the replays of one executable graph; copies that the program makes of
// it share this, and may run at once: counters then mix, and are right again once all have ended. `done`, by head and
// tail: finished blocks in the low half, and blocks with evidence in the high half.
struct Watch { u64 row, serial, replays, done[2], checked; u64 shadows; u32 n_shadowed, n_parts; };

// A table at `Watch::shadows`: a row for each piece of the ranges that the graph's checks compare across a replay, then a
// `Part` for each range, then a `Mark` for each. A row is emptied in two words when its memory goes to another owner.
struct Shadowed { u64 source, shadow; u32 nbytes, part; u64 replay; };  // replay: the last one whose head has copied it
struct Mark { u32 id, flags; };  // flags: 1 a change may be legal, 2 a change was reported

// A row of the check log, in host memory: the last replay whose head check has run; the last one whose tail check has
// run and compared; the first one with damage; how many have been checked at their ends.
struct GraphRow { u64 serial, begun, ended, damaged, checked; };

// A block's pieces: the head copies them, the tail compares those that the head of the same replay has copied, in whatever
// table that one found. Returns whether one has changed. Not inlined: most graphs have no shadows.
__device__ __noinline__ bool look_shadows(uint4 table, u64 replay, u32 end, u32 blocks) {
  Shadowed* rows = (Shadowed*)((u64)table.x | (u64)table.y << 32);
  Part* parts = (Part*)(rows + table.z);
  bool found = false;
  for (u32 i = blockIdx.x; i < table.z; i += blocks) {
    ulonglong2 where = __ldcg((const ulonglong2*)(rows + i)), what = __ldcg((const ulonglong2*)(rows + i) + 1);
    if (!where.x) continue;
    Chunk c = {where.x, where.y, 0, (u32)what.x, (u32)(what.x >> 32)};
    if (!end) {
      copy_chunk(c);
      if (threadIdx.x == 0) rows[i].replay = replay;
    } else if (what.y == replay) {
      found |= diff_chunk(c, parts);
    }
  }
  return found;
}

// The last block of a tail with evidence: one warp for each changed range, once. Returns whether a warp has written a record
// of a change that is damage.
__device__ __noinline__ bool report_shadows(uint4 table, Ring* ring, const u8* canaries, Origin origin) {
  Part* parts = (Part*)((Shadowed*)((u64)table.x | (u64)table.y << 32) + table.z);
  Mark* marks = (Mark*)(parts + table.w);
  bool damage = false;
  for (u32 i = threadIdx.x / 32; i < table.w; i += blockDim.x / 32) {
    Part* part = parts + i;
    u64 first = *(volatile u64*)&part->first, last = *(volatile u64*)&part->last, count = *(volatile u64*)&part->count;
    u32 flags = *(volatile u32*)&marks[i].flags, is_part = 1 + (flags & 1);
    __syncwarp();
    if (!count) continue;
    if (!(flags & 2)) {
      emit(ring, canaries, origin, is_part, marks[i].id, part->start, part->start + part->nbytes, part->shadow, false, false,
           first, last, count);
      damage |= is_part == 1;
    }
    __syncwarp();
    if ((threadIdx.x & 31) == 0) {
      part->first = ~0ull; part->last = 0; part->count = 0;
      *(volatile u32*)&marks[i].flags = flags | 2;
    }
  }
  return __syncthreads_or(damage);
}

// The check at a replay's head (end = 0), which counts the replay, or at its tail (end = 1). The last `far_blocks` blocks
// look at far parts in rotation.
extern "C" __global__ void __launch_bounds__(256) graph_check(Watch* w, Listed* listed, Ring* ring, const u8* table, Kept* kept,
    u32 end, u32 far_blocks) {
  __shared__ u64 after;
  __shared__ uint4 shadows;  // one table for all threads of a block: another one may be published meanwhile
  uint4 head = __ldcg((const uint4*)listed);
  uint4 state = __ldcg((const uint4*)listed + 1);  // paused, far_turn
  // Both counts change when all blocks have counted themselves.
  u64 replays = threadIdx.x ? 0 : __ldcg(&w->replays), checked = threadIdx.x ? 0 : __ldcg(&w->checked);
  GraphRow* row = threadIdx.x ? 0 : (GraphRow*)__ldcg(&w->row);
  if (threadIdx.x == 0) {
    uint4 published = __ldcg((const uint4*)&w->shadows);
    if (state.x) published.z = 0;
    shadows = published;
  }
  const Guard* guards = (const Guard*)((u64)head.x | (u64)head.y << 32);
  u32 n = head.z, near_blocks = gridDim.x - far_blocks;
  u32* hits = (u32*)(guards + head.w);
  bool found = false;
  if (!state.x && n) {
    if (blockIdx.x < near_blocks) {
      u32 step = near_blocks * blockDim.x / LANES;
#pragma unroll 1
      for (u32 group = (blockIdx.x * blockDim.x + threadIdx.x) / LANES; group < n; group += 2 * step)
        found |= look_near_pair(guards, hits, n, table, group, group + step);
    } else {
      found = look_slot(guards, hits, n, state.y + blockIdx.x - near_blocks, table);
    }
  }
  found = __syncthreads_or(found);
  if (shadows.z) {
    if (blockIdx.x < near_blocks) found |= look_shadows(shadows, __ldcg(&w->replays) + !end, end, near_blocks);
    found = __syncthreads_or(found);
  }
  if (threadIdx.x == 0) {
    u64 own = found ? (1ull << 32) + 1 : 1;
    if (found) __threadfence();
    after = atomicAdd(&w->done[end], own) + own;
  }
  __syncthreads();
  if ((u32)after % gridDim.x) return;
  if (after >> 32) {
    __threadfence();
    Step s = {};
    s.guards = guards; s.hits = hits; s.n_guards = n;
    u64 origin = (__ldcg(&w->replays) + !end) << 1 | end;
    bool written = report(s, ring, table, kept, false, Origin{0, w->serial, origin});
    if (end && shadows.z) written |= report_shadows(shadows, ring, table, Origin{0, w->serial, origin});
    if (threadIdx.x == 0 && written && !*(volatile u64*)&row->damaged) *(volatile u64*)&row->damaged = origin;
    __threadfence_system();
  }
  if (threadIdx.x == 0) {
    atomicAdd(&w->done[end], 0 - ((after >> 32 << 32) + gridDim.x));
    if (end) {
      if (!state.x) {  // else nothing was compared
        w->checked = checked + 1;
        *(volatile u64*)&row->ended = replays;
        *(volatile u64*)&row->checked = checked + 1;
      }
      if (far_blocks) listed->far_turn = state.y + far_blocks;
    } else {
      w->replays = replays + 1;
      *(volatile u64*)&row->begun = replays + 1;
    }
  }
}

// Sets slots of the listed guards; by one block.
struct Slot { Guard guard; u32 at, unused[3]; };

extern "C" __global__ void set_slots(Listed* listed, const Slot* slots, u32 count) {
  Guard* rows = (Guard*)listed->rows;
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
    const ulonglong2* from = (const ulonglong2*)&slots[i].guard;
    ulonglong2* row = (ulonglong2*)(rows + slots[i].at);
    row[1] = from[1];
    __threadfence();
    row[0] = from[0];
  }
}

// Empties some slots; by one thread each.
struct Emptied { u32 at[EMPTIED]; };

extern "C" __global__ void empty_slots(Listed* listed, Emptied slots) {
  u32 slot = slots.at[threadIdx.x];
  if (slot < listed->capacity) ((ulonglong2*)((Guard*)listed->rows + slot))[0] = make_ulonglong2(0, 0);
}

// Pauses the checks in all graphs, or lets them compare again.
extern "C" __global__ void pause(Listed* listed, u32 paused) { *(volatile u32*)&listed->paused = paused; }

// Publishes a graph's table of shadows.
extern "C" __global__ void set_shadows(Watch* w, u64 table, u32 rows, u32 parts) {
  *(uint4*)&w->shadows = make_uint4((u32)table, (u32)(table >> 32), rows, parts);
}

// Empties consecutive rows of such a table; by one block.
extern "C" __global__ void empty_shadows(u64 table, u32 first, u32 count) {
  for (u32 i = threadIdx.x; i < count; i += blockDim.x)
    ((ulonglong2*)((Shadowed*)table + first + i))[0] = make_ulonglong2(0, 0);
}

// Publishes another table, or more slots of the same one.
extern "C" __global__ void publish(Listed* listed, u64 rows, u32 n, u32 capacity) {
  *(uint4*)listed = make_uint4((u32)rows, (u32)(rows >> 32), n, capacity);
}

// One block fills one range.
extern "C" __global__ void arm_many(const ulonglong2* ranges, const u8* table, Kept* kept) {
  u64 lo = ranges[blockIdx.x].x, hi = ranges[blockIdx.x].y;
  forget(kept, lo, hi);
  for (u64 p = (lo & ~15ull) + 16ull * threadIdx.x; p < hi; p += 16ull * blockDim.x) {
    if (p >= lo && p + 16 <= hi) *(uint4*)p = *(const uint4*)(table + (p & (PERIOD - 1)));
    else for (u64 q = p < lo ? lo : p; q < p + 16 && q < hi; ++q) *(u8*)q = table[q & (PERIOD - 1)];
  }
}

extern "C" __global__ void arm(u64 lo, u64 nbytes, const u8* table, Kept* kept) {
  u64 hi = lo + nbytes;
  if (blockIdx.x == 0) forget(kept, lo, hi);
  for (u64 p = (lo & ~15ull) + 16ull * (blockIdx.x * blockDim.x + threadIdx.x); p < hi; p += 16ull * gridDim.x * blockDim.x) {
    if (p >= lo && p + 16 <= hi) *(uint4*)p = *(const uint4*)(table + (p & (PERIOD - 1)));
    else for (u64 q = p < lo ? lo : p; q < p + 16 && q < hi; ++q) *(u8*)q = table[q & (PERIOD - 1)];
  }
}

// Copies up to 8 small ranges, arguments of a launch, to pinned host memory, then sets a completion word. One block.
struct Given { u64 source[8], target[8]; u32 nbytes[8]; u64 said, sequence; u32 count, unused; };

extern "C" __global__ void mirror(Given g) {
  for (u32 i = 0; i < g.count; ++i) {
    u64 s = g.source[i], t = g.target[i];
    u32 n = g.nbytes[i], words = s % 4 ? 0 : n / 4;  // targets are aligned to 16
    for (u32 k = threadIdx.x; k < words; k += blockDim.x) ((u32*)t)[k] = ((const u32*)s)[k];
    for (u32 k = 4 * words + threadIdx.x; k < n; k += blockDim.x) ((u8*)t)[k] = ((const u8*)s)[k];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *(volatile u64*)g.said = g.sequence;
}

// Runs after each node of a probed replay: one warp for each piece compares it with its copy, reports and copies changes.
struct Piece { u64 source, copy; u32 nbytes, part; };
struct Hit { u32 node, part; u64 first, last, count; };

extern "C" __global__ void __launch_bounds__(256) probe(const Piece* pieces, u32 n, u32 node, u32* hits, u32 room) {
  u32 piece = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31;
  if (piece >= n) return;
  const Piece& c = pieces[piece];
  u64 lo = c.source, hi = lo + c.nbytes, shift = c.copy - c.source, first = ~0ull, last = 0, count = 0;
  for (u64 p = (lo & ~15ull) + 16ull * lane; p < hi; p += 512) {
    u32 bad = 0;
    if (p >= lo && p + 16 <= hi) {
      uint4 a = *(const uint4*)p, b = *(const uint4*)(p + shift);
      if (!same(a, b)) { bad = differing(a, b); *(uint4*)(p + shift) = a; }
    } else {
      for (u64 q = p < lo ? lo : p; q < p + 16 && q < hi; ++q)
        if (*(const u8*)q != *(const u8*)(q + shift)) { bad |= 1u << (q - p); *(u8*)(q + shift) = *(const u8*)q; }
    }
    if (bad) {
      u64 a = p + __ffs(bad) - 1, z = p + 31 - __clz(bad);
      first = a < first ? a : first; last = z > last ? z : last; count += __popc(bad);
    }
  }
  if (node == 0xffffffffu || !__any_sync(~0u, count != 0)) return;
  first = warp_min(first); last = warp_max(last); count = warp_sum(count);
  if (lane) return;
  u32 at = atomicAdd(hits, 1u);
  if (at < room) ((Hit*)(hits + 4))[at] = Hit{node, c.part, first, last, count};
}
