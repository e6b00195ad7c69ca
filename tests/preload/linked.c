/* A program that is linked to the driver's library: the loader finds the functions that it calls. */

#include <stdio.h>
#include <string.h>

typedef unsigned long long address;

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxPushCurrent_v2(void *context);
extern int cuMemGetInfo_v2(size_t *free, size_t *total);
extern int cuMemAlloc_v2(address *at, size_t size);
extern int cuMemFree_v2(address at);
extern int cuMemcpyHtoD_v2(address to, const void *from, size_t size);
extern int cuMemcpyDtoH_v2(void *to, address from, size_t size);
extern int cuLaunchKernel(void *kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *stream,
                          void **arguments, void **more);
/* How many blocks the fake driver itself has handed out. */
extern size_t fakeBlocks(void);

#define MUST(call) do { int code = (call); if (code) { printf("%s: %d\n", #call, code); return 1; } } while (0)

int main(void) {
    enum { SIZE = 3 << 20, PAGE = 4096 };
    static unsigned char bytes[SIZE];
    void *context;
    size_t free, total;
    address at, length = PAGE;
    void *arguments[] = {&at, &length};
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxPushCurrent_v2(context));
    MUST(cuMemAlloc_v2(&at, SIZE));
    MUST(cuMemGetInfo_v2(&free, &total));
    printf("%zu bytes in all, %zu blocks of the driver\n", total, fakeBlocks());
    memset(bytes, 6, SIZE);
    MUST(cuMemcpyHtoD_v2(at, bytes, SIZE));
    /* The fake driver's kernel adds 1 to each byte. */
    MUST(cuLaunchKernel(context, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    MUST(cuMemcpyDtoH_v2(bytes, at, SIZE));
    for (int i = 0; i < SIZE; i++)
        if (bytes[i] != (i < PAGE ? 7 : 6)) {
            printf("byte %d is %d\n", i, bytes[i]);
            return 1;
        }
    puts("ready");
    fflush(stdout);
    getchar();
    MUST(cuMemFree_v2(at));
    puts("done");
}
