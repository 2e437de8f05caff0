/* FIXTURE. A device that is none: host memory, host functions, one queue. It exists so that the
 * real CUDA and HIP backends can run, and be made to fail at every call, where there is no GPU. It
 * says nothing about speed, and nothing about real devices beyond what is written here.
 *
 * Like a device: work is queued and done when somebody waits; registered host memory is read and
 * written then, other host memory at once; a bad access breaks the process's device for good;
 * mapped memory has protection, which is enforced; kernels run block by block, barriers work.
 */
#ifndef FAKE_CORE_H
#define FAKE_CORE_H

#include <stddef.h>
#include <stdint.h>

enum {
    OK = 0,
    INVALID = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    NO_CONTEXT = 201,
    NO_BINARY = 209,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    ASSERTED = 710,
    LAUNCH_FAILED = 719,
    NOT_CAPTURING = 901,
};

enum kind {
    MEMORY, MODULE, STREAM, GRAPH, EXECUTABLE, EVENT, REGISTERED, RESERVED, PHYSICAL, MAPPED,
    CONTEXT, PROGRAM, KINDS
};

struct launch {
    void (*call)(void **);
    unsigned grid[3], block[3];
    struct module *module;
};

struct op {
    enum { COPY, FILL, LAUNCH } what;
    void *to;
    const void *from; /* of a copy; the arguments of a launch */
    size_t bytes;
    int value;
    int owned; /* `from` is this operation's own memory */
    struct launch launch;
};

struct graph {
    struct op *ops;
    size_t count, room;
};

struct module {
    void *library;
    int fd;
    void (*enter)(const unsigned *place, const unsigned *block, const unsigned *grid);
    int barriers;
};

struct kernel {
    struct module *module;
    void (*call)(void **);
    const unsigned *sizes; /* of parameters; ends with 0 */
    unsigned dynamic_bytes;
};

#define SHARED_BYTES 49152u
#define SHARED_MOST_BYTES 101376u
#define THREADS 1024u
#define GRANULE_BYTES (2u << 20)

extern char fake_arch[16];

/* Count a call of the driver. Gives the code that it must fail with, or OK. */
int fake_enter(const char *name);
/* The same for calls that fail as soon as the device is broken, or if there is no context. */
int fake_enter_context(const char *name);
void fake_born(enum kind kind);
void fake_gone(enum kind kind);

int fake_retain(void);
int fake_release(void);
int fake_allocate(void **address, size_t bytes);
int fake_free(void *address);
void fake_memory(size_t *free_bytes, size_t *total_bytes);
int fake_register(void *address, size_t bytes);
int fake_unregister(void *address);
int fake_copy(void *to, const void *from, size_t bytes, const void *host);
int fake_fill(void *to, int value, size_t bytes);
int fake_reserve(void **address, size_t bytes);
int fake_unreserve(void *address, size_t bytes);
int fake_create(int *memory, size_t bytes);
int fake_destroy(int memory);
int fake_map(void *address, size_t bytes, int memory);
int fake_unmap(void *address, size_t bytes);
int fake_protect(void *address, size_t bytes, int flags);
int fake_load(struct module **module, const void *image);
int fake_unload(struct module *module);
int fake_kernel(struct kernel **kernel, struct module *module, const char *name);
int fake_launch(struct kernel *kernel, const unsigned *grid, const unsigned *block, unsigned shared,
                void **arguments);
int fake_synchronize(void);
int fake_begin_capture(void);
int fake_end_capture(struct graph **graph);
int fake_instantiate(struct graph **executable, const struct graph *graph);
int fake_replay(const struct graph *executable);
void fake_drop(struct graph *graph, enum kind kind);
int fake_compile(const char *kind, const char *arch, const char *source, char **code,
                 size_t *bytes, char **log);

#endif
