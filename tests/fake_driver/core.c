/* FIXTURE. See core.h. */
#define _GNU_SOURCE
#include "core.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096u
#define STACK_BYTES (64u << 10)

struct range {
    char *start;
    size_t bytes;
    int tag; /* what it is, or a descriptor */
    struct range *next;
};

char fake_arch[16] = "sm_90";
static long calls, fail_at = -1;
static int fail_code, broken, contexts, virtual_memory = 1;
static size_t total_bytes = 256u << 20, used_bytes;
static long live[KINDS], leaked;
static const char *failed_name = "";
static struct range *ranges;
static struct graph queue;
static struct graph *capturing;
static struct stream *streams, *origin;
static long captures;
static struct graph *graphs; /* that were captured and not destroyed */
static long facts[4]; /* of the graph that was captured last, see fake_graph */

/* ---- counting and failing -- */

int fake_enter(const char *name)
{
    if (calls++ == fail_at) {
        failed_name = name;
        return fail_code;
    }
    return OK;
}

int fake_enter_context(const char *name)
{
    int code = fake_enter(name);
    if (code)
        return code;
    return broken ? broken : contexts ? OK : NO_CONTEXT;
}

void fake_born(enum kind kind) { live[kind]++; }
void fake_gone(enum kind kind) { live[kind]--; }

/* For the tests. */
long fake_calls(void) { return calls; }
long fake_live(int kind) { return live[kind]; }
long fake_leaked(void) { return leaked; }
const char *fake_failed(void) { return failed_name; }
void fake_fail(long after, int code)
{
    fail_at = calls + after;
    fail_code = code;
    failed_name = "";
}
void fake_set_memory(size_t bytes) { total_bytes = bytes; }
void fake_set_arch(const char *arch) { snprintf(fake_arch, sizeof fake_arch, "%s", arch); }
void fake_set_virtual_memory(int on) { virtual_memory = on; }
int fake_virtual_memory(void) { return virtual_memory; }
int fake_broken(void) { return broken; }

/* ---- ranges of memory -- */

static struct range *find(const void *address, int tag)
{
    for (struct range *r = ranges; r; r = r->next)
        if (r->start == address && r->tag == tag)
            return r;
    return NULL;
}

static void add(void *start, size_t bytes, int tag)
{
    struct range *r = malloc(sizeof *r);
    *r = (struct range){start, bytes, tag, ranges};
    ranges = r;
    fake_born(tag);
}

static void take(struct range *gone)
{
    struct range **at = &ranges;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    fake_gone(gone->tag);
    free(gone);
}

