/* FIXTURE. cuDNN's graph interface for the fake device: convolutions with what may follow them.
 * A descriptor keeps its attributes as they were given; what is wrong with them shows when it is
 * finalized. The numbers below are those of cuDNN's headers.
 *
 * Engines, in the order in which they are proposed: one that does not have the shape, one that wants
 * too much memory, one with tensor cores, a slow one, a fast one, one that differs from run to run.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core.h"
#include "elements.h"

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, FAILED = 4000 };
enum { POINTWISE = 0, CONVOLUTION = 1, ENGINE = 2, CONFIG = 3, HEURISTICS = 4, PLAN = 5,
       FORWARD = 10, STEP = 13, GRAPH_OF = 15, PACK = 16, TENSOR = 17 };
enum { ABSENT, LARGE, TENSOR_CORE, SLOW, FAST, RANDOM, ENGINES };

struct attribute {
    int name, type;
    int64_t count;
    char data[256];
};
struct descriptor {
    int kind, is_final, engine;
    struct attribute attributes[16];
    int count;
};

static long made[2]; /* handles, descriptors that are alive */
static long calls, fail_at = -1, launched;
static int last_engine = -1, all_engines;
static size_t needed = 512;
static int knows_epilogues = 1;
static int inexact = 1; /* so many engines with tensor cores are proposed */

long fake_dnn_live(int kind) { return made[kind]; }
long fake_dnn_calls(void) { return calls; }
long fake_dnn_launched(void) { return launched; }
int fake_dnn_engine(void) { return last_engine; }
int fake_dnn_engines(void) { return all_engines; }
void fake_dnn_fail(long after) { fail_at = after < 0 ? -1 : calls + after; }
void fake_dnn_know_epilogues(int value) { knows_epilogues = value; }
void fake_dnn_propose_inexact(int count) { inexact = count; }
void fake_dnn_reset(void)
{
    calls = 0, fail_at = -1, launched = 0, last_engine = -1, all_engines = 0;
    knows_epilogues = 1, inexact = 1;
}

#define ENTER                                                                                      \
    if (calls++ == fail_at)                                                                        \
        return FAILED;

size_t cudnnGetVersion(void) { return 91000; }
size_t cudnnGetCudartVersion(void) { return 13000; }
const char *cudnnGetErrorString(int status)
{
    return status == FAILED ? "CUDNN_STATUS_INTERNAL_ERROR" : "CUDNN_STATUS_OTHER";
}
void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "on\ndemand"); }

int cudnnCreate(void **handle)
{
    ENTER;
    *handle = calloc(1, sizeof(struct stream *));
    made[0]++;
    return SUCCESS;
}

int cudnnDestroy(void *handle)
{
    free(handle);
    made[0]--;
    return SUCCESS;
}

int cudnnSetStream(void *handle, struct stream *stream)
{
    ENTER;
    *(struct stream **)handle = stream;
    return SUCCESS;
}

int cudnnBackendCreateDescriptor(int kind, struct descriptor **made_here)
{
    ENTER;
    *made_here = calloc(1, sizeof **made_here);
    (*made_here)->kind = kind;
    made[1]++;
    return SUCCESS;
}

int cudnnBackendDestroyDescriptor(struct descriptor *d)
{
    memset(d, 0x5A, sizeof *d); /* so a use after this fails */
    free(d);
    made[1]--;
    return SUCCESS;
}

static size_t size_of(int type)
{
    switch (type) {
    case 1: case 4: case 7: case 8: case 11: case 14: return 4;
    case 2: return 1;
    default: return 8;
    }
}

int cudnnBackendSetAttribute(struct descriptor *d, int name, int type, int64_t count, const void *at)
{
    ENTER;
    if (d->is_final || d->count == 16 || count < 1 || count * size_of(type) > 256)
        return BAD_PARAM;
    struct attribute *a = &d->attributes[d->count++];
    a->name = name, a->type = type, a->count = count;
    memcpy(a->data, at, (size_t)count * size_of(type));
    return SUCCESS;
}

static const void *get(const struct descriptor *d, int name, int type, int64_t count)
{
    for (int i = 0; d && i < d->count; i++) {
        const struct attribute *a = &d->attributes[i];
        if (a->name == name)
            return a->type == type && (!count || a->count == count) ? a->data : NULL;
    }
    return NULL;
}

static struct descriptor *part(const struct descriptor *d, int name, int kind)
{
    struct descriptor *const *found = get(d, name, 15, 1);
    return found && (*found)->kind == kind && (*found)->is_final ? *found : NULL;
}

static int is_tensor(const struct descriptor *d)
{
    const int *type = get(d, 901, 1, 1);
    return type && get(d, 902, 3, 4) && get(d, 903, 3, 4) && get(d, 906, 3, 1) &&
           get(d, 900, 3, 1) && get(d, 907, 2, 1) && (*type == 0 || *type == 2 || *type == 9);
}

