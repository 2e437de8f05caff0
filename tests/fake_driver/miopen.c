/* FIXTURE. MIOpen's descriptors and immediate mode for the fake device. The numbers below are those
 * of MIOpen's header. The functions of the test's own are those of ``cudnn.c``.
 *
 * Solutions, in the order in which they are proposed: by products of another library, one that wants
 * too much memory, one by Winograd, a slow one, a fast one, one that differs from run to run, one that
 * does not compile, one that rounds to TF32.
 */
#include <stdlib.h>
#include <time.h>

#include "core.h"
#include "elements.h"

enum { SUCCESS = 0, BAD_PARAM = 3, FAILED = 5, NOT_IMPLEMENTED = 6 };
enum { GEMM, LARGE, INEXACT, SLOW, FAST, RANDOM, ABSENT, TF32, SOLUTIONS };
enum { NCHW = 0, NHWC = 1 };
enum { FIRST_NUMBER = 70 };

struct handle {
    struct stream *stream;
};
struct tensor {
    int type, layout, is_set;
    int64_t size[4], stride[4];
};
struct convolution {
    int padding[2], stride[2], dilation[2], groups, is_set;
    int attribute[4];
};
struct solution {
    float time;
    size_t workspace;
    uint64_t number;
    int algorithm;
};
struct call { /* of one convolution, as the queue keeps it */
    struct tensor x, w, y;
    struct convolution how;
    const char *from, *weight;
    char *to;
    unsigned char *workspace;
    int solution;
};

static long made[2]; /* handles, descriptors that are alive */
static long calls, fail_at = -1, launched;
static int last_solution = -1, all_solutions, compiled;
static size_t needed = 512;

long fake_dnn_live(int kind) { return made[kind]; }
long fake_dnn_calls(void) { return calls; }
long fake_dnn_launched(void) { return launched; }
int fake_dnn_engine(void) { return last_solution; }
int fake_dnn_engines(void) { return all_solutions; }
void fake_dnn_fail(long after) { fail_at = after < 0 ? -1 : calls + after; }
void fake_dnn_reset(void)
{
    calls = 0, fail_at = -1, launched = 0, last_solution = -1, all_solutions = 0, compiled = 0;
}

#define ENTER                                                                                      \
    if (calls++ == fail_at)                                                                        \
        return FAILED;

const char *miopenGetErrorString(int status)
{
    return status == FAILED ? "miopenStatusInternalError" : "miopenStatusOther";
}

int miopenGetVersion(size_t *major, size_t *minor, size_t *patch)
{
    *major = 3, *minor = 5, *patch = 1;
    return SUCCESS;
}

int miopenCreateWithStream(struct handle **handle, struct stream *stream)
{
    ENTER;
    *handle = calloc(1, sizeof **handle);
    (*handle)->stream = stream;
    made[0]++;
    return SUCCESS;
}

int miopenDestroy(struct handle *handle)
{
    free(handle);
    made[0]--;
    return SUCCESS;
}

int miopenSetStream(struct handle *handle, struct stream *stream)
{
    ENTER;
    handle->stream = stream;
    return SUCCESS;
}

int miopenCreateTensorDescriptor(struct tensor **tensor)
{
    ENTER;
    *tensor = calloc(1, sizeof **tensor);
    made[1]++;
    return SUCCESS;
}

int miopenDestroyTensorDescriptor(struct tensor *tensor)
{
    memset(tensor, 0x5A, sizeof *tensor); /* whoever still uses it sees nothing sensible */
    free(tensor);
    made[1]--;
    return SUCCESS;
}

static int element_type(int type)
{
    switch (type) {
    case 0: return R_16F;
    case 1: return R_32F;
    case 5: return R_16BF;
    }
    return -1;
}

