/* dandelion.h: one kernel source for OpenCL C, CUDA C++ and HIP C++.
 *
 * Every word below means the same on each device. A source includes this file, uses these words and
 * is otherwise plain C99: no templates, no C++, no vendor built-ins. See docs/blueprint.md.
 *
 *   #include "dandelion.h"
 *
 *   KERNEL void scale(GLOBAL const f32 *x, GLOBAL f32 *y, f32 factor, u64 count)
 *   {
 *       u64 i = GLOBAL_ID(0);
 *       if (i < count)
 *           y[i] = factor * x[i];
 *   }
 *
 * Local memory of fixed size:   LOCAL f32 tile[16][16];          (at the top of the kernel's body)
 * Local memory of launch size:  KERNEL void k(GLOBAL f32 *x DYNAMIC_LOCAL)   (no comma before it)
 *                               { USE_DYNAMIC_LOCAL(f32, tile);  ... tile[0] ... }
 */
#ifndef DANDELION_H
#define DANDELION_H

#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)

/* ---------------------------------------------------------------------------- OpenCL C -- */

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#ifdef cl_khr_int64_base_atomics
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#endif

#define DANDELION_OPENCL 1

#define KERNEL __kernel
/* On processors, PoCL leaves calls of functions in the code, and then it cannot compute several
 * work items at once with vectors. So functions are inlined, and the usual ones are the compiler's
 * own, or written below. */
#ifdef DANDELION_PROCESSOR
#define DEVICE static inline __attribute__((always_inline))
#if defined(__FMA__) || defined(__aarch64__)
#define DANDELION_INLINES 1
#endif
#else
#define DEVICE
#endif
#define GLOBAL __global
#define LOCAL __local
#define CONSTANT __constant
#define RESTRICT restrict

typedef char i8;
typedef short i16;
typedef int i32;
typedef long i64;
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;
typedef float f32;
typedef double f64;

#define GLOBAL_ID(d) ((u64)get_global_id(d))
#define GLOBAL_SIZE(d) ((u64)get_global_size(d))
#define LOCAL_ID(d) ((u32)get_local_id(d))
#define LOCAL_SIZE(d) ((u32)get_local_size(d))
#define GROUP_ID(d) ((u32)get_group_id(d))
#define NUM_GROUPS(d) ((u32)get_num_groups(d))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)

#define DYNAMIC_LOCAL , __local uchar *dandelion_local
#define USE_DYNAMIC_LOCAL(type, name) __local type *name = (__local type *)dandelion_local

#define AS_F32(x) as_float((u32)(x))
#define AS_U32(x) as_uint((f32)(x))
#define AS_F64(x) as_double((u64)(x))
#define AS_U64(x) as_ulong((f64)(x))

/* Vectors, for loads and stores of several elements at once; the lanes are x, y, z, w. A pointer to
 * one must be a multiple of its size. */
typedef float2 f32x2;
typedef float4 f32x4;
typedef int2 i32x2;
typedef int4 i32x4;
typedef uint2 u32x2;
typedef uint4 u32x4;
typedef ushort2 u16x2;
typedef ushort4 u16x4;
#define F32X2(a, b) ((f32x2)((f32)(a), (f32)(b)))
#define F32X4(a, b, c, d) ((f32x4)((f32)(a), (f32)(b), (f32)(c), (f32)(d)))
#define I32X2(a, b) ((i32x2)((i32)(a), (i32)(b)))
#define I32X4(a, b, c, d) ((i32x4)((i32)(a), (i32)(b), (i32)(c), (i32)(d)))
#define U32X2(a, b) ((u32x2)((u32)(a), (u32)(b)))
#define U32X4(a, b, c, d) ((u32x4)((u32)(a), (u32)(b), (u32)(c), (u32)(d)))
#define U16X2(a, b) ((u16x2)((u16)(a), (u16)(b)))
#define U16X4(a, b, c, d) ((u16x4)((u16)(a), (u16)(b), (u16)(c), (u16)(d)))

