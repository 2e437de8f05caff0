/* FIXTURE. libamdhip64.so and libhiprtc.so over core.c: what backends/hip.py calls. */
#define _GNU_SOURCE
#include "enter.h"

#include <stdlib.h>
#include <string.h>

#define IGNORED(x) ((void)(x))

struct properties { /* hipDeviceProp_tR0600, as far as it is read */
    char name[256];
    char between[1160 - 256];
    char arch[256];
    char rest[2048];
};

int hipInit(unsigned flags)
{
    IGNORED(flags);
    ENTER;
    return OK;
}

int hipDriverGetVersion(int *version)
{
    ENTER;
    *version = 70000000;
    return OK;
}

int hipGetDeviceCount(int *count)
{
    ENTER;
    *count = 1;
    return OK;
}

int hipGetDevicePropertiesR0600(struct properties *found, int device)
{
    IGNORED(device);
    ENTER;
    strcpy(found->name, "Fake device (a fixture)");
    strcpy(found->arch, fake_arch);
    strcat(found->arch, ":sramecc+:xnack-");
    return OK;
}

int hipDeviceTotalMem(size_t *bytes, int device)
{
    IGNORED(device);
    ENTER;
    size_t free_bytes;
    fake_memory(&free_bytes, bytes);
    return OK;
}

int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    IGNORED(device);
    ENTER;
    switch (attribute) {
    case 29: *value = 2147483647; break;
    case 30: case 31: *value = 65535; break;
    case 56: *value = THREADS; break;
    case 57: *value = 2048; break;
    case 63: *value = 4; break;
    case 74: *value = SHARED_BYTES; break;
    case 75: *value = SHARED_MOST_BYTES; break;
    case 89: *value = fake_virtual_memory(); break;
    default: return INVALID;
    }
    return OK;
}

/* HIP does not count: the first call takes the device, and only the process's end gives it back. */
int hipSetDevice(int device)
{
    static int taken;
    ENTER;
    if (!taken++)
        fake_retain();
    return device ? INVALID_DEVICE : OK;
}

int hipDeviceSetLimit(int limit, size_t value)
{
    IGNORED(limit), IGNORED(value);
    ENTER_CONTEXT;
    return OK;
}

int hipMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    ENTER_CONTEXT;
    fake_memory(free_bytes, total_bytes);
    return OK;
}

int hipMalloc(void **address, size_t bytes)
{
    ENTER_CONTEXT;
    return fake_allocate(address, bytes);
}

int hipFree(void *address)
{
    ENTER_CONTEXT;
    return fake_free(address);
}

int hipHostRegister(void *host, size_t bytes, unsigned flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_register(host, bytes);
}

int hipHostUnregister(void *host)
{
    ENTER_CONTEXT;
    return fake_unregister(host);
}

int hipMemcpyHtoDAsync(void *to, const void *from, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_copy(stream, to, from, bytes, from);
}

int hipMemcpyDtoHAsync(void *to, const void *from, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_copy(stream, to, from, bytes, to);
}

int hipMemcpyDtoDAsync(void *to, void *from, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_copy_within(stream, to, from, bytes);
}

int hipMemsetD8Async(void *to, unsigned char value, size_t bytes, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_fill(stream, to, value, bytes);
}

int hipMemGetAllocationGranularity(size_t *bytes, const void *properties, int option)
{
    IGNORED(properties), IGNORED(option);
    ENTER_CONTEXT;
    *bytes = GRANULE_BYTES;
    return OK;
}

int hipMemAddressReserve(void **address, size_t bytes, size_t alignment, void *wish,
                         unsigned long long flags)
{
    IGNORED(alignment), IGNORED(wish), IGNORED(flags);
    ENTER_CONTEXT;
    return fake_reserve(address, bytes);
}

int hipMemAddressFree(void *address, size_t bytes)
{
    ENTER_CONTEXT;
    return fake_unreserve(address, bytes);
}

int hipMemCreate(void **handle, size_t bytes, const void *properties, unsigned long long flags)
{
    IGNORED(properties), IGNORED(flags);
    ENTER_CONTEXT;
    int memory = -1, code = fake_create(&memory, bytes);
    *handle = (void *)(intptr_t)memory;
    return code;
}

int hipMemRelease(void *handle)
{
    ENTER_CONTEXT;
    return fake_destroy((int)(intptr_t)handle);
}

int hipMemMap(void *address, size_t bytes, size_t offset, void *handle, unsigned long long flags)
{
    IGNORED(offset), IGNORED(flags);
    ENTER_CONTEXT;
    return fake_map(address, bytes, (int)(intptr_t)handle);
}