static int is_sound(const struct descriptor *d)
{
    const int64_t *alignment = get(d, 900, 3, 1);
    switch (d->kind) {
    case TENSOR: return is_tensor(d) && *alignment > 0 && !(*alignment & (*alignment - 1));
    case POINTWISE: return get(d, 0, 14, 1) && get(d, 1, 1, 1);
    case CONVOLUTION:
        return get(d, 100, 1, 1) && get(d, 101, 7, 1) && get(d, 102, 3, 2) && get(d, 103, 3, 2) &&
               get(d, 104, 3, 2) && get(d, 105, 3, 2) && get(d, 106, 3, 1);
    case FORWARD:
        return part(d, 702, CONVOLUTION) && part(d, 703, TENSOR) && part(d, 704, TENSOR) &&
               part(d, 705, TENSOR) && get(d, 700, 4, 1) && get(d, 701, 4, 1);
    case STEP: return part(d, 750, POINTWISE) && part(d, 751, TENSOR) && part(d, 753, TENSOR);
    case GRAPH_OF: return get(d, 800, 0, 1) && get(d, 801, 15, 0);
    case HEURISTICS: return part(d, 201, GRAPH_OF) && get(d, 200, 8, 1);
    case PLAN: return get(d, 400, 0, 1) && part(d, 401, CONFIG);
    case PACK: return get(d, 1000, 3, 0) && get(d, 1001, 6, 0) && get(d, 1003, 6, 1);
    }
    return 0;
}

static int operations(const struct descriptor *graph, struct descriptor ***found)
{
    for (int i = 0; i < graph->count; i++)
        if (graph->attributes[i].name == 801) {
            *found = (struct descriptor **)graph->attributes[i].data;
            return (int)graph->attributes[i].count;
        }
    return 0;
}

int cudnnBackendFinalize(struct descriptor *d)
{
    ENTER;
    if (!is_sound(d))
        return BAD_PARAM;
    struct descriptor **steps;
    if (d->kind == GRAPH_OF && operations(d, &steps) > 1 && !knows_epilogues)
        return NOT_SUPPORTED;
    if (d->kind == PLAN) {
        d->engine = part(d, 401, CONFIG)->engine;
        if (d->engine == ABSENT)
            return NOT_SUPPORTED;
    }
    d->is_final = 1;
    return SUCCESS;
}

int cudnnBackendGetAttribute(struct descriptor *d, int name, int type, int64_t wanted,
                             int64_t *count, void *to)
{
    static const int notes[ENGINES] = {-1, -1, 0, -1, -1, 4};
    struct descriptor **rooms = to;
    ENTER;
    if (d->kind == HEURISTICS && name == 202 && type == 15) {
        const int *mode = get(d, 200, 8, 1);
        *count = *mode == 3 ? ENGINES - 1 + inexact : 0;
        if (*count > wanted)
            *count = wanted;
        for (int i = 0; i < *count; i++) {
            if (rooms[i]->kind != CONFIG)
                return BAD_PARAM;
            int after = i - inexact + 1;
            rooms[i]->engine = i <= TENSOR_CORE ? i : after < TENSOR_CORE ? TENSOR_CORE : after;
            rooms[i]->is_final = 1;
            struct attribute *a = &rooms[i]->attributes[rooms[i]->count++];
            a->name = 201, a->type = 15, a->count = 1;
            memcpy(a->data, get(d, 201, 15, 1), 8);
        }
        return SUCCESS;
    }
    if (d->kind == CONFIG && name == 300 && type == 15 && rooms[0]->kind == ENGINE) {
        rooms[0]->engine = d->engine, rooms[0]->is_final = 1, *count = 1;
        return SUCCESS;
    }
    if (d->kind == ENGINE && name == 1303 && type == 11) {
        *count = notes[d->engine] >= 0;
        if (*count)
            *(int *)to = notes[d->engine];
        return SUCCESS;
    }
    if (d->kind == PLAN && name == 402 && type == 3) {
        *(int64_t *)to = d->engine == LARGE ? 1L << 40 : (int64_t)needed;
        *count = 1;
        return SUCCESS;
    }
    return BAD_PARAM;
}

struct tensor {
    int type;
    int64_t size[4], stride[4];
    char *at;
};
struct follower {
    int mode;
    struct tensor other;
};
struct call { /* of one convolution, as the queue keeps it */
    struct tensor x, w, y;
    int64_t dilation[2], stride[2], before[2];
    struct follower after[4];
    int followers, engine;
    unsigned char *workspace;
};

static int place(const struct descriptor *tensor, const struct descriptor *pack, struct tensor *to)
{
    const int64_t *number = get(tensor, 906, 3, 1);
    const bool *is_virtual = get(tensor, 907, 2, 1);
    const int64_t *alignment = get(tensor, 900, 3, 1);
    int type = *(const int *)get(tensor, 901, 1, 1);
    to->type = type == 9 ? R_16BF : type;
    memcpy(to->size, get(tensor, 902, 3, 4), 32);
    memcpy(to->stride, get(tensor, 903, 3, 4), 32);
    to->at = NULL;
    if (*is_virtual)
        return 1;
    for (int i = 0; i < pack->count; i++) {
        const struct attribute *a = &pack->attributes[i];
        const int64_t *numbers = (const int64_t *)a->data;
        for (int64_t k = 0; a->name == 1000 && k < a->count; k++)
            if (numbers[k] == *number)
                to->at = ((char *const *)get(pack, 1001, 6, a->count))[k];
    }
    return to->at && !((uintptr_t)to->at % (uintptr_t)*alignment);
}

