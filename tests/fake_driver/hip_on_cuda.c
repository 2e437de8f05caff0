/* FIXTURE. libamdhip64.so and libhiprtc.so over NVIDIA's driver, so that backends/hip.py runs real
 * kernels where there is an NVIDIA device. The two interfaces have the same functions; what differs
 * is translated here. Code objects look like AMD's (machine, metadata) with a cubin inside.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IGNORED(x) ((void)(x))

static void *symbol(const char *library, const char *name)
{
    void *found = dlsym(dlopen(library, RTLD_NOW | RTLD_GLOBAL), name);
    if (!found) {
        fprintf(stderr, "hip_on_cuda: %s has no %s\n", library, name);
        abort();
    }
    return found;
}

/* Codes that HIP has no word for become its general launch failure. */
static int code(int error)
{
    return (error >= 711 && error <= 718 && error != 712 && error != 713) || error == 721 ? 719
                                                                                          : error;
}

#define FOUND(library, name)                                                                       \
    ({                                                                                             \
        static void *found;                                                                        \
        if (!found)                                                                                \
            found = symbol(library, name);                                                         \
        (int (*)()) found;                                                                         \
    })
#define CU(name, ...) code(FOUND("libcuda.so.1", #name)(__VA_ARGS__))
#define RTC(name, ...) FOUND(getenv("NVRTC_LIBRARY"), #name)(__VA_ARGS__)

struct properties { /* hipDeviceProp_tR0600, as far as it is read */
    char name[256];
    char between[1160 - 256];
    char arch[256];
    char rest[2048];
};

int hipInit(unsigned flags) { return CU(cuInit, flags); }
int hipDriverGetVersion(int *version) { return CU(cuDriverGetVersion, version); }
int hipGetDeviceCount(int *count) { return CU(cuDeviceGetCount, count); }
int hipDeviceTotalMem(size_t *bytes, int device) { return CU(cuDeviceTotalMem_v2, bytes, device); }

int hipGetDevicePropertiesR0600(struct properties *found, int device)
{
    int major = 0, minor = 0;
    CU(cuDeviceGetAttribute, &major, 75, device);
    CU(cuDeviceGetAttribute, &minor, 76, device);
    snprintf(found->arch, sizeof found->arch, "sm_%d%d", major, minor);
    return CU(cuDeviceGetName, found->name, (int)sizeof found->name, device);
}

int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    static const int table[][2] = {{29, 5},  {30, 6}, {31, 7},  {56, 1},  {57, 39},
                                   {63, 16}, {74, 8}, {75, 97}, {89, 102}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i][0] == attribute)
            return CU(cuDeviceGetAttribute, value, table[i][1], device);
    return 1;
}

int hipSetDevice(int device)
{
    static void *context;
    int error = context ? 0 : CU(cuDevicePrimaryCtxRetain, &context, device);
    return error ? error : CU(cuCtxSetCurrent, context);
}

int hipDeviceSetLimit(int limit, size_t value) { return CU(cuCtxSetLimit, limit, value); }
int hipMemGetInfo(size_t *f, size_t *t) { return CU(cuMemGetInfo_v2, f, t); }
int hipMalloc(void **address, size_t bytes) { return CU(cuMemAlloc_v2, address, bytes); }
int hipFree(void *address) { return CU(cuMemFree_v2, address); }
int hipHostRegister(void *p, size_t n, unsigned f) { return CU(cuMemHostRegister_v2, p, n, f); }
int hipHostUnregister(void *host) { return CU(cuMemHostUnregister, host); }

int hipMemcpyHtoDAsync(void *to, const void *from, size_t bytes, void *stream)
{
    return CU(cuMemcpyHtoDAsync_v2, to, from, bytes, stream);
}

int hipMemcpyDtoHAsync(void *to, const void *from, size_t bytes, void *stream)
{
    return CU(cuMemcpyDtoHAsync_v2, to, from, bytes, stream);
}

int hipMemcpyDtoDAsync(void *to, void *from, size_t bytes, void *stream)
{
    return CU(cuMemcpyDtoDAsync_v2, to, from, bytes, stream);
}

int hipMemsetD8Async(void *to, unsigned char value, size_t bytes, void *stream)
{
    return CU(cuMemsetD8Async, to, value, bytes, stream);
}

int hipMemGetAllocationGranularity(size_t *bytes, const void *properties, int option)
{
    return CU(cuMemGetAllocationGranularity, bytes, properties, option);
}

int hipMemAddressReserve(void **address, size_t bytes, size_t alignment, void *wish,
                         unsigned long long flags)
{
    return CU(cuMemAddressReserve, address, bytes, alignment, wish, flags);
}

int hipMemAddressFree(void *address, size_t bytes) { return CU(cuMemAddressFree, address, bytes); }

int hipMemCreate(void **handle, size_t bytes, const void *properties, unsigned long long flags)
{
    return CU(cuMemCreate, handle, bytes, properties, flags);
}

int hipMemRelease(void *handle) { return CU(cuMemRelease, handle); }

int hipMemMap(void *address, size_t bytes, size_t offset, void *handle, unsigned long long flags)
{
    return CU(cuMemMap, address, bytes, offset, handle, flags);
}

