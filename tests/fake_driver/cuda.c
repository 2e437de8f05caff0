/* FIXTURE. libcuda.so.1 and libnvrtc over core.c: the functions that backends/cuda.py calls. */
#define _GNU_SOURCE
#include "enter.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define IGNORED(x) ((void)(x))

typedef unsigned long long address;

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    IGNORED(version), IGNORED(flags);
    Dl_info here;
    dladdr(&fake_arch, &here);
    void *library = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *function = dlsym(library, name);
    dlclose(library);
    if (status)
        *status = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}

int cuInit(unsigned flags)
{
    IGNORED(flags);
    ENTER;
    return OK;
}

int cuDriverGetVersion(int *version)
{
    ENTER;
    *version = 13000;
    return OK;
}

int cuDeviceGetCount(int *count)
{
    ENTER;
    *count = 1;
    return OK;
}

int cuDeviceGet(int *device, int ordinal)
{
    ENTER;
    *device = ordinal;
    return OK;
}

int cuDeviceGetName(char *name, int length, int device)
{
    IGNORED(device);
    ENTER;
    strncpy(name, "Fake device (a fixture)", (size_t)length);
    return OK;
}

int cuDeviceTotalMem(size_t *bytes, int device)
{
    IGNORED(device);
    ENTER;
    size_t free_bytes;
    fake_memory(&free_bytes, bytes);
    return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    IGNORED(device);
    ENTER;
    int version = atoi(fake_arch + 3);
    switch (attribute) {
    case 1: *value = THREADS; break;
    case 5: *value = 2147483647; break;
    case 6: case 7: *value = 65535; break;
    case 8: *value = SHARED_BYTES; break;
    case 16: *value = 4; break;
    case 39: *value = 2048; break;
    case 75: *value = version / 10; break;
    case 76: *value = version % 10; break;
    case 97: *value = SHARED_MOST_BYTES; break;
    case 102: case 103: *value = fake_virtual_memory(); break;
    default: return INVALID;
    }
    return OK;
}

int cuGetErrorName(int error, const char **text)
{
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_FIXTURE";
    return OK;
}

int cuGetErrorString(int error, const char **text)
{
    IGNORED(error);
    *text = "a fixture's error";
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    IGNORED(device);
    ENTER;
    *context = (void *)1;
    return fake_retain();
}

int cuDevicePrimaryCtxRelease(int device)
{
    IGNORED(device);
    ENTER;
    return fake_release();
}

int cuCtxSetCurrent(void *context)
{
    IGNORED(context);
    ENTER;
    return OK;
}

int cuCtxSetLimit(int limit, size_t value)
{
    IGNORED(limit), IGNORED(value);
    ENTER_CONTEXT;
    return OK;
}

int cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    ENTER_CONTEXT;
    fake_memory(free_bytes, total_bytes);
    return OK;
}

int cuMemAlloc(address *pointer, size_t bytes)
{
    ENTER_CONTEXT;
    return fake_allocate((void **)pointer, bytes);
}

int cuMemFree(address pointer)
{
    ENTER_CONTEXT;
    return fake_free((void *)pointer);
}

int cuMemHostRegister(void *host, size_t bytes, unsigned flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_register(host, bytes);
}

int cuMemHostUnregister(void *host)
{
    ENTER_CONTEXT;
    return fake_unregister(host);
}

int cuMemcpyHtoDAsync(address to, const void *from, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_copy(stream, (void *)to, from, bytes, from);
}

int cuMemcpyDtoHAsync(void *to, address from, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_copy(stream, to, (void *)from, bytes, to);
}

int cuMemcpyDtoDAsync(address to, address from, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_copy_within(stream, (void *)to, (void *)from, bytes);
}

int cuMemsetD8Async(address to, unsigned char value, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_fill(stream, (void *)to, value, bytes);
}

int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option)
{
    IGNORED(properties), IGNORED(option);
    ENTER_CONTEXT;
    *bytes = GRANULE_BYTES;
    return OK;
}

int cuMemAddressReserve(address *pointer, size_t bytes, size_t alignment, address wish,
                        unsigned long long flags)
{
    IGNORED(alignment), IGNORED(wish), IGNORED(flags);
    ENTER_CONTEXT;
    return fake_reserve((void **)pointer, bytes);
}

int cuMemAddressFree(address pointer, size_t bytes)
{
    ENTER_CONTEXT;
    return fake_unreserve((void *)pointer, bytes);
}

int cuMemCreate(unsigned long long *handle, size_t bytes, const void *properties,
                unsigned long long flags)
{
    IGNORED(properties), IGNORED(flags);
    ENTER_CONTEXT;
    int memory = -1, code = fake_create(&memory, bytes);
    *handle = (unsigned long long)memory;
    return code;
}

int cuMemExportToShareableHandle(int *descriptor, unsigned long long handle, int kind,
                                 unsigned long long flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return kind == 1 ? fake_export(descriptor, (int)handle) : INVALID;
}

int cuMemImportFromShareableHandle(unsigned long long *handle, void *descriptor, int kind)
{
    ENTER_CONTEXT;
    int memory = -1;
    int code = kind == 1 ? fake_import(&memory, (int)(intptr_t)descriptor) : INVALID;
    *handle = (unsigned long long)memory;
    return code;
}

int cuMemRelease(unsigned long long handle)
{
    ENTER_CONTEXT;
    return fake_destroy((int)handle);
}

int cuMemMap(address pointer, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags)
{
    IGNORED(offset), IGNORED(flags);
    ENTER_CONTEXT;
    return fake_map((void *)pointer, bytes, (int)handle);
}