static size_t whole(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

int fake_allocate(void **address, size_t bytes)
{
    if (!bytes)
        return INVALID;
    if (bytes > total_bytes - used_bytes)
        return OUT_OF_MEMORY;
    size_t size = whole(bytes);
    char *start = mmap(NULL, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return OUT_OF_MEMORY;
    mprotect(start + PAGE, size, PROT_READ | PROT_WRITE); /* pages around it stay closed */
    memset(start + PAGE, 0xA5, size);                    /* whatever was there before */
    used_bytes += bytes;
    add(start + PAGE, bytes, MEMORY);
    *address = start + PAGE;
    return OK;
}

int fake_free(void *address)
{
    struct range *r = find(address, MEMORY);
    if (!r)
        return INVALID;
    fake_synchronize();
    munmap(r->start - PAGE, whole(r->bytes) + 2 * PAGE);
    used_bytes -= r->bytes;
    take(r);
    return OK;
}

void fake_memory(size_t *free_bytes, size_t *all_bytes)
{
    *free_bytes = total_bytes - used_bytes;
    *all_bytes = total_bytes;
}

int fake_register(void *address, size_t bytes)
{
    if (find(address, REGISTERED))
        return 712;
    add(address, bytes, REGISTERED);
    return OK;
}

int fake_unregister(void *address)
{
    struct range *r = find(address, REGISTERED);
    if (!r)
        return 713;
    take(r);
    return OK;
}

static int registered(const void *address, size_t bytes)
{
    const char *start = address;
    for (struct range *r = ranges; r; r = r->next)
        if (r->tag == REGISTERED && r->start <= start && start + bytes <= r->start + r->bytes)
            return 1;
    return 0;
}

int fake_reserve(void **address, size_t bytes)
{
    if (bytes % GRANULE_BYTES)
        return INVALID;
    void *start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return OUT_OF_MEMORY;
    add(start, bytes, RESERVED);
    *address = start;
    return OK;
}

int fake_unreserve(void *address, size_t bytes)
{
    struct range *r = find(address, RESERVED);
    if (!r || r->bytes != bytes || find(address, MAPPED))
        return INVALID;
    munmap(address, bytes);
    take(r);
    return OK;
}

int fake_create(int *memory, size_t bytes)
{
    if (bytes % GRANULE_BYTES)
        return INVALID;
    if (bytes > total_bytes - used_bytes)
        return OUT_OF_MEMORY;
    int fd = memfd_create("fake-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        return OUT_OF_MEMORY;
    used_bytes += bytes;
    fake_born(PHYSICAL);
    *memory = fd;
    return OK;
}

int fake_export(int *descriptor, int memory)
{
    *descriptor = fcntl(memory, F_DUPFD_CLOEXEC, 0);
    return *descriptor < 0 ? INVALID : OK;
}

/* The memory counts in each process that has it: processes know nothing of each other. */
int fake_import(int *memory, int descriptor)
{
    off_t bytes = lseek(descriptor, 0, SEEK_END);
    if (bytes <= 0 || fcntl(descriptor, F_GETFD) < 0)
        return UNKNOWN; /* as CUDA says of what is no memory */
    *memory = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (*memory < 0)
        return INVALID;
    used_bytes += (size_t)bytes;
    fake_born(PHYSICAL);
    return OK;
}

int fake_destroy(int memory)
{
    off_t bytes = lseek(memory, 0, SEEK_END);
    if (bytes < 0)
        return INVALID;
    close(memory);
    used_bytes -= (size_t)bytes;
    fake_gone(PHYSICAL);
    return OK;
}

int fake_map(void *address, size_t bytes, int memory)
{
    if (!find(address, RESERVED) || find(address, MAPPED))
        return INVALID;
    if (mmap(address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory, 0) == MAP_FAILED)
        return INVALID;
    add(address, bytes, MAPPED);
    return OK;
}

int fake_unmap(void *address, size_t bytes)
{
    struct range *r = find(address, MAPPED);
    if (!r || r->bytes != bytes)
        return INVALID;
    fake_synchronize();
    mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    take(r);
    return OK;
}

int fake_protect(void *address, size_t bytes, int flags)
{
    if (!find(address, MAPPED))
        return INVALID;
    fake_synchronize();
    int protection = flags == 3 ? PROT_READ | PROT_WRITE : flags == 1 ? PROT_READ : PROT_NONE;
    return mprotect(address, bytes, protection) ? INVALID : OK;
}

/* ---- running -- */

static sigjmp_buf escape;
static struct sigaction before[4];
static const int signals[4] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE};
static ucontext_t scheduler;
static ucontext_t *fibers;
static char *stacks;
static unsigned char *done;
static unsigned running;
static const struct op *current;

static void caught(int signal)
{
    siglongjmp(escape, signal == SIGABRT ? ASSERTED : ILLEGAL_ADDRESS);
}

/* Called by kernels. */
void fake_barrier(void) { swapcontext(&fibers[running], &scheduler); }

static void fiber(void)
{
    current->launch.call((void **)current->from);
    done[running] = 1;
}

static void enter(unsigned block, unsigned thread)
{
    const struct launch *l = &current->launch;
    unsigned place[6] = {
        block % l->grid[0], block / l->grid[0] % l->grid[1], block / l->grid[0] / l->grid[1],
        thread % l->block[0], thread / l->block[0] % l->block[1],
        thread / l->block[0] / l->block[1],
    };
    l->module->enter(place, l->block, l->grid);
}

/* Threads of a block take turns: each runs to its next barrier. */
static void run_with_barriers(unsigned block, unsigned threads)
{
    memset(done, 0, threads);
    for (unsigned i = 0; i < threads; i++) {
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = stacks + (size_t)i * STACK_BYTES;
        fibers[i].uc_stack.ss_size = STACK_BYTES;
        fibers[i].uc_link = &scheduler;
        makecontext(&fibers[i], fiber, 0);
    }
    for (unsigned left = threads; left;) {
        left = 0;
        for (running = 0; running < threads; running++) {
            if (done[running])
                continue;
            enter(block, running);
            swapcontext(&scheduler, &fibers[running]);
            left += !done[running];
        }
    }
}

static void run_kernel(const struct op *op)
{
    const struct launch *l = &op->launch;
    unsigned blocks = l->grid[0] * l->grid[1] * l->grid[2];
    unsigned threads = l->block[0] * l->block[1] * l->block[2];
    current = op;
    for (unsigned b = 0; b < blocks; b++) {
        if (l->module->barriers) {
            run_with_barriers(b, threads);
            continue;
        }
        for (unsigned t = 0; t < threads; t++) {
            enter(b, t);
            l->call((void **)op->from);
        }
    }
}

static void run(const struct op *op)
{
    if (op->what == COPY)
        memcpy(op->to, op->from, op->bytes);
    else if (op->what == FILL)
        memset(op->to, op->value, op->bytes);
    else
        run_kernel(op);
}

static void clear(struct graph *graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        if (graph->ops[i].owned)
            free((void *)graph->ops[i].from);
        free(graph->ops[i].after.at);
    }
    graph->count = 0;
}

int fake_synchronize(void)
{
    if (broken)
        clear(&queue);
    if (!queue.count)
        return broken;
    if (!fibers) {
        fibers = calloc(THREADS, sizeof *fibers);
        done = calloc(THREADS, 1);
        stacks = mmap(NULL, (size_t)THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    struct sigaction action = {.sa_handler = caught, .sa_flags = SA_NODEFER};
    for (int i = 0; i < 4; i++)
        sigaction(signals[i], &action, &before[i]);
    int code = sigsetjmp(escape, 1);
    if (!code)
        for (size_t i = 0; i < queue.count; i++)
            run(&queue.ops[i]);
    for (int i = 0; i < 4; i++)
        sigaction(signals[i], &before[i], NULL);
    clear(&queue);
    broken = code;
    return code;
}

static void push(struct graph *graph, struct op op)
{
    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 64;
        graph->ops = realloc(graph->ops, graph->room * sizeof op);
    }
    graph->ops[graph->count++] = op;
}

static void *copied(const void *from, size_t bytes)
{
    void *to = malloc(bytes ? bytes : 1);
    if (bytes)
        memcpy(to, from, bytes);
    return to;
}

static int captured(const struct stream *stream)
{
    return capturing && stream->capture == captures;
}

static struct places same_places(const struct places *places)
{
    return (struct places){copied(places->at, places->count * sizeof(size_t)), places->count};
}

static void set_places(struct places *places, struct places now)
{
    free(places->at);
    *places = now;
}

static void add_place(struct places *places, size_t place)
{
    for (size_t i = 0; i < places->count; i++)
        if (places->at[i] == place)
            return;
    places->at = realloc(places->at, (places->count + 1) * sizeof place);
    places->at[places->count++] = place;
}

/* Queue an operation of a stream, or add it to the graph that the stream captures. */
static void put_op(struct stream *stream, struct op op)
{
    if (!captured(stream)) {
        push(&queue, op);
        return;
    }
    op.after = same_places(&stream->last);
    push(capturing, op);
    stream->last.count = 0;
    add_place(&stream->last, capturing->count - 1);
}

/* `host` is the side of the copy that is host memory. */
int fake_copy(struct stream *stream, void *to, const void *from, size_t bytes, const void *host)
{
    struct op op = {.what = COPY, .to = to, .from = from, .bytes = bytes};
    if (captured(stream))
        return INVALID;
    if (host == from && !registered(host, bytes)) {
        op.from = copied(from, bytes);
        op.owned = 1;
    }
    push(&queue, op);
    return host == to && !registered(host, bytes) ? fake_synchronize() : OK;
}

int fake_copy_within(struct stream *stream, void *to, const void *from, size_t bytes)
{
    put_op(stream, (struct op){.what = COPY, .to = to, .from = from, .bytes = bytes});
    return OK;
}

int fake_fill(struct stream *stream, void *to, int value, size_t bytes)
{
    put_op(stream, (struct op){.what = FILL, .to = to, .value = value, .bytes = bytes});
    return OK;
}

/* ---- code -- */

struct image { /* behind the header of an ELF file, see compile.py */
    char elf[64];
    char magic[8];
    char arch[16];
    uint64_t offset, bytes;
};

int fake_load(struct module **module, const void *data)
{
    const struct image *image = data;
    if (memcmp(image->elf, "\177ELF", 4) || memcmp(image->magic, "FAKEGPU1", 8))
        return INVALID_IMAGE;
    if (strcmp(image->arch, fake_arch))
        return NO_BINARY;
    struct module *made = calloc(1, sizeof *made);
    made->fd = memfd_create("fake-module", MFD_CLOEXEC);
    ssize_t written = write(made->fd, (const char *)data + image->offset, image->bytes);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", made->fd); /* open as long as the library */
    if (written == (ssize_t)image->bytes)
        made->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!made->library) {
        close(made->fd);
        free(made);
        return INVALID_IMAGE;
    }
    *(void **)&made->enter = dlsym(made->library, "fake_enter_thread");
    made->barriers = *(int *)dlsym(made->library, "fake_barriers");
    *(void (**)(void))dlsym(made->library, "fake_barrier_of_driver") = fake_barrier;
    fake_born(MODULE);
    *module = made;
    return OK;
}

int fake_unload(struct module *module)
{
    fake_synchronize();
    dlclose(module->library);
    close(module->fd);
    free(module);
    fake_gone(MODULE);
    return OK;
}

int fake_variable(void **address, size_t *bytes, struct module *module, const char *name)
{
    char symbol[256];
    snprintf(symbol, sizeof symbol, "fake_bytes_%s", name);
    size_t *size = dlsym(module->library, symbol);
    snprintf(symbol, sizeof symbol, "fake_place_%s", name);
    void **place = dlsym(module->library, symbol);
    if (!size || !place)
        return NOT_FOUND;
    *address = *place;
    *bytes = *size;
    return OK;
}

int fake_kernel(struct kernel **kernel, struct module *module, const char *name)
{
    char symbol[256];
    snprintf(symbol, sizeof symbol, "fake_call_%s", name);
    void *call = dlsym(module->library, symbol);
    snprintf(symbol, sizeof symbol, "fake_sizes_%s", name);
    unsigned *sizes = dlsym(module->library, symbol);
    if (!call || !sizes)
        return NOT_FOUND;
    struct kernel *made = calloc(1, sizeof *made); /* small, and gone with the process */
    made->module = module;
    *(void **)&made->call = call;
    made->sizes = sizes;
    *kernel = made;
    return OK;
}

static int make_launch(struct op *made, const struct kernel *kernel, const unsigned *grid,
                       const unsigned *block, unsigned shared, void **arguments)
{
    unsigned allowed = kernel->dynamic_bytes > SHARED_BYTES ? kernel->dynamic_bytes : SHARED_BYTES;
    if (!grid[0] || !grid[1] || !grid[2] || block[0] * block[1] * block[2] > THREADS ||
        shared > allowed)
        return INVALID;
    size_t count = 0, bytes = 0;
    while (kernel->sizes[count])
        bytes += (kernel->sizes[count++] + 15u) / 16u * 16u;
    char *memory = malloc(count * sizeof(void *) + 16 + bytes);
    void **pointers = (void **)memory;
    char *values = memory + (count * sizeof(void *) + 15u) / 16u * 16u;
    for (size_t i = 0; i < count; i++) {
        pointers[i] = memcpy(values, arguments[i], kernel->sizes[i]);
        values += (kernel->sizes[i] + 15u) / 16u * 16u;
    }
    struct op op = {.what = LAUNCH, .from = memory, .owned = 1,
                    .bytes = count * sizeof(void *) + 16 + bytes};
    op.launch.call = kernel->call;
    op.launch.module = kernel->module;
    memcpy(op.launch.grid, grid, sizeof op.launch.grid);
    memcpy(op.launch.block, block, sizeof op.launch.block);
    *made = op;
    return OK;
}

int fake_launch(struct stream *stream, struct kernel *kernel, const unsigned *grid,
                const unsigned *block, unsigned shared, void **arguments)
{
    struct op op;
    int code = make_launch(&op, kernel, grid, block, shared, arguments);
    if (code == OK)
        put_op(stream, op);
    return code;
}

/* ---- streams and events -- */

int fake_create_stream(struct stream **stream)
{
    *stream = calloc(1, sizeof **stream);
    (*stream)->next = streams;
    streams = *stream;
    fake_born(STREAM);
    return OK;
}

int fake_destroy_stream(struct stream *stream)
{
    struct stream **at = &streams;
    while (*at && *at != stream)
        at = &(*at)->next;
    if (!*at)
        return INVALID;
    *at = stream->next;
    free(stream->last.at);
    free(stream);
    fake_gone(STREAM);
    return OK;
}

int fake_create_event(struct event **event)
{
    *event = calloc(1, sizeof **event);
    fake_born(EVENT);
    return OK;
}

int fake_destroy_event(struct event *event)
{
    free(event->last.at);
    free(event);
    fake_gone(EVENT);
    return OK;
}

int fake_record(struct event *event, struct stream *stream)
{
    event->capture = captured(stream) ? stream->capture : 0;
    set_places(&event->last, same_places(&stream->last));
    return OK;
}

int fake_wait_for(struct stream *stream, const struct event *event)
{
    if (!event->capture)
        return captured(stream) ? ISOLATION : OK;
    if (!capturing || event->capture != captures)
        return INVALID;
    if (!captured(stream))
        stream->last.count = 0;
    stream->capture = captures;
    for (size_t i = 0; i < event->last.count; i++)
        add_place(&stream->last, event->last.at[i]);
    return OK;
}

int fake_synchronize_event(const struct event *event)
{
    return event->capture ? CAPTURED_EVENT : fake_synchronize();
}

/* ---- graphs -- */

int fake_begin_capture(struct stream *stream)
{
    if (capturing)
        return INVALID;
    capturing = calloc(1, sizeof *capturing);
    capturing->source = captures + 1;
    origin = stream;
    stream->capture = ++captures;
    stream->last.count = 0;
    return OK;
}

/* Mark what has to be done before some places are; these are marked too. */
static void mark_before(const struct graph *graph, const struct places *places, char *marked)
{
    for (size_t i = 0; i < places->count; i++)
        if (!marked[places->at[i]]) {
            marked[places->at[i]] = 1;
            mark_before(graph, &graph->ops[places->at[i]].after, marked);
        }
}

static int joined(void)
{
    char *marked = calloc(capturing->count + 1, 1);
    int all = 1;
    mark_before(capturing, &origin->last, marked);
    for (struct stream *s = streams; s; s = s->next)
        for (size_t i = 0; captured(s) && i < s->last.count; i++)
            all &= marked[s->last.at[i]];
    free(marked);
    return all;
}

/* Count operations, dependencies, operations without any, and those of the longest path. */
static void count_facts(const struct graph *graph)
{
    long *path = calloc(graph->count + 1, sizeof *path);
    memset(facts, 0, sizeof facts);
    facts[0] = (long)graph->count;
    for (size_t i = 0; i < graph->count; i++) {
        const struct places *after = &graph->ops[i].after;
        facts[1] += (long)after->count;
        facts[2] += !after->count;
        for (size_t k = 0; k < after->count; k++)
            if (path[after->at[k]] > path[i])
                path[i] = path[after->at[k]];
        if (++path[i] > facts[3])
            facts[3] = path[i];
    }
    free(path);
}

long fake_graph(int fact) { return facts[fact]; } /* for the tests */

int fake_end_capture(struct stream *stream, struct graph **graph)
{
    if (!capturing || stream != origin)
        return NOT_CAPTURING;
    struct graph *made = capturing;
    int whole = joined();
    count_facts(made);
    capturing = NULL;
    fake_born(GRAPH);
    if (!whole) {
        fake_drop(made, GRAPH);
        return UNJOINED;
    }
    made->next = graphs;
    graphs = made;
    *graph = made;
    return OK;
}

/* Arguments are copied with their pointers, which point into the same memory. */
static struct op same(const struct op *op)
{
    struct op copy = *op;
    copy.after = (struct places){0};
    if (op->what != LAUNCH)
        return copy;
    char *memory = copied(op->from, op->bytes);
    void **old = (void **)op->from, **new = (void **)memory;
    size_t count = 0;
    while ((char *)&old[count] < (char *)old + op->bytes && (char *)old[count] > (char *)old &&
           (char *)old[count] < (char *)old + op->bytes)
        count++;
    for (size_t i = 0; i < count; i++)
        new[i] = memory + ((char *)old[i] - (char *)old);
    copy.from = memory;
    return copy;
}

/* Of the operations that are ready, the last one is next. Gives 0 if there are none. */
static int put_in_order(const struct graph *graph, size_t *order)
{
    char *ended = calloc(graph->count + 1, 1);
    size_t put = 0;
    for (int found = 1; found && put < graph->count;) {
        found = 0;
        for (size_t i = graph->count; !found && i-- > 0;) {
            const struct places *after = &graph->ops[i].after;
            size_t k = 0;
            while (k < after->count && ended[after->at[k]])
                k++;
            if (ended[i] || k < after->count)
                continue;
            order[put++] = i;
            found = ended[i] = 1;
        }
    }
    free(ended);
    return put == graph->count;
}

int fake_instantiate(struct graph **executable, const struct graph *graph)
{
    struct graph *made = calloc(1, sizeof *made);
    size_t *order = calloc(graph->count + 1, sizeof *order);
    if (!put_in_order(graph, order)) {
        free(order);
        free(made);
        return INVALID;
    }
    made->source = graph->source;
    for (size_t i = 0; i < graph->count; i++) {
        struct op op = same(&graph->ops[order[i]]);
        op.place = order[i];
        push(made, op);
    }
    free(order);
    fake_born(EXECUTABLE);
    *executable = made;
    return OK;
}

int fake_replay(const struct graph *executable)
{
    for (size_t i = 0; i < executable->count; i++)
        push(&queue, same(&executable->ops[i]));
    return OK;
}

#define PLACES 65536 /* a node is a number of the graph times this, and a place from 1 on */

int fake_last_captured(struct stream *stream, uintptr_t **nodes, size_t *count)
{
    static uintptr_t found[64];
    if (!captured(stream) || stream->last.count > 64)
        return INVALID;
    for (size_t i = 0; i < stream->last.count; i++)
        found[i] = (uintptr_t)capturing->source * PLACES + stream->last.at[i] + 1;
    *nodes = found;
    *count = stream->last.count;
    return OK;
}

int fake_set_node(struct graph *executable, uintptr_t node, const struct kernel *kernel,
                  const unsigned *grid, const unsigned *block, unsigned shared, void **arguments)
{
    struct graph *source = graphs;
    while (source && (uintptr_t)source->source != node / PLACES)
        source = source->next;
    if (!source || executable->source != source->source)
        return INVALID;
    for (size_t i = 0; i < executable->count; i++) {
        struct op *op = &executable->ops[i], made;
        if (op->place + 1 != node % PLACES || op->what != LAUNCH)
            continue;
        if (op->launch.call != kernel->call)
            return INVALID;
        int code = make_launch(&made, kernel, grid, block, shared, arguments);
        if (code != OK)
            return code;
        free((void *)op->from);
        made.after = op->after;
        made.place = op->place;
        *op = made;
        return OK;
    }
    return INVALID;
}

void fake_drop(struct graph *graph, enum kind kind)
{
    struct graph **at = &graphs;
    while (*at && *at != graph)
        at = &(*at)->next;
    if (*at)
        *at = graph->next;
    clear(graph);
    free(graph->ops);
    free(graph);
    fake_gone(kind);
}

/* ---- the process's reference to the device -- */

int fake_retain(void)
{
    contexts++;
    fake_born(CONTEXT);
    return OK;
}

int fake_release(void)
{
    if (!contexts)
        return NO_CONTEXT;
    contexts--;
    fake_gone(CONTEXT);
    if (contexts)
        return OK; /* another device object of this process uses it */
    clear(&queue);
    for (int kind = 0; kind < KINDS && !broken; kind++)
        leaked += kind == PROGRAM ? 0 : live[kind];
    return OK;
}

/* A new process, as far as a test is concerned. */
void fake_reset(void)
{
    clear(&queue);
    while (ranges)
        take(ranges);
    memset(live, 0, sizeof live);
    calls = leaked = 0;
    fail_at = -1;
    broken = contexts = 0;
    used_bytes = 0;
    capturing = NULL;
    streams = NULL; /* those of a broken device stay, as with a process */
    memset(facts, 0, sizeof facts);
    total_bytes = 256u << 20;
    virtual_memory = 1;
    fake_set_arch("sm_90");
}

/* ---- the compiler -- */

static char *slurp(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    *bytes = 0;
    if (!file)
        return calloc(1, 1);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *text = calloc(1, *bytes + 1);
    if (fread(text, 1, *bytes, file) != *bytes)
        *bytes = 0;
    fclose(file);
    return text;
}

static int compile_here(const char *kind, const char *arch, const char *source, char **code,
                        size_t *bytes, char **log)
{
    char folder[] = "/tmp/fake-compiler-XXXXXX", command[1024], path[3][64];
    if (!mkdtemp(folder))
        return INVALID;
    for (int i = 0; i < 3; i++)
        snprintf(path[i], sizeof path[i], "%s/%s", folder, (const char *[]){"in", "out", "log"}[i]);
    FILE *file = fopen(path[0], "wb");
    fwrite(source, 1, strlen(source), file);
    fclose(file);
    snprintf(command, sizeof command, "$FAKE_COMPILER %s %s %s %s > %s 2>&1", kind, arch, path[0],
             path[1], path[2]);
    int failed = system(command);
    size_t length;
    *code = slurp(path[1], bytes);
    *log = slurp(path[2], &length);
    for (int i = 0; i < 3; i++)
        unlink(path[i]);
    rmdir(folder);
    return failed ? INVALID : OK;
}

/* A process that gave up its rights cannot run the test's compiler, so it has a helper that was
 * forked when the library was loaded: FAKE_COMPILER_AHEAD in the environment asks for one. */

static int to_helper = -1, from_helper = -1;

static void transfer(int file, void *data, size_t bytes, int writes)
{
    for (char *at = data; bytes;) {
        ssize_t done = writes ? write(file, at, bytes) : read(file, at, bytes);
        if (done <= 0)
            _exit(0);
        at += done;
        bytes -= (size_t)done;
    }
}

static void put(int file, const char *data, size_t bytes)
{
    transfer(file, &bytes, sizeof bytes, 1);
    transfer(file, (char *)data, bytes, 1);
}

static char *get(int file, size_t *bytes)
{
    transfer(file, bytes, sizeof *bytes, 0);
    char *data = calloc(1, *bytes + 1);
    transfer(file, data, *bytes, 0);
    return data;
}

static void help(int in, int out)
{
    for (;;) {
        size_t bytes;
        char *kind = get(in, &bytes), *arch = get(in, &bytes), *source = get(in, &bytes);
        char *code, *log;
        int failed = compile_here(kind, arch, source, &code, &bytes, &log);
        put(out, (char *)&failed, sizeof failed);
        put(out, code, bytes);
        put(out, log, strlen(log));
    }
}

__attribute__((constructor)) static void fork_helper(void)
{
    int there[2], back[2];
    if (!getenv("FAKE_COMPILER_AHEAD") || pipe(there) || pipe(back))
        return;
    if (!fork()) {
        unsetenv("FAKE_COMPILER_AHEAD");
        unsetenv("LD_PRELOAD");
        close(there[1]);
        close(back[0]);
        help(there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    to_helper = there[1];
    from_helper = back[0];
    fcntl(to_helper, F_SETFD, FD_CLOEXEC);
    fcntl(from_helper, F_SETFD, FD_CLOEXEC);
}

int fake_compile(const char *kind, const char *arch, const char *source, char **code,
                 size_t *bytes, char **log)
{
    if (to_helper < 0)
        return compile_here(kind, arch, source, code, bytes, log);
    size_t length;
    put(to_helper, kind, strlen(kind));
    put(to_helper, arch, strlen(arch));
    put(to_helper, source, strlen(source));
    char *failed = get(from_helper, &length);
    int result = *(int *)failed;
    free(failed);
    *code = get(from_helper, bytes);
    *log = get(from_helper, &length);
    return result;
}
