/* FIXTURE. cuBLASLt for the fake device, or, with AMD defined, hipBLASLt: products of matrices by columns, as its documentation says.
 * A product is an operation of the stream, so it is captured and replayed like a kernel. The
 * numbers below are those of cuBLASLt's headers.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "elements.h"

#ifdef AMD /* hipBLASLt: the same functions, other numbers */
#define cublasLtCreate hipblasLtCreate
#define cublasLtDestroy hipblasLtDestroy
#define cublasLtGetVersion hipblasLtGetVersion
#define cublasLtGetStatusString hipblasLtGetStatusString
#define cublasLtMatmulDescCreate hipblasLtMatmulDescCreate
#define cublasLtMatmulDescDestroy hipblasLtMatmulDescDestroy
#define cublasLtMatmulDescSetAttribute hipblasLtMatmulDescSetAttribute
#define cublasLtMatrixLayoutCreate hipblasLtMatrixLayoutCreate
#define cublasLtMatrixLayoutDestroy hipblasLtMatrixLayoutDestroy
#define cublasLtMatrixLayoutSetAttribute hipblasLtMatrixLayoutSetAttribute
#define cublasLtMatmulPreferenceCreate hipblasLtMatmulPreferenceCreate
#define cublasLtMatmulPreferenceDestroy hipblasLtMatmulPreferenceDestroy
#define cublasLtMatmulPreferenceSetAttribute hipblasLtMatmulPreferenceSetAttribute
#define cublasLtMatmulAlgoGetHeuristic hipblasLtMatmulAlgoGetHeuristic
#define cublasLtMatmul hipblasLtMatmul
enum { SUCCESS = 0, INVALID_VALUE = 3, FAILED = 6, NOT_SUPPORTED = 7 };
enum { TRANSPOSE_A = 0, TRANSPOSE_B = 1, EPILOGUE = 2, BIAS_POINTER = 3, PLAIN = 111, TURNED = 112 };
enum { BATCH_COUNT = 0, BATCH_STRIDE = 1, WORKSPACE = 1, ALIGNMENT = 99, ALGORITHM = 3 };
enum { IN_F32 = 2, IN_F64 = 7, IN_F16 = 4, IN_BF16 = 5, IN_TF32 = 6 };
#else
enum { SUCCESS = 0, INVALID_VALUE = 7, FAILED = 14, NOT_SUPPORTED = 15 };
enum { TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7, BIAS_POINTER = 8, PLAIN = 0, TURNED = 1 };
enum { BATCH_COUNT = 5, BATCH_STRIDE = 6, WORKSPACE = 1, ALIGNMENT = 5, ALGORITHM = 8 };
enum { IN_F32 = 68, IN_F64 = 70, IN_F16 = 74, IN_BF16 = 75, IN_TF32 = 77 };
#endif
enum { RELU = 2, BIAS = 4, GELU = 32 };