int hipMemUnmap(void *address, size_t bytes)
{
    ENTER_CONTEXT;
    return fake_unmap(address, bytes);
}

struct access {
    int type, id, flags;
};

int hipMemSetAccess(void *address, size_t bytes, const struct access *access, size_t count)
{
    IGNORED(count);
    ENTER_CONTEXT;
    return fake_protect(address, bytes, access->flags);
}

int hipModuleLoadData(struct module **module, const void *image)
{
    ENTER_CONTEXT;
    return fake_load(module, image);
}

int hipModuleUnload(struct module *module)
{
    ENTER_CONTEXT;
    return fake_unload(module);
}

int hipModuleGetFunction(struct kernel **kernel, struct module *module, const char *name)
{
    ENTER_CONTEXT;
    return fake_kernel(kernel, module, name);
}

int hipFuncGetAttribute(int *value, int attribute, struct kernel *kernel)
{
    IGNORED(kernel);
    ENTER_CONTEXT;
    *value = attribute == 0 ? (int)THREADS : 0;
    return OK;
}

int hipFuncSetAttribute(struct kernel *kernel, int attribute, int value)
{
    ENTER_CONTEXT;
    if (attribute != 8 || value > (int)SHARED_MOST_BYTES)
        return INVALID;
    kernel->dynamic_bytes = (unsigned)value;
    return OK;
}

int hipModuleLaunchKernel(struct kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, struct stream *stream,
                          void **arguments, void **extra)
{
    IGNORED(extra);
    ENTER_CONTEXT;
    unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return fake_launch(stream, kernel, grid, block, shared, arguments);
}

int hipStreamCreateWithFlags(struct stream **stream, unsigned flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_create_stream(stream);
}

int hipStreamDestroy(struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_destroy_stream(stream);
}

int hipStreamSynchronize(void *stream)
{
    IGNORED(stream);
    ENTER_CONTEXT;
    return fake_synchronize();
}

int hipStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_wait_for(stream, event);
}

int hipStreamBeginCapture(struct stream *stream, int mode)
{
    IGNORED(mode);
    ENTER_CONTEXT;
    return fake_begin_capture(stream);
}

int hipStreamEndCapture(struct stream *stream, struct graph **graph)
{
    ENTER_CONTEXT;
    return fake_end_capture(stream, graph);
}

int hipStreamGetCaptureInfo_v2(struct stream *stream, int *status, unsigned long long *number,
                               struct graph **graph, uintptr_t **nodes, size_t *count)
{
    ENTER_CONTEXT;
    *status = 1;
    if (number)
        *number = 1;
    if (graph)
        *graph = NULL;
    return fake_last_captured(stream, nodes, count);
}

struct node_parameters { /* hipKernelNodeParams */
    unsigned block[3];
    void **extra;
    struct kernel *kernel;
    unsigned grid[3];
    void **arguments;
    unsigned shared;
};

int hipGraphExecKernelNodeSetParams(struct graph *made, uintptr_t node,
                                    const struct node_parameters *now)
{
    ENTER_CONTEXT;
    return fake_set_node(made, node, now->kernel, now->grid, now->block, now->shared,
                         now->arguments);
}

int hipGraphInstantiateWithFlags(struct graph **made, struct graph *graph, unsigned long long flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_instantiate(made, graph);
}

int hipGraphUpload(struct graph *made, void *stream)
{
    IGNORED(made), IGNORED(stream);
    ENTER_CONTEXT;
    return OK;
}

int hipGraphLaunch(struct graph *made, void *stream)
{
    IGNORED(stream);
    ENTER_CONTEXT;
    return fake_replay(made);
}

int hipGraphDestroy(struct graph *graph)
{
    ENTER_CONTEXT;
    fake_drop(graph, GRAPH);
    return OK;
}

int hipGraphExecDestroy(struct graph *made)
{
    ENTER_CONTEXT;
    fake_drop(made, EXECUTABLE);
    return OK;
}

int hipEventCreateWithFlags(struct event **event, unsigned flags)
{
    IGNORED(flags);
    ENTER_CONTEXT;
    return fake_create_event(event);
}

int hipEventRecord(struct event *event, struct stream *stream)
{
    ENTER_CONTEXT;
    return fake_record(event, stream);
}

int hipEventSynchronize(struct event *event)
{
    ENTER_CONTEXT;
    return fake_synchronize_event(event);
}

int hipEventDestroy(struct event *event)
{
    ENTER_CONTEXT;
    return fake_destroy_event(event);
}

/* ---- HIPRTC -- */

#define RTC(name) hiprtc##name
#define CODE(name) hiprtcGetCode##name
#define KIND "hip"
#define ARCH_OPTION "--offload-arch="
#include "rtc.h"
