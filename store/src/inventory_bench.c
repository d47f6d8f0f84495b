/* What a put pays for its inventory: room for the record, the word, the record.  For `bench restart`. */
#include <stdlib.h>
#include <string.h>

#include "st.h"
#include "st_inventory.h"
#include "te.h"

int64_t st_bench_inventory(const char *folder, uint32_t count, uint32_t key_length) {
    uint8_t key[MS_KEY_BYTES_MAX];
    memset(key, 'k', sizeof key);
    _Atomic uint64_t *words = count != 0 ? calloc(count, sizeof *words) : NULL;
    st_inventory_options options = {.folder = folder,
                                    .page_count = count,
                                    .pages_there = count,
                                    .version_max = UINT64_MAX >> 1,
                                    .words = words};
    st_inventory_repair repair;
    st_inventory *inventory = NULL;
    int64_t took_ns = -1;
    if (words == NULL || key_length == 0 || key_length > sizeof key ||
        st_inventory_open(&options, &repair, &inventory) != MS_OK)
        goto out;
    int64_t begun_ns = te_now_ns();
    ms_status status = MS_OK;
    for (uint32_t page = 0; page < count && status == MS_OK; page++) {
        st_extent extent = {.version = page + 1u,
                            .note = page + 1u,
                            .size = MS_PAGE_SIZE,
                            .hash = {.low = page, .high = ~(uint64_t)page},
                            .page = page,
                            .page_count = 1,
                            .part_count = 1,
                            .key_length = (uint16_t)key_length,
                            .tenant_length = 7,
                            .tenant = (const uint8_t *)"default",
                            .key = key};
        memcpy(key, &page, sizeof page < key_length ? sizeof page : key_length);
        status = st_inventory_reserve(inventory, &extent);
        if (status != MS_OK)
            break;
        atomic_store(&words[page], ms_word(extent.version, 1));
        st_inventory_commit(inventory, &extent);
    }
    if (status == MS_OK)
        took_ns = te_now_ns() - begun_ns;
out:
    if (inventory != NULL)
        st_inventory_close(inventory);
    st_inventory_erase(folder);
    free((void *)(uintptr_t)words);
    return took_ns;
}