struct layout {
    int type;
    uint64_t rows, columns;
    int64_t ld, next;
    int batch;
};
struct product {
    int compute, scale, transpose_a, transpose_b;
    unsigned epilogue;
    const void *bias;
};
struct preference {
    size_t workspace;
    unsigned alignment[4];
};
struct heuristic {
    uint64_t algorithm[ALGORITHM];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
struct call { /* of one product, as the queue keeps it */
    struct product product;
    struct layout a, b, c, d;
    const char *from_a, *from_b, *from_c;
    char *to;
    double alpha, beta;
    unsigned char *workspace;
    size_t workspace_bytes;
};

static long made[4]; /* handles, products, layouts, preferences that are alive */
static long calls, fail_at = -1;
static size_t needed = 4096; /* bytes of workspace that each product wants */
static int last_compute;
static long launched;

long fake_lt_live(int kind) { return made[kind]; }
long fake_lt_calls(void) { return calls; }
void fake_lt_reset(void) { calls = 0, fail_at = -1, needed = 4096; }
void fake_lt_fail(long after) { fail_at = after < 0 ? -1 : calls + after; }
void fake_lt_need(size_t bytes) { needed = bytes; }
long fake_lt_launched(void) { return launched; }
int fake_lt_compute(void) { return last_compute; }

#define ENTER                                                                                      \
    if (calls++ == fail_at)                                                                        \
        return FAILED;

size_t cublasLtGetVersion(void) { return 130000; }
const char *cublasLtGetStatusString(int status) { return status ? "failed" : "success"; }

int cublasLtCreate(void **handle)
{
    ENTER;
    *handle = malloc(1);
    made[0]++;
    return SUCCESS;
}

int cublasLtDestroy(void *handle)
{
    free(handle);
    made[0]--;
    return SUCCESS;
}

int cublasLtMatmulDescCreate(struct product **product, int compute, int scale)
{
    ENTER;
    *product = calloc(1, sizeof **product);
    (*product)->compute = compute, (*product)->scale = scale, (*product)->epilogue = 1;
    made[1]++;
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(struct product *product)
{
    free(product);
    made[1]--;
    return SUCCESS;
}

static int turn(int *transposed, const void *value, size_t size)
{
    int given = size == 4 ? *(const int *)value : -1;
    *transposed = given == TURNED;
    return given == PLAIN || given == TURNED ? SUCCESS : INVALID_VALUE;
}

int cublasLtMatmulDescSetAttribute(struct product *product, int key, const void *value, size_t size)
{
    ENTER;
    switch (key) {
    case TRANSPOSE_A: return turn(&product->transpose_a, value, size);
    case TRANSPOSE_B: return turn(&product->transpose_b, value, size);
    case EPILOGUE: product->epilogue = *(const unsigned *)value; return size == 4 ? SUCCESS : INVALID_VALUE;
    case BIAS_POINTER: memcpy(&product->bias, value, 8); return size == 8 ? SUCCESS : INVALID_VALUE;
    }
    return INVALID_VALUE;
}

int cublasLtMatrixLayoutCreate(struct layout **layout, int type, uint64_t rows, uint64_t columns,
                               int64_t ld)
{
    ENTER;
    if (ld < (int64_t)rows)
        return INVALID_VALUE;
    *layout = calloc(1, sizeof **layout);
    **layout = (struct layout){type, rows, columns, ld, 0, 1};
    made[2]++;
    return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(struct layout *layout)
{
    free(layout);
    made[2]--;
    return SUCCESS;
}

int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int key, const void *value, size_t size)
{
    ENTER;
    if (key == BATCH_COUNT && size == 4)
        layout->batch = *(const int *)value;
    else if (key == BATCH_STRIDE && size == 8)
        layout->next = *(const int64_t *)value;
    else
        return INVALID_VALUE;
    return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(struct preference **preference)
{
    ENTER;
    *preference = calloc(1, sizeof **preference);
    made[3]++;
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(struct preference *preference)
{
    free(preference);
    made[3]--;
    return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(struct preference *preference, int key, const void *value,
                                         size_t size)
{
    ENTER;
    if (key == WORKSPACE && size == 8)
        preference->workspace = *(const size_t *)value;
    else if (key >= ALIGNMENT && key < ALIGNMENT + 4 && size == 4)
        preference->alignment[key - ALIGNMENT] = *(const unsigned *)value;
    else
        return INVALID_VALUE;
    return SUCCESS;
}

static int fits(const struct product *p, const struct layout *a, const struct layout *b,
                const struct layout *c, const struct layout *d)
{
    uint64_t m = p->transpose_a ? a->columns : a->rows, k = p->transpose_a ? a->rows : a->columns;
    uint64_t n = p->transpose_b ? b->rows : b->columns, l = p->transpose_b ? b->columns : b->rows;
    int f64 = a->type == R_64F;
    int compute = p->compute == (f64 ? IN_F64 : IN_F32) ||
                  (a->type == R_32F && (p->compute == IN_F16 || p->compute == IN_BF16 ||
                                        p->compute == IN_TF32));
    return k == l && d->rows == m && d->columns == n && c->rows == m && c->columns == n &&
           a->type == b->type && a->type == c->type && a->type == d->type && compute &&
           p->scale == (f64 ? R_64F : R_32F) && a->batch == d->batch && b->batch == d->batch &&
           c->batch == d->batch;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, const struct product *product,
                                   const struct layout *a, const struct layout *b,
                                   const struct layout *c, const struct layout *d,
                                   const struct preference *preference, int wanted,
                                   struct heuristic *found, int *count)
{
    ENTER;
    *count = 0;
    if (!handle || !fits(product, a, b, c, d))
        return INVALID_VALUE;
    if ((product->epilogue & GELU) && a->type == R_64F)
        return NOT_SUPPORTED;
    if (needed > preference->workspace || wanted < 2)
        return NOT_SUPPORTED;
    memset(found, 0, 2 * sizeof *found);
    found[0].state = NOT_SUPPORTED; /* it proposes one that does not work first */
    found[1].workspace = needed;
    found[1].algorithm[0] = 0xA160;
    *count = 2;
    return SUCCESS;
}

static void run(void **arguments)
{
    struct call *o = arguments[0];
    struct product *p = &o->product;
    int type = o->d.type;
    uint64_t depth = p->transpose_a ? o->a.rows : o->a.columns;
    for (size_t i = 0; i < o->workspace_bytes; i++)
        o->workspace[i] = 0x5A; /* what lies there is lost */
    for (int64_t z = 0; z < o->d.batch; z++)
        for (int64_t j = 0; j < (int64_t)o->d.columns; j++)
            for (int64_t i = 0; i < (int64_t)o->d.rows; i++) {
                double sum = 0;
                for (int64_t k = 0; k < (int64_t)depth; k++)
                    sum += number(type, o->from_a, z * o->a.next +
                                  (p->transpose_a ? i * o->a.ld + k : k * o->a.ld + i)) *
                           number(type, o->from_b, z * o->b.next +
                                  (p->transpose_b ? k * o->b.ld + j : j * o->b.ld + k));
                sum *= o->alpha;
                if (o->beta)
                    sum += o->beta * number(type, o->from_c, z * o->c.next + j * o->c.ld + i);
                if (p->epilogue & BIAS)
                    sum += number(type, p->bias, i);
                if (p->epilogue & RELU)
                    sum = sum < 0 ? 0 : sum;
                if (p->epilogue & GELU)
                    sum = 0.5 * sum *
                          (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
                put(type, o->to, z * o->d.next + j * o->d.ld + i, sum);
            }
}

static void enter(const unsigned *place, const unsigned *block, const unsigned *grid)
{
    (void)place, (void)block, (void)grid;
}

int cublasLtMatmul(void *handle, const struct product *product, const void *alpha, const void *a,
                   const struct layout *of_a, const void *b, const struct layout *of_b,
                   const void *beta, const void *c, const struct layout *of_c, void *d,
                   const struct layout *of_d, const uint64_t *algorithm, void *workspace,
                   size_t workspace_bytes, struct stream *stream)
{
    static struct module module = {.enter = enter};
    static const unsigned sizes[] = {sizeof(struct call), 0};
    static struct kernel kernel = {&module, run, sizes, 0};
    unsigned one[] = {1, 1, 1};
    ENTER;
    if (!handle || algorithm[0] != 0xA160 || workspace_bytes < needed || (needed && !workspace) ||
        !fits(product, of_a, of_b, of_c, of_d) || (uintptr_t)workspace % 256)
        return INVALID_VALUE;
    int wide = product->scale == R_64F;
    struct call call = {
        *product, *of_a, *of_b, *of_c, *of_d, a, b, c, d,
        wide ? *(const double *)alpha : *(const float *)alpha,
        wide ? *(const double *)beta : *(const float *)beta, workspace, workspace_bytes,
    };
    last_compute = product->compute;
    launched++;
    return fake_launch(stream, &kernel, one, one, 0, (void *[]){&call}) ? FAILED : SUCCESS;
}