int cuMemUnmap(address pointer, size_t bytes)
{
    ENTER_CONTEXT;
    return fake_unmap((void *)pointer, bytes);
}

struct access { int type, id, flags; };

int cuMemSetAccess(address pointer, size_t bytes, const struct access *access, size_t count)
{
    IGNORED(count);
    ENTER_CONTEXT;
    return fake_protect((void *)pointer, bytes, access->flags);
}

int cuModuleLoadData(struct module **module, const void *image)
{
    ENTER_CONTEXT;
    return fake_load(module, image);
}

int cuModuleLoadDataEx(struct module **module, const void *image, unsigned count, int *options,
                       void **values)
{
    IGNORED(count), IGNORED(options), IGNORED(values);
    ENTER_CONTEXT;
    return fake_load(module, image);
}

int cuModuleUnload(struct module *module)
{
    ENTER_CONTEXT;
    return fake_unload(module);
}

int cuModuleGetFunction(struct kernel **kernel, struct module *module, const char *name)
{
    ENTER_CONTEXT;
    return fake_kernel(kernel, module, name);
}

int cuModuleGetGlobal(void **address, size_t *bytes, struct module *module, const char *name)
{
    ENTER_CONTEXT;
    return fake_variable(address, bytes, module, name);
}

int cuFuncGetAttribute(int *value, int attribute, struct kernel *kernel)
{
    IGNORED(kernel);
    ENTER_CONTEXT;
    *value = attribute == 0 ? (int)THREADS : 0;
    return OK;
}

int cuFuncSetAttribute(struct kernel *kernel, int attribute, int value)
{
    ENTER_CONTEXT;
    if (attribute != 8 || value > (int)SHARED_MOST_BYTES)
        return INVALID;
    kernel->dynamic_bytes = (unsigned)value;
    return OK;
}

int cuFuncGetParamInfo(struct kernel *kernel, size_t index, size_t *offset, size_t *bytes)
{
    ENTER_CONTEXT;
    size_t at = 0;
    for (size_t i = 0; kernel->sizes[i]; i++) {
        if (i == index) {
            *offset = at;
            *bytes = kernel->sizes[i];
            return OK;
        }
        at += kernel->sizes[i];
    }
    return INVALID;
}

int cuLaunchKernel(struct kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by,
                   unsigned bz, unsigned shared, struct stream *stream, void **arguments,
                   void **extra)
{
    IGNORED(extra);
    ENTER_CONTEXT;
    return fake_launch(stream, kernel, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared,
                       arguments);
}

int cuStreamCreate(struct stream **stream, unsigned flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_create_stream(stream);
}

int cuStreamDestroy(struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_destroy_stream(stream);
}

int cuStreamSynchronize(void *stream)
{
    IGNORED(stream);
    ENTER_CONTEXT;
    return fake_synchronize();
}

int cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_wait_for(stream, event);
}

int cuStreamBeginCapture(struct stream *stream, int mode)
{
    IGNORED(mode);
    ENTER_CONTEXT;
    return fake_begin_capture(stream);
}

int cuStreamEndCapture(struct stream *stream, struct graph **graph)
{
    ENTER_CONTEXT;
    return fake_end_capture(stream, graph);
}

int cuStreamGetCaptureInfo(struct stream *stream, int *status, uint64_t *number,
                           struct graph **graph, uintptr_t **nodes, const void **edges,
                           size_t *count)
{
    ENTER_CONTEXT;
    *status = 1;
    if (number)
        *number = 1;
    if (graph)
        *graph = NULL;
    static const char plain[64][8];
    if (edges)
        *edges = plain;
    return fake_last_captured(stream, nodes, count);
}

struct node_parameters { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    struct kernel *kernel;
    unsigned grid[3], block[3], shared;
    void **arguments, **extra;
    void *library_kernel, *context;
};

int cuGraphExecKernelNodeSetParams(struct graph *made, uintptr_t node,
                                   const struct node_parameters *now)
{
    ENTER_CONTEXT;
    return fake_set_node(made, node, now->kernel, now->grid, now->block, now->shared,
                         now->arguments);
}

int cuGraphInstantiateWithFlags(struct graph **made, struct graph *graph, unsigned long long flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_instantiate(made, graph);
}

int cuGraphInstantiate(struct graph **made, struct graph *graph, unsigned long long flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_instantiate(made, graph);
}

int cuGraphUpload(struct graph *made, void *stream)
{
    IGNORED(made), IGNORED(stream);
    ENTER_CONTEXT;
    return OK;
}

int cuGraphLaunch(struct graph *made, void *stream)
{
    IGNORED(stream);
    ENTER_CONTEXT;
    return fake_replay(made);
}

int cuGraphDestroy(struct graph *graph)
{
    ENTER_CONTEXT;
    fake_drop(graph, GRAPH);
    return OK;
}

int cuGraphExecDestroy(struct graph *made)
{
    ENTER_CONTEXT;
    fake_drop(made, EXECUTABLE);
    return OK;
}

int cuEventCreate(struct event **event, unsigned flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_create_event(event);
}

int cuEventRecord(struct event *event, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_record(event, stream);
}

int cuEventSynchronize(struct event *event)
{
    ENTER_CONTEXT;
    return fake_synchronize_event(event);
}

int cuEventDestroy(struct event *event)
{
    ENTER_CONTEXT;
    return fake_destroy_event(event);
}

/* ---- NVRTC -- */

#define RTC(name) nvrtc##name
#define CODE(name) nvrtcGetCUBIN##name
#define KIND "cuda"
#define ARCH_OPTION "--gpu-architecture="
#include "rtc.h"