int miopenSetNdTensorDescriptorWithLayout(struct tensor *t, int type, int layout, const int *size,
                                          int dimensions)
{
    ENTER;
    if (dimensions != 4 || (layout != NCHW && layout != NHWC) || element_type(type) < 0)
        return BAD_PARAM;
    static const int orders[2][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}}; /* innermost first */
    int64_t stride = 1;
    for (int i = 0; i < 4; i++) {
        int d = orders[layout][i];
        if (size[d] < 1)
            return BAD_PARAM;
        t->size[d] = size[d], t->stride[d] = stride;
        stride *= size[d];
    }
    t->type = element_type(type), t->layout = layout, t->is_set = 1;
    return SUCCESS;
}

int miopenCreateConvolutionDescriptor(struct convolution **how)
{
    ENTER;
    *how = calloc(1, sizeof **how);
    (*how)->groups = 1;
    (*how)->attribute[0] = -1, (*how)->attribute[3] = 1;
    made[1]++;
    return SUCCESS;
}

int miopenDestroyConvolutionDescriptor(struct convolution *how)
{
    memset(how, 0x5A, sizeof *how);
    free(how);
    made[1]--;
    return SUCCESS;
}

int miopenInitConvolutionNdDescriptor(struct convolution *how, int dimensions, const int *padding,
                                      const int *stride, const int *dilation, int mode)
{
    ENTER;
    if (dimensions != 2 || mode != 0)
        return BAD_PARAM;
    for (int d = 0; d < 2; d++) {
        if (padding[d] < 0 || stride[d] < 1 || dilation[d] < 1)
            return BAD_PARAM;
        how->padding[d] = padding[d], how->stride[d] = stride[d], how->dilation[d] = dilation[d];
    }
    how->is_set = 1;
    return SUCCESS;
}

int miopenSetConvolutionGroupCount(struct convolution *how, int groups)
{
    ENTER;
    if (!how->is_set || groups < 1)
        return BAD_PARAM;
    how->groups = groups;
    return SUCCESS;
}

int miopenSetConvolutionAttribute(struct convolution *how, int name, int value)
{
    ENTER;
    if (name < 0 || name > 3 || name == 2)
        return BAD_PARAM;
    how->attribute[name] = value;
    return SUCCESS;
}

static int fits(const struct handle *handle, const struct tensor *w, const struct tensor *x,
                const struct convolution *how, const struct tensor *y)
{
    if (!handle || !w->is_set || !x->is_set || !y->is_set || !how->is_set)
        return 0;
    for (int d = 0; d < 2; d++) {
        int64_t reach = how->dilation[d] * (w->size[2 + d] - 1) + 1;
        int64_t made_here = (x->size[2 + d] + 2 * how->padding[d] - reach) / how->stride[d] + 1;
        if (y->size[2 + d] != made_here)
            return 0;
    }
    return w->type == x->type && y->type == x->type && w->layout == x->layout &&
           y->layout == x->layout && x->size[1] == w->size[1] * how->groups &&
           w->size[0] % how->groups == 0 && y->size[1] == w->size[0] && y->size[0] == x->size[0];
}

static int proposed(const struct convolution *how, struct solution *found)
{
    static const int algorithms[SOLUTIONS] = {0, 5, 3, 1, 5, 1, 1, 5};
    int count = 0;
    for (int i = 0; i < SOLUTIONS; i++) {
        if ((i == RANDOM && how->attribute[1]) || (i == TF32 && how->attribute[3]))
            continue;
        if (found) {
            memset(&found[count], 0x5A, sizeof *found);
            found[count].time = (float)i, found[count].workspace = i == LARGE ? 1ul << 40 : needed;
            found[count].number = FIRST_NUMBER + i, found[count].algorithm = algorithms[i];
        }
        count++;
    }
    return count;
}

int miopenConvolutionForwardGetSolutionCount(struct handle *handle, struct tensor *w,
                                             struct tensor *x, struct convolution *how,
                                             struct tensor *y, size_t *count)
{
    ENTER;
    if (!fits(handle, w, x, how, y))
        return BAD_PARAM;
    *count = proposed(how, NULL);
    return SUCCESS;
}