int hipMemUnmap(void *address, size_t bytes) { return CU(cuMemUnmap, address, bytes); }

int hipMemSetAccess(void *address, size_t bytes, const void *access, size_t count)
{
    return CU(cuMemSetAccess, address, bytes, access, count);
}

/* ---- code objects -- */

struct image {
    char elf[64];
    char magic[8];
    uint64_t bytes;
    char cubin[];
};

int hipModuleLoadData(void **module, const struct image *image)
{
    if (memcmp(image->elf, "\177ELF", 4) || memcmp(image->magic, "HIPCUDA1", 8))
        return 200;
    return CU(cuModuleLoadData, module, image->cubin);
}

int hipModuleUnload(void *module) { return CU(cuModuleUnload, module); }

int hipModuleGetFunction(void **kernel, void *module, const char *name)
{
    return CU(cuModuleGetFunction, kernel, module, name);
}

int hipFuncGetAttribute(int *value, int attribute, void *kernel)
{
    return CU(cuFuncGetAttribute, value, attribute, kernel);
}

int hipFuncSetAttribute(void *kernel, int attribute, int value)
{
    return CU(cuFuncSetAttribute, kernel, attribute, value);
}

struct text {
    char *bytes;
    size_t count, room;
};

static void add(struct text *text, const void *bytes, size_t count)
{
    while (text->count + count > text->room)
        text->bytes = realloc(text->bytes, text->room = text->room ? 2 * text->room : 4096);
    memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
}

/* MessagePack: a byte or two of head, big-endian, then what follows. */
static void head(struct text *text, unsigned char kind, unsigned long value, int bytes)
{
    unsigned char out[5] = {kind};
    for (int i = 0; i < bytes; i++)
        out[1 + i] = (unsigned char)(value >> 8 * (bytes - 1 - i));
    add(text, out, 1 + (size_t)bytes);
}

static void word(struct text *text, const char *value)
{
    head(text, 0xda, strlen(value), 2);
    add(text, value, strlen(value));
}

static int describe(struct text *text, const char *cubin, const char *arch)
{
    void *module = NULL, *kernels[256];
    unsigned count = 0;
    int error = CU(cuModuleLoadData, &module, cubin);
    if (error)
        return error;
    CU(cuModuleGetFunctionCount, &count, module);
    count = count > 256 ? 256 : count;
    CU(cuModuleEnumerateFunctions, kernels, count, module);
    head(text, 0x82, 0, 0);
    word(text, "amdhsa.target");
    word(text, arch);
    word(text, "amdhsa.kernels");
    head(text, 0xdc, count, 2);
    for (unsigned i = 0; i < count; i++) {
        const char *name = NULL;
        size_t sizes[256], offset;
        unsigned parameters = 0;
        CU(cuFuncGetName, &name, kernels[i]);
        while (parameters < 256 &&
               !CU(cuFuncGetParamInfo, kernels[i], (size_t)parameters, &offset, &sizes[parameters]))
            parameters++;
        head(text, 0x82, 0, 0);
        word(text, ".name");
        word(text, name);
        word(text, ".args");
        head(text, 0xdc, parameters, 2);
        for (unsigned p = 0; p < parameters; p++) {
            head(text, 0x82, 0, 0);
            word(text, ".size");
            head(text, 0xce, sizes[p], 4);
            word(text, ".value_kind");
            word(text, "by_value");
        }
    }
    return CU(cuModuleUnload, module);
}

/* Wrap a cubin: header, cubin, names of sections, note, table of sections. */
static int wrap(struct text *out, const char *cubin, size_t bytes, const char *arch)
{
    static const char names[] = "\0.shstrtab\0.note\0.bss";
    int variables = memmem(cubin, bytes, ".nv.global", 10) != NULL;
    struct text note = {0};
    char target[64];
    snprintf(target, sizeof target, "amdgcn-amd-amdhsa--%s", arch);
    int error = describe(&note, cubin, target);
    if (error)
        return error;
    uint32_t note_head[3] = {7, (uint32_t)note.count, 32};
    uint64_t size = bytes;
    unsigned char elf[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1, 64};
    add(out, elf, sizeof elf);
    add(out, "HIPCUDA1", 8);
    add(out, &size, 8);
    add(out, cubin, bytes);
    uint64_t names_at = out->count;
    add(out, names, sizeof names);
    uint64_t note_at = out->count;
    add(out, note_head, sizeof note_head);
    add(out, "AMDGPU\0\0", 8);
    add(out, note.bytes, note.count);
    free(note.bytes);
    uint64_t table_at = out->count;
    struct { /* of an ELF file */
        uint32_t name, kind;
        uint64_t flags, address, offset, size, more[3];
    } sections[4] = {
        {0},
        {1, 3, 0, 0, names_at, sizeof names, {0}},
        {11, 7, 2, 0, note_at, table_at - note_at, {0}},
        {17, 8, 3, 0, table_at, variables ? 4 : 0, {0}},
    };
    add(out, sections, sizeof sections);
    *(uint16_t *)(out->bytes + 16) = 3;
    *(uint16_t *)(out->bytes + 18) = 224;
    *(uint64_t *)(out->bytes + 40) = table_at;
    *(uint16_t *)(out->bytes + 58) = 64;
    *(uint16_t *)(out->bytes + 60) = 4;
    *(uint16_t *)(out->bytes + 62) = 1;
    return 0;
}

