// Sums all bytes of mapped memory, each weighted with its position, so that parts in the wrong order give another sum.
// Modulo 2^64.
//
//     nvcc -arch=sm_70 -ptx -o sum.ptx sum.cu
//
// `sum.ptx` beside it is the same by hand, in ISA 7.8, which drivers since CUDA 11.8 take.

extern "C" __global__ void sum_bytes(const unsigned char *bytes, unsigned long long count, unsigned long long *total)
{
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long at = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long sum = 0;
    for (; at < count; at += stride)
        sum += bytes[at] * (at + 1);
    atomicAdd(total, sum);
}