/* Mathematics: C's names with f for f32. Names without f take and give f64. */
#define acosf(x) acos((f32)(x))
#define asinf(x) asin((f32)(x))
#define atanf(x) atan((f32)(x))
#define atan2f(y, x) atan2((f32)(y), (f32)(x))
#define cosf(x) cos((f32)(x))
#define coshf(x) cosh((f32)(x))
#define erff(x) erf((f32)(x))
#define expm1f(x) expm1((f32)(x))
#define fmodf(a, b) fmod((f32)(a), (f32)(b))
#define hypotf(a, b) hypot((f32)(a), (f32)(b))
#define log10f(x) log10((f32)(x))
#define log1pf(x) log1p((f32)(x))
#define log2f(x) log2((f32)(x))
#define logf(x) log((f32)(x))
#define powf(a, b) pow((f32)(a), (f32)(b))
#define roundf(x) round((f32)(x))
#define rsqrtf(x) rsqrt((f32)(x))
#define sinf(x) sin((f32)(x))
#define sinhf(x) sinh((f32)(x))
#define tanf(x) tan((f32)(x))
#define tanhf(x) tanh((f32)(x))

#ifdef DANDELION_INLINES
/* p * 2^n; n may be below the exponents of f32, and is at most 128. */
DEVICE f32 dandelion_scaled(f32 p, f32 n)
{
    const i32 all = (i32)n, part = all >> 1;
    return p * AS_F32((part + 127) << 23) * AS_F32((all - part + 127) << 23);
}

/* The polynomials have the smallest relative error, 2e-9, that is possible with their degree; with
 * the rounding, results are wrong by less than one unit in the last place. What underflows is not
 * computed: processors take a hundred times as long for it. */
DEVICE f32 dandelion_exp2(f32 x)
{
    const f32 c = x > -150.0f ? (x < 129.0f ? x : 129.0f) : 0.0f;
    const f32 n = __builtin_rintf(c), r = c - n;
    f32 p = 0.00015353362f;
    p = __builtin_fmaf(p, r, 0.0013398875f);
    p = __builtin_fmaf(p, r, 0.00961843692f);
    p = __builtin_fmaf(p, r, 0.0555033237f);
    p = __builtin_fmaf(p, r, 0.240226477f);
    p = __builtin_fmaf(p, r, 0.693147182f);
    p = __builtin_fmaf(p, r, 1.0f);
    return x > -150.0f ? dandelion_scaled(p, n) : x != x ? x : 0.0f;
}

