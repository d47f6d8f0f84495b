/* Opens and closes what te_parts.h names, in the order in which one needs the other. */
#include <stdlib.h>

#include "te_parts.h"

ms_status te_parts_open(te_engine *engine) {
    engine->shm = calloc(1, sizeof *engine->shm);
    if (engine->shm == NULL)
        return MS_NO_MEMORY;
    ms_status status = te_copier_open(engine->config.stream_copy_bytes,
                                      engine->config.helper_copy_bytes, &engine->shm->copier);
    if (status == MS_OK)
        status = te_shared_open(&engine->shm->shared);
    if (status == MS_OK)
        status = te_loans_open(&engine->shm->loans);
    if (status == MS_OK)
        te_loans_install(engine);
    return status;
}

void te_parts_stop(te_engine *engine) { (void)engine; }

void te_parts_close(te_engine *engine) {
    if (engine->shm == NULL)
        return;
    te_loans_close(engine->shm->loans);
    te_shared_close(engine->shm->shared);
    te_copier_close(engine->shm->copier);
    free(engine->shm);
    engine->shm = NULL;
}