/* ---- work -- */

int hipModuleLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments,
                          void **extra)
{
    return CU(cuLaunchKernel, kernel, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
}

int hipStreamCreateWithFlags(void **s, unsigned flags) { return CU(cuStreamCreate, s, flags); }
int hipStreamDestroy(void *stream) { return CU(cuStreamDestroy_v2, stream); }
int hipStreamSynchronize(void *stream) { return CU(cuStreamSynchronize, stream); }
int hipStreamBeginCapture(void *s, int mode) { return CU(cuStreamBeginCapture_v2, s, mode); }
int hipStreamEndCapture(void *s, void **graph) { return CU(cuStreamEndCapture, s, graph); }

int hipStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *number, void **graph,
                               void **nodes, size_t *count)
{
    return CU(cuStreamGetCaptureInfo_v2, stream, status, number, graph, nodes, count);
}

struct hip_node { /* hipKernelNodeParams */
    unsigned block[3];
    void **extra, *kernel;
    unsigned grid[3];
    void **arguments;
    unsigned shared;
};

struct cuda_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    void *kernel;
    unsigned grid[3], block[3], shared;
    void **arguments, **extra, *library_kernel, *context;
};

int hipGraphExecKernelNodeSetParams(void *made, void *node, const struct hip_node *now)
{
    struct cuda_node found = {.kernel = now->kernel, .shared = now->shared,
                              .arguments = now->arguments, .extra = now->extra};
    memcpy(found.grid, now->grid, sizeof found.grid);
    memcpy(found.block, now->block, sizeof found.block);
    return CU(cuGraphExecKernelNodeSetParams_v2, made, node, &found);
}

int hipGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags)
{
    return CU(cuGraphInstantiateWithFlags, made, graph, flags);
}

int hipGraphUpload(void *made, void *stream) { return CU(cuGraphUpload, made, stream); }
int hipGraphLaunch(void *made, void *stream) { return CU(cuGraphLaunch, made, stream); }
int hipGraphDestroy(void *graph) { return CU(cuGraphDestroy, graph); }
int hipGraphExecDestroy(void *made) { return CU(cuGraphExecDestroy, made); }
int hipEventCreateWithFlags(void **e, unsigned flags) { return CU(cuEventCreate, e, flags); }
int hipEventRecord(void *event, void *stream) { return CU(cuEventRecord, event, stream); }
int hipStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    return CU(cuStreamWaitEvent, stream, event, flags);
}
int hipEventSynchronize(void *event) { return CU(cuEventSynchronize, event); }
int hipEventDestroy(void *event) { return CU(cuEventDestroy_v2, event); }

/* ---- the compiler -- */

struct program {
    void *inner;
    struct text code;
    char arch[32];
};

const char *hiprtcGetErrorString(int result) { return result ? "an error" : "success"; }

int hiprtcVersion(int *major, int *minor) { return RTC(nvrtcVersion, major, minor); }

int hiprtcCreateProgram(struct program **program, const char *source, const char *name, int count,
                        const char *const *headers, const char *const *names)
{
    *program = calloc(1, sizeof **program);
    return RTC(nvrtcCreateProgram, &(*program)->inner, source, name, count, headers, names);
}

int hiprtcCompileProgram(struct program *program, int count, const char *const *options)
{
    char arch[64];
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "--offload-arch=", 15))
            snprintf(program->arch, sizeof program->arch, "%s", options[i] + 15);
    snprintf(arch, sizeof arch, "--gpu-architecture=%s", program->arch);
    const char *words[] = {arch, "--std=c++17"};
    int error = RTC(nvrtcCompileProgram, program->inner, 2, words);
    if (error)
        return error;
    size_t bytes = 0;
    RTC(nvrtcGetCUBINSize, program->inner, &bytes);
    char *cubin = malloc(bytes);
    RTC(nvrtcGetCUBIN, program->inner, cubin);
    error = wrap(&program->code, cubin, bytes, program->arch);
    free(cubin);
    return error ? 11 : 0;
}

int hiprtcGetProgramLogSize(struct program *program, size_t *bytes)
{
    return RTC(nvrtcGetProgramLogSize, program->inner, bytes);
}

int hiprtcGetProgramLog(struct program *program, char *log)
{
    return RTC(nvrtcGetProgramLog, program->inner, log);
}

int hiprtcGetCodeSize(struct program *program, size_t *bytes)
{
    *bytes = program->code.count;
    return 0;
}

int hiprtcGetCode(struct program *program, char *code_bytes)
{
    memcpy(code_bytes, program->code.bytes, program->code.count);
    return 0;
}

int hiprtcDestroyProgram(struct program **program)
{
    int error = RTC(nvrtcDestroyProgram, &(*program)->inner);
    free((*program)->code.bytes);
    free(*program);
    return error;
}
