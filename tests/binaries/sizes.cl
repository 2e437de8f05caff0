/* Kernels whose parameters have many sizes, for the readers of binaries; see README.md. */
typedef struct {
    int numbers[5];
    char letter;
} Struct;

kernel void mixed(global const int *x, global int *y, float f, int n, ulong m, char c, short s,
                  double d, Struct t, local int *l)
{
    y[n] = x[n];
}

kernel void none() {}
