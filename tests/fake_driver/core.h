/* FIXTURE. A device that is none: host memory, host functions, one queue. It exists so that the
 * real CUDA and HIP backends can run, and be made to fail at every call, where there is no GPU. It
 * says nothing about speed, and nothing about real devices beyond what is written here.
 *
 * Like a device: work is queued and done when a thread waits; registered host memory is read and
 * written then, other host memory at once; a bad access breaks the process's device for good;
 * mapped memory has protection, which is enforced; kernels run block by block, barriers work.
 *
 * Streams share one queue. A capture makes a graph with the dependencies that streams and events
 * give, under the drivers' rules: streams join by waiting for an event of the capture, and must be
 * joined again at its end. A graph runs one operation at a time, and of those that are ready the
 * last one first: what a missing dependency could spoil is spoilt.
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
    UNJOINED = 904,
    ISOLATION = 905,
    CAPTURED_EVENT = 907,
    UNKNOWN = 999,
};

enum kind {
    MEMORY, MODULE, STREAM, GRAPH, EXECUTABLE, EVENT, REGISTERED, RESERVED, PHYSICAL, MAPPED,
    CONTEXT, PROGRAM, KINDS
};

struct places { /* in a graph */
    size_t *at, count;
};

struct stream {
    long capture; /* that it belongs to */
    struct places last;
    struct stream *next;
};

struct event {
    long capture; /* in which it was recorded; 0 is none */
    struct places last;
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
    struct places after; /* operations of the same graph that it waits for */
    size_t place;        /* of an executable graph: in the one that was captured */
};

struct graph {
    struct op *ops;
    size_t count, room;
    long source; /* number of the capture */
    struct graph *next;
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
int fake_copy(struct stream *stream, void *to, const void *from, size_t bytes, const void *host);
int fake_copy_within(struct stream *stream, void *to, const void *from, size_t bytes);
int fake_fill(struct stream *stream, void *to, int value, size_t bytes);
int fake_reserve(void **address, size_t bytes);
int fake_export(int *descriptor, int memory);
int fake_import(int *memory, int descriptor);
int fake_unreserve(void *address, size_t bytes);
int fake_create(int *memory, size_t bytes);
int fake_destroy(int memory);
int fake_map(void *address, size_t bytes, int memory);
int fake_unmap(void *address, size_t bytes);
int fake_protect(void *address, size_t bytes, int flags);
int fake_load(struct module **module, const void *image);
int fake_unload(struct module *module);
int fake_variable(void **address, size_t *bytes, struct module *module, const char *name);
int fake_kernel(struct kernel **kernel, struct module *module, const char *name);
int fake_launch(struct stream *stream, struct kernel *kernel, const unsigned *grid,
                const unsigned *block, unsigned shared, void **arguments);
int fake_synchronize(void);
int fake_create_stream(struct stream **stream);
int fake_destroy_stream(struct stream *stream);
int fake_create_event(struct event **event);
int fake_destroy_event(struct event *event);
int fake_record(struct event *event, struct stream *stream);
int fake_wait_for(struct stream *stream, const struct event *event);
int fake_synchronize_event(const struct event *event);
int fake_begin_capture(struct stream *stream);
int fake_end_capture(struct stream *stream, struct graph **graph);
int fake_instantiate(struct graph **executable, const struct graph *graph);
int fake_last_captured(struct stream *stream, uintptr_t **nodes, size_t *count);
int fake_set_node(struct graph *executable, uintptr_t node, const struct kernel *kernel,
                  const unsigned *grid, const unsigned *block, unsigned shared, void **arguments);
int fake_replay(const struct graph *executable);
void fake_drop(struct graph *graph, enum kind kind);
int fake_compile(const char *kind, const char *arch, const char *source, char **code,
                 size_t *bytes, char **log);

#endif
