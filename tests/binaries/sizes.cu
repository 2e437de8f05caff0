/* Kernels whose parameters have many sizes, for the readers of binaries; see README.md. */
struct Struct {
    int numbers[5];
    char letter;
};
struct Three {
    char letters[3];
};
struct Large {
    int numbers[1200];
};

__device__ __noinline__ int no_kernel(const int *x, int i) { return x[i]; }

extern "C" __global__ void mixed(const int *x, int *y, float f, int n, unsigned long long m, char c,
                                 short s, double d, Struct t, Three u)
{
    y[n] = no_kernel(x, n);
}

extern "C" __global__ void none() {}

extern "C" __global__ void large(Large a, int *y) { y[0] = a.numbers[7]; }

template <class T> __global__ void typed(T *y, T value) { *y = value; }
template __global__ void typed<short>(short *, short);
