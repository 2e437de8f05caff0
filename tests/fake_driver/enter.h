/* FIXTURE. The first line of every function of a fake driver. */
#include "core.h"

#define ENTER                                                                                      \
    do {                                                                                           \
        int entered = fake_enter(__func__);                                                        \
        if (entered)                                                                               \
            return entered;                                                                        \
    } while (0)
#define ENTER_CONTEXT                                                                              \
    do {                                                                                           \
        int entered = fake_enter_context(__func__);                                                \
        if (entered)                                                                               \
            return entered;                                                                        \
    } while (0)

int fake_virtual_memory(void);