int miopenConvolutionForwardGetSolution(struct handle *handle, struct tensor *w, struct tensor *x,
                                        struct convolution *how, struct tensor *y, size_t most,
                                        size_t *count, struct solution *found)
{
    struct solution all[SOLUTIONS];
    ENTER;
    if (!fits(handle, w, x, how, y))
        return BAD_PARAM;
    *count = proposed(how, all);
    if (*count > most)
        *count = most;
    memcpy(found, all, *count * sizeof *found);
    return SUCCESS;
}

int miopenConvolutionForwardCompileSolution(struct handle *handle, struct tensor *w,
                                            struct tensor *x, struct convolution *how,
                                            struct tensor *y, uint64_t number)
{
    ENTER;
    int which = (int)number - FIRST_NUMBER;
    if (!fits(handle, w, x, how, y) || which < 0 || which >= SOLUTIONS)
        return BAD_PARAM;
    if (which == ABSENT)
        return NOT_IMPLEMENTED;
    compiled |= 1 << which;
    return SUCCESS;
}

static int64_t offset(const struct tensor *t, int64_t n, int64_t c, int64_t y, int64_t x)
{
    return n * t->stride[0] + c * t->stride[1] + y * t->stride[2] + x * t->stride[3];
}

static void run(void **arguments)
{
    struct call *o = arguments[0];
    if (o->solution == SLOW)
        nanosleep(&(struct timespec){0, 3000000}, NULL);
    for (size_t i = 0; i < needed; i++)
        o->workspace[i] = 0x5A; /* what lies there is lost */
    int64_t channels = o->w.size[1], each = o->w.size[0] / o->how.groups;
    for (int64_t n = 0; n < o->y.size[0]; n++)
    for (int64_t f = 0; f < o->w.size[0]; f++)
    for (int64_t row = 0; row < o->y.size[2]; row++)
    for (int64_t column = 0; column < o->y.size[3]; column++) {
        double sum = 0;
        for (int64_t c = 0; c < channels; c++)
        for (int64_t dy = 0; dy < o->w.size[2]; dy++)
        for (int64_t dx = 0; dx < o->w.size[3]; dx++) {
            int64_t y = row * o->how.stride[0] + dy * o->how.dilation[0] - o->how.padding[0];
            int64_t x = column * o->how.stride[1] + dx * o->how.dilation[1] - o->how.padding[1];
            if (y < 0 || x < 0 || y >= o->x.size[2] || x >= o->x.size[3])
                continue;
            sum += number(o->x.type, o->from, offset(&o->x, n, f / each * channels + c, y, x)) *
                   number(o->w.type, o->weight, offset(&o->w, f, c, dy, dx));
        }
        put(o->y.type, o->to, offset(&o->y, n, f, row, column), sum);
    }
}

static void enter(const unsigned *place, const unsigned *block, const unsigned *grid)
{
    (void)place, (void)block, (void)grid;
}

int miopenConvolutionForwardImmediate(struct handle *handle, struct tensor *w, const void *weight,
                                      struct tensor *x, const void *from, struct convolution *how,
                                      struct tensor *y, void *to, void *workspace, size_t bytes,
                                      uint64_t number)
{
    static struct module module = {.enter = enter};
    static const unsigned sizes[] = {sizeof(struct call), 0};
    static struct kernel kernel = {&module, run, sizes, 0};
    unsigned one[] = {1, 1, 1};
    ENTER;
    int which = (int)number - FIRST_NUMBER;
    if (!fits(handle, w, x, how, y) || which < 0 || which >= SOLUTIONS ||
        !(compiled & 1 << which) || bytes < needed || !workspace)
        return BAD_PARAM;
    uintptr_t places = (uintptr_t)weight | (uintptr_t)from | (uintptr_t)to | (uintptr_t)workspace;
    if (places % 16) /* kernels read vectors */
        return BAD_PARAM;
    struct call call = {*x, *w, *y, *how, from, weight, to, workspace, which};
    last_solution = which;
    all_solutions |= 1 << which;
    launched++;
    return fake_launch(handle->stream, &kernel, one, one, 0, (void *[]){&call}) ? FAILED : SUCCESS;
}
