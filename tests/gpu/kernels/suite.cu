// The kernels of the GPU suite, which compute on mapped memory. `suite.ptx` beside it is this file for ISA 7.8, so that drivers from
// CUDA 11.8 on take it; NVRTC 11.8 made it:  --gpu-architecture=compute_70 --std=c++17
//
// `content.rs` has the same `word` for the processor.

typedef unsigned long long u64;

__device__ static u64 word(u64 seed, u64 index) {
    u64 z = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Random content: another seed, another content.
extern "C" __global__ void fill(u64 *out, u64 words, u64 seed) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) out[i] = word(seed, i);
}

// A sum in which each word counts by its place, so that swapped words show. Adds to `*out`.
extern "C" __global__ void sum(const u64 *in, u64 words, u64 *out) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 own = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) own += in[i] * (2 * i + 1);
    atomicAdd(out, own);
}

// The same of one line of 4 KiB in so many, all over the memory: of `lines` lines, `apart` words from one to the next. Each word
// counts by its place among all of them.
extern "C" __global__ void sum_lines(const u64 *in, u64 lines, u64 apart, u64 *out) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 own = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < lines * 512; i += step) {
        const u64 at = i / 512 * apart + i % 512;
        own += in[at] * (2 * at + 1);
    }
    atomicAdd(out, own);
}

// One store.
extern "C" __global__ void poke(u64 *at, u64 value) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *at = value;
}

// Keeps writing to the memory until the time is over: what a process does when it is killed in the middle.
extern "C" __global__ void spin(volatile u64 *at, u64 words, u64 nanoseconds) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    do {
        at[i % words] += 1;
        i += (u64)gridDim.x * blockDim.x;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
