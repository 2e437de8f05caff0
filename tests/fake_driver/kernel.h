/* FIXTURE. CUDA's and HIP's words in C++ of the host, for kernels that run on the fake device. */
#pragma once
#include <cmath>
#include <cstring>
#include <tuple>

struct dim3 { unsigned x, y, z; };
static dim3 threadIdx, blockIdx, blockDim, gridDim;

#define FAKE_VECTOR(type, name)                                                                    \
    struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                       \
    struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };                                 \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; }                        \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

FAKE_VECTOR(float, float)
FAKE_VECTOR(int, int)
FAKE_VECTOR(unsigned, uint)
FAKE_VECTOR(unsigned short, ushort)

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __shared__ thread_local /* blocks run one after the other, so one is enough */

extern "C" {
void (*fake_barrier_of_driver)(void);

void fake_enter_thread(const unsigned *place, const unsigned *block, const unsigned *grid)
{
    blockIdx = {place[0], place[1], place[2]};
    threadIdx = {place[3], place[4], place[5]};
    blockDim = {block[0], block[1], block[2]};
    gridDim = {grid[0], grid[1], grid[2]};
}
}

static inline void __syncthreads()
{
    dim3 mine = threadIdx;
    fake_barrier_of_driver();
    threadIdx = mine;
}

#define FAKE_ATOMIC(name, result)                                                                  \
    template <class T, class V> static inline T atomic##name(T *place, V given)                    \
    {                                                                                              \
        T old = *place, value = (T)given;                                                          \
        *place = result;                                                                           \
        return old;                                                                                \
    }
FAKE_ATOMIC(Add, old + value)
FAKE_ATOMIC(Min, value < old ? value : old)
FAKE_ATOMIC(Max, value > old ? value : old)
FAKE_ATOMIC(Or, old | value)
FAKE_ATOMIC(And, old & value)
FAKE_ATOMIC(Exch, value)

template <class T, class C, class V> static inline T atomicCAS(T *place, C expected, V value)
{
    T old = *place;
    if (old == (T)expected)
        *place = (T)value;
    return old;
}

template <class To, class From> static inline To fake_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
#define __uint_as_float(x) fake_bits<float>((unsigned)(x))
#define __int_as_float(x) fake_bits<float>((int)(x))
#define __float_as_uint(x) fake_bits<unsigned>((float)(x))
#define __longlong_as_double(x) fake_bits<double>((long long)(x))
#define __double_as_longlong(x) fake_bits<long long>((double)(x))
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

/* Calling a kernel with an array of pointers to its arguments, as a driver does. */
template <class... A, size_t... I>
static void fake_apply(void (*kernel)(A...), void **arguments, std::index_sequence<I...>)
{
    kernel(*(A *)arguments[I]...);
}
template <class... A> static void fake_invoke(void (*kernel)(A...), void **arguments)
{
    fake_apply(kernel, arguments, std::index_sequence_for<A...>{});
}
template <class... A> struct fake_sizes {
    unsigned value[sizeof...(A) + 1];
    constexpr fake_sizes(void (*)(A...)) : value{(unsigned)sizeof(A)..., 0} {}
};

/* Half precision, in place of the two instructions that dandelion.h uses. */
static inline float fake_cvt(unsigned short half)
{
    unsigned sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 1023u;
    if (!exponent)
        return fake_bits<float>(sign | fake_bits<unsigned>(fraction * 0x1p-24f));
    exponent = exponent == 31 ? 255u : exponent + 112u;
    return fake_bits<float>(sign | exponent << 23 | fraction << 13);
}
static inline unsigned short fake_cvt(float value)
{
    unsigned sign = fake_bits<unsigned>(value) >> 16 & 0x8000u;
    float size = fabsf(value);
    if (size != size)
        return 0x7fff;
    if (size >= 65520.0f)
        return sign | 0x7c00;
    int exponent = size < 0x1p-14f ? -14 : ilogbf(size);
    unsigned steps = (unsigned)rintf(ldexpf(size, 10 - exponent)); /* to nearest, ties to even */
    return sign | (steps + ((unsigned)(exponent + 14) << 10));
}
