/* NOTIFY: short application messages between engines, kept in a bounded queue until they are asked for. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ms_frame.h"
#include "te_parts.h"

#include "te_fault.h"

#define MESSAGES_MAX 4096u
#define BYTES_MAX (64u << 20)

typedef struct message {
    struct message *next;
    uint32_t name_length, length;
    char bytes[]; /* name, then message */
} message;

struct te_notes {
    pthread_mutex_t lock;
    message *first, *last;
    uint32_t count;
    size_t bytes;
    int eventfd;
};

ms_status te_notes_open(te_notes **result) {
    te_notes *notes = calloc(1, sizeof *notes);
    if (notes == NULL)
        return MS_NO_MEMORY;
    notes->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (notes->eventfd < 0) {
        free(notes);
        return MS_LIMIT;
    }
    pthread_mutex_init(&notes->lock, NULL);
    *result = notes;
    return MS_OK;
}

void te_notes_close(te_notes *notes) {
    if (notes == NULL)
        return;
    while (notes->first != NULL) {
        message *gone = notes->first;
        notes->first = gone->next;
        free(gone);
    }
    close(notes->eventfd);
    pthread_mutex_destroy(&notes->lock);
    free(notes);
}

/* The event counter is 1 while messages wait, else 0.  Under the lock. */
static void set_readable(te_notes *notes, bool is_readable) {
    uint64_t one = 1;
    ssize_t moved = is_readable ? write(notes->eventfd, &one, sizeof one)
                                : read(notes->eventfd, &one, sizeof one);
    (void)moved;
}

static ms_status keep(te_notes *notes, ms_text name, ms_text text) {
    message *kept = malloc(sizeof *kept + name.length + text.length);
    if (kept == NULL)
        return MS_NO_MEMORY;
    *kept = (message){.name_length = name.length, .length = text.length};
    memcpy(kept->bytes, name.data, name.length);
    memcpy(kept->bytes + name.length, text.data, text.length);
    size_t size = (size_t)name.length + text.length;
    ms_status status = MS_OK;
    pthread_mutex_lock(&notes->lock);
    if (notes->count == MESSAGES_MAX || notes->bytes + size > BYTES_MAX) {
        status = MS_LIMIT;
    } else {
        if (notes->first == NULL) {
            notes->first = kept;
            set_readable(notes, true);
        } else {
            notes->last->next = kept;
        }
        notes->last = kept;
        notes->count++;
        notes->bytes += size;
    }
    pthread_mutex_unlock(&notes->lock);
    if (status != MS_OK)
        free(kept);
    return status;
}

static void answer_notify(te_engine *engine, te_link *link, const te_request *request) {
    ms_reader reader = ms_reader_of(request->body, request->header->body_length);
    ms_text name, text;
    ms_status status = MS_BAD_FRAME;
    if (ms_reader_string(&reader, MS_NAME_BYTES_MAX, &name) &&
        ms_reader_string(&reader, MS_NOTIFY_BYTES_MAX, &text) && ms_reader_is_done(&reader))
        status = keep(engine->notes, name, text);
    if (status == MS_OK)
        te_link_answer(link, request->header, MS_OK, NULL, 0, NULL, 0, NULL, 0);
    else
        te_link_refuse(link, request->header, status,
                       status == MS_LIMIT ? "too many notifications wait there"
                                          : "the notification was not kept");
}

void te_notes_install(te_engine *engine) { engine->methods[MS_NOTIFY] = answer_notify; }

ms_status te_next_notify(te_engine *engine, char name[256], char *text, size_t size,
                         size_t *length) {
    te_notes *notes = engine->notes;
    ms_status status = MS_OK;
    message *taken = NULL;
    pthread_mutex_lock(&notes->lock);
    message *oldest = notes->first;
    if (oldest == NULL) {
        status = MS_NOT_FOUND;
    } else if (oldest->length > size) {
        *length = oldest->length;
        status = MS_BUFFER_TOO_SMALL;
    } else {
        taken = oldest;
        notes->first = oldest->next;
        notes->count--;
        notes->bytes -= (size_t)oldest->name_length + oldest->length;
        if (notes->first == NULL)
            set_readable(notes, false);
    }
    pthread_mutex_unlock(&notes->lock);
    if (taken == NULL)
        return status;
    memcpy(name, taken->bytes, taken->name_length);
    name[taken->name_length] = '\0';
    if (taken->length > 0)
        memcpy(text, taken->bytes + taken->name_length, taken->length);
    *length = taken->length;
    free(taken);
    return MS_OK;
}

int te_notify_eventfd(te_engine *engine) { return engine->notes->eventfd; }