static int64_t offset(const struct tensor *t, int64_t n, int64_t c, int64_t y, int64_t x)
{
    int64_t place[] = {n, c, y, x}, sum = 0;
    for (int d = 0; d < 4; d++)
        sum += (t->size[d] == 1 ? 0 : place[d]) * t->stride[d];
    return sum;
}

static void run(void **arguments)
{
    struct call *o = arguments[0];
    if (o->engine == SLOW)
        nanosleep(&(struct timespec){0, 3000000}, NULL);
    for (size_t i = 0; i < needed; i++)
        o->workspace[i] = 0x5A; /* what lies there is lost */
    int64_t filters = o->w.size[0], channels = o->w.size[1];
    int64_t groups = o->x.size[1] / channels, each = filters / groups;
    for (int64_t n = 0; n < o->y.size[0]; n++)
    for (int64_t f = 0; f < filters; f++)
    for (int64_t row = 0; row < o->y.size[2]; row++)
    for (int64_t column = 0; column < o->y.size[3]; column++) {
        double sum = 0;
        for (int64_t c = 0; c < channels; c++)
        for (int64_t dy = 0; dy < o->w.size[2]; dy++)
        for (int64_t dx = 0; dx < o->w.size[3]; dx++) {
            int64_t y = row * o->stride[0] + dy * o->dilation[0] - o->before[0];
            int64_t x = column * o->stride[1] + dx * o->dilation[1] - o->before[1];
            if (y < 0 || x < 0 || y >= o->x.size[2] || x >= o->x.size[3])
                continue;
            sum += number(o->x.type, o->x.at, offset(&o->x, n, f / each * channels + c, y, x)) *
                   number(o->w.type, o->w.at, offset(&o->w, f, c, dy, dx));
        }
        for (int i = 0; i < o->followers; i++) {
            struct follower *a = &o->after[i];
            if (a->mode == 0)
                sum += number(a->other.type, a->other.at, offset(&a->other, n, f, row, column));
            else if (a->mode == 100)
                sum = sum < 0 ? 0 : sum;
            else
                sum = 0.5 * sum * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        }
        put(o->y.type, o->y.at, offset(&o->y, n, f, row, column), sum);
    }
}

static void enter(const unsigned *place_of, const unsigned *block, const unsigned *grid)
{
    (void)place_of, (void)block, (void)grid;
}

int cudnnBackendExecute(void *handle, struct descriptor *plan, struct descriptor *pack)
{
    static struct module module = {.enter = enter};
    static const unsigned sizes[] = {sizeof(struct call), 0};
    static struct kernel kernel = {&module, run, sizes, 0};
    unsigned one[] = {1, 1, 1};
    struct descriptor **steps = NULL, *last;
    struct call call = {0};
    ENTER;
    if (plan->kind != PLAN || !plan->is_final || pack->kind != PACK || !pack->is_final)
        return BAD_PARAM;
    const struct descriptor *config = part(plan, 401, CONFIG);
    int count = operations(part(config, 201, GRAPH_OF), &steps);
    const struct descriptor *forward = steps[0], *how = part(forward, 702, CONVOLUTION);
    last = part(forward, 705, TENSOR);
    memcpy(call.dilation, get(how, 102, 3, 2), 16);
    memcpy(call.stride, get(how, 103, 3, 2), 16);
    memcpy(call.before, get(how, 105, 3, 2), 16);
    if (!place(part(forward, 704, TENSOR), pack, &call.x) ||
        !place(part(forward, 703, TENSOR), pack, &call.w))
        return BAD_PARAM;
    for (int i = 1; i < count; i++) {
        struct follower *a = &call.after[call.followers++];
        a->mode = *(const int *)get(part(steps[i], 750, POINTWISE), 0, 14, 1);
        if (part(steps[i], 751, TENSOR) != last)
            return BAD_PARAM;
        if (a->mode == 0 && !place(part(steps[i], 752, TENSOR), pack, &a->other))
            return BAD_PARAM;
        last = part(steps[i], 753, TENSOR);
    }
    call.workspace = *(unsigned char *const *)get(pack, 1003, 6, 1);
    if (!place(last, pack, &call.y) || !call.y.at || !call.workspace)
        return BAD_PARAM;
    call.engine = last_engine = plan->engine;
    all_engines |= 1 << plan->engine;
    launched++;
    struct stream *stream = *(struct stream **)handle;
    return fake_launch(stream, &kernel, one, one, 0, (void *[]){&call}) ? FAILED : SUCCESS;
}
