/* Opening libibverbs at run time. */
#include "te_verbs.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static te_verbs functions;
static const te_verbs *opened;
static char reason[160];
static pthread_once_t once = PTHREAD_ONCE_INIT;

typedef struct wanted {
    const char *name;
    size_t offset;
    bool is_optional;
} wanted;

#define NEEDED(name) {"ibv_" #name, offsetof(te_verbs, name), false}
#define OPTIONAL(name) {"ibv_" #name, offsetof(te_verbs, name), true}

static const wanted names[] = {
    NEEDED(get_device_list),
    NEEDED(free_device_list),
    NEEDED(open_device),
    NEEDED(close_device),
    NEEDED(query_device),
    NEEDED(query_port),
    NEEDED(query_gid),
    NEEDED(alloc_pd),
    NEEDED(dealloc_pd),
    NEEDED(reg_mr),
    NEEDED(dereg_mr),
    NEEDED(create_comp_channel),
    NEEDED(destroy_comp_channel),
    NEEDED(create_cq),
    NEEDED(destroy_cq),
    NEEDED(get_cq_event),
    NEEDED(ack_cq_events),
    NEEDED(create_qp),
    NEEDED(modify_qp),
    NEEDED(destroy_qp),
    NEEDED(get_async_event),
    NEEDED(ack_async_event),
    NEEDED(wc_status_str),
    OPTIONAL(reg_mr_iova2),
    OPTIONAL(reg_dmabuf_mr),
};

static void open_library(void) {
    /* RTLD_NODELETE: providers start threads and keep addresses; nothing is gained by unloading it. */
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *why = dlerror();
        snprintf(reason, sizeof reason, "%.100s (Debian: libibverbs1, ibverbs-providers)",
                 why == NULL ? "libibverbs.so.1 cannot be opened" : why);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *function = dlsym(library, names[i].name);
        if (function == NULL && !names[i].is_optional) {
            snprintf(reason, sizeof reason, "libibverbs.so.1 has no %s: it is too old",
                     names[i].name);
            return;
        }
        memcpy((char *)&functions + names[i].offset, &function, sizeof function);
    }
    opened = &functions;
}

const te_verbs *te_verbs_get(const char **why) {
    pthread_once(&once, open_library);
    if (why != NULL)
        *why = reason;
    return opened;
}