DEVICE f32 dandelion_exp(f32 x)
{
    const f32 c = x > -104.0f ? (x < 89.0f ? x : 89.0f) : 0.0f;
    const f32 n = __builtin_rintf(c * 1.44269504f);
    f32 r = __builtin_fmaf(n, -0.693145752f, c); /* exact: its last bits are zero */
    r = __builtin_fmaf(n, -1.42860677e-6f, r);
    f32 p = 0.00138436537f;
    p = __builtin_fmaf(p, r, 0.0083741555f);
    p = __builtin_fmaf(p, r, 0.0416680016f);
    p = __builtin_fmaf(p, r, 0.166664317f);
    p = __builtin_fmaf(p, r, 0.49999994f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    return x > -104.0f ? dandelion_scaled(p, n) : x != x ? x : 0.0f;
}

#define ceilf(x) __builtin_ceilf((f32)(x))
#define exp2f(x) dandelion_exp2((f32)(x))
#define expf(x) dandelion_exp((f32)(x))
#define fabsf(x) __builtin_fabsf((f32)(x))
#define floorf(x) __builtin_floorf((f32)(x))
#define fmaf(a, b, c) __builtin_fmaf((f32)(a), (f32)(b), (f32)(c))
#define fmaxf(a, b) __builtin_fmaxf((f32)(a), (f32)(b))
#define fminf(a, b) __builtin_fminf((f32)(a), (f32)(b))
#define rintf(x) __builtin_rintf((f32)(x))
#define sqrtf(x) __builtin_sqrtf((f32)(x))
#define truncf(x) __builtin_truncf((f32)(x))
#else
#define ceilf(x) ceil((f32)(x))
#define exp2f(x) exp2((f32)(x))
#define expf(x) exp((f32)(x))
#define fabsf(x) fabs((f32)(x))
#define floorf(x) floor((f32)(x))
#define fmaf(a, b, c) fma((f32)(a), (f32)(b), (f32)(c))
#define fmaxf(a, b) fmax((f32)(a), (f32)(b))
#define fminf(a, b) fmin((f32)(a), (f32)(b))
#define rintf(x) rint((f32)(x))
#define sqrtf(x) sqrt((f32)(x))
#define truncf(x) trunc((f32)(x))
#endif

/* Atomics: each gives the old value. I32 and U32 take pointers to GLOBAL and LOCAL, the others to
 * GLOBAL only. */
#define ATOMIC_ADD_I32(p, v) atomic_add((p), (i32)(v))
#define ATOMIC_ADD_U32(p, v) atomic_add((p), (u32)(v))
#define ATOMIC_MIN_I32(p, v) atomic_min((p), (i32)(v))
#define ATOMIC_MIN_U32(p, v) atomic_min((p), (u32)(v))
#define ATOMIC_MAX_I32(p, v) atomic_max((p), (i32)(v))
#define ATOMIC_MAX_U32(p, v) atomic_max((p), (u32)(v))
#define ATOMIC_OR_U32(p, v) atomic_or((p), (u32)(v))
#define ATOMIC_AND_U32(p, v) atomic_and((p), (u32)(v))
#define ATOMIC_XCHG_U32(p, v) atomic_xchg((p), (u32)(v))
#define ATOMIC_CAS_U32(p, expected, v) atomic_cmpxchg((p), (u32)(expected), (u32)(v))
#ifdef cl_khr_int64_base_atomics
#define ATOMIC_ADD_U64(p, v) atom_add((volatile __global ulong *)(p), (u64)(v))
#endif

static inline f32 dandelion_atomic_add_f32(volatile __global f32 *p, f32 v)
{
    volatile __global u32 *bits = (volatile __global u32 *)p;
    u32 seen = *bits;
    for (;;) {
        u32 before = atomic_cmpxchg(bits, seen, as_uint(as_float(seen) + v));
        if (before == seen)
            return as_float(before);
        seen = before;
    }
}
#define ATOMIC_ADD_F32(p, v) dandelion_atomic_add_f32((p), (v))

/* Half precision is storage only: 16 bits in memory, f32 in registers. */
typedef ushort f16;
static inline f32 dandelion_f16_load(u16 bits)
{
    return vload_half(0, (const __private half *)&bits);
}
static inline u16 dandelion_f16_store(f32 value)
{
    u16 bits;
    vstore_half_rte(value, 0, (__private half *)&bits);
    return bits;
}

#else

/* ------------------------------------------------------------------- CUDA C++ and HIP C++ -- */

#if defined(__HIP__) || defined(__HIPCC__) || defined(__HIPCC_RTC__) || defined(__HIP_PLATFORM_AMD__)
#define DANDELION_HIP 1
#else
#define DANDELION_CUDA 1
#endif

#define KERNEL extern "C" __global__
#define DEVICE static __device__
#define GLOBAL
#define LOCAL __shared__
#define CONSTANT static __constant__ const
#define RESTRICT __restrict__

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#define DANDELION_PICK(v, d) ((d) == 0 ? (u32)v.x : (d) == 1 ? (u32)v.y : (u32)v.z)
#define LOCAL_ID(d) DANDELION_PICK(threadIdx, d)
#define LOCAL_SIZE(d) DANDELION_PICK(blockDim, d)
#define GROUP_ID(d) DANDELION_PICK(blockIdx, d)
#define NUM_GROUPS(d) DANDELION_PICK(gridDim, d)
#define GLOBAL_ID(d) ((u64)GROUP_ID(d) * LOCAL_SIZE(d) + LOCAL_ID(d))
#define GLOBAL_SIZE(d) ((u64)NUM_GROUPS(d) * LOCAL_SIZE(d))
#define BARRIER() __syncthreads()

#define DYNAMIC_LOCAL
extern __shared__ __attribute__((aligned(16))) unsigned char dandelion_local[];
#define USE_DYNAMIC_LOCAL(type, name) type *name = (type *)dandelion_local

#define AS_F32(x) __uint_as_float((u32)(x))
#define AS_U32(x) __float_as_uint((f32)(x))
#define AS_F64(x) __longlong_as_double((i64)(x))
#define AS_U64(x) ((u64)__double_as_longlong((f64)(x)))

typedef float2 f32x2;
typedef float4 f32x4;
typedef int2 i32x2;
typedef int4 i32x4;
typedef uint2 u32x2;
typedef uint4 u32x4;
typedef ushort2 u16x2;
typedef ushort4 u16x4;
#define F32X2(a, b) make_float2((f32)(a), (f32)(b))
#define F32X4(a, b, c, d) make_float4((f32)(a), (f32)(b), (f32)(c), (f32)(d))
#define I32X2(a, b) make_int2((i32)(a), (i32)(b))
#define I32X4(a, b, c, d) make_int4((i32)(a), (i32)(b), (i32)(c), (i32)(d))
#define U32X2(a, b) make_uint2((u32)(a), (u32)(b))
#define U32X4(a, b, c, d) make_uint4((u32)(a), (u32)(b), (u32)(c), (u32)(d))
#define U16X2(a, b) make_ushort2((u16)(a), (u16)(b))
#define U16X4(a, b, c, d) make_ushort4((u16)(a), (u16)(b), (u16)(c), (u16)(d))

#define ATOMIC_ADD_I32(p, v) atomicAdd((i32 *)(p), (i32)(v))
#define ATOMIC_ADD_U32(p, v) atomicAdd((u32 *)(p), (u32)(v))
#define ATOMIC_MIN_I32(p, v) atomicMin((i32 *)(p), (i32)(v))
#define ATOMIC_MIN_U32(p, v) atomicMin((u32 *)(p), (u32)(v))
#define ATOMIC_MAX_I32(p, v) atomicMax((i32 *)(p), (i32)(v))
#define ATOMIC_MAX_U32(p, v) atomicMax((u32 *)(p), (u32)(v))
#define ATOMIC_OR_U32(p, v) atomicOr((u32 *)(p), (u32)(v))
#define ATOMIC_AND_U32(p, v) atomicAnd((u32 *)(p), (u32)(v))
#define ATOMIC_XCHG_U32(p, v) atomicExch((u32 *)(p), (u32)(v))
#define ATOMIC_CAS_U32(p, expected, v) atomicCAS((u32 *)(p), (u32)(expected), (u32)(v))
#define ATOMIC_ADD_U64(p, v) atomicAdd((u64 *)(p), (u64)(v))
#define ATOMIC_ADD_F32(p, v) atomicAdd((f32 *)(p), (f32)(v))

typedef unsigned short f16;
#ifdef DANDELION_HIP
static __device__ inline f32 dandelion_f16_load(u16 bits)
{
    _Float16 half;
    __builtin_memcpy(&half, &bits, 2);
    return (f32)half;
}
static __device__ inline u16 dandelion_f16_store(f32 value)
{
    _Float16 half = (_Float16)value;
    u16 bits;
    __builtin_memcpy(&bits, &half, 2);
    return bits;
}
#else
static __device__ inline f32 dandelion_f16_load(u16 bits)
{
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
static __device__ inline u16 dandelion_f16_store(f32 value)
{
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

#endif

/* ------------------------------------------------------------------------------ the same -- */

#define F16_LOAD(p, i) dandelion_f16_load((p)[i])
#define F16_STORE(p, i, v) ((p)[i] = dandelion_f16_store(v))
#define F16_TO_F32(bits) dandelion_f16_load(bits)
#define F32_TO_F16(v) dandelion_f16_store(v)

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))

#endif
