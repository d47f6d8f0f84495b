/* Parts of a transfer: which items, and which bytes of them, travel in one frame. */
#include "te_transfer.h"

#include "te_fault.h"

/* Whether the part that begins at the cursor has the end of an object that began in another one. */
static bool begins_inside(const te_moving *moved) {
    return moved->next_offset > 0 ||
           (moved->next_item > 0 && moved->writes[moved->next_item - 1].seal_length == 0);
}

/* Item `i` ends in the part: so may a seal. */
static void cut_seal(te_moving *moved, te_part *cut, size_t i, bool *is_inside) {
    size_t length = moved->writes[i].seal_length;
    if (length == 0) {
        return;
    }
    if (*is_inside) {
        cut->unsealed = i;
        cut->seal_offset += length;
        moved->is_unsealed[i] = true;
        *is_inside = false;
    } else {
        cut->seal_bytes += length;
    }
    moved->next_seal += length;
}

/* The next part; under the lock.  False: there is none left. */
static bool cut_part(te_moving *moved, te_part *cut) {
    if (moved->next_item == moved->count) {
        return false;
    }
    *cut = (te_part){.first = moved->next_item,
                     .head = moved->next_offset,
                     .seal_offset = moved->next_seal,
                     .is_repeated = moved->is_repeated,
                     .hello_generation = moved->hello_generation,
                     .unsealed = TE_NO_ITEM};
    bool is_write = moved->reads == NULL;
    bool is_inside = is_write && moved->is_striped && begins_inside(moved);
    while (moved->next_item < moved->count && cut->count < TE_FRAME_IOVECS &&
           cut->bytes < moved->part_bytes) {
        uint64_t payload = te_item_payload(moved, moved->next_item);
        uint64_t left = payload == 0 ? 0 : payload - moved->next_offset,
                 room = moved->part_bytes - cut->bytes;
        cut->count++;
        if (left > room && left - room > moved->part_bytes / 4) { /* no crumbs */
            cut->bytes += room;
            moved->next_offset += room;
            cut->tail = moved->next_offset;
            return true;
        }
        cut->bytes += left;
        cut->tail = te_item_length(moved, moved->next_item);
        if (is_write) {
            cut_seal(moved, cut, moved->next_item, &is_inside);
        }
        moved->next_item++;
        moved->next_offset = 0;
    }
    return true;
}

bool te_part_take(te_moving *moved, te_part *taken) {
    pthread_mutex_lock(&moved->lock);
    bool found = false;
    if (moved->status == MS_OK && moved->returned_count > 0) {
        *taken = moved->returned[--moved->returned_count];
        found = true;
    } else if (moved->status == MS_OK) {
        found = cut_part(moved, taken);
    }
    taken->deadline_ns = moved->deadline_ns;
    pthread_mutex_unlock(&moved->lock);
    return found;
}

/* The range of item i that belongs to the part. */
uint64_t te_part_range(const te_moving *moved, const te_part *taken, size_t i, uint64_t *start) {
    *start = i == taken->first ? taken->head : 0;
    uint64_t end = i == taken->first + taken->count - 1 ? taken->tail : te_item_length(moved, i);
    return end - *start;
}

bool te_part_is_cut(const te_moving *moved, const te_part *taken, size_t i) {
    uint64_t start;
    return te_part_range(moved, taken, i, &start) != te_item_length(moved, i);
}
