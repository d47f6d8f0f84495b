/* Reads tests/golden/frames.json, which has one vector a line. */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN_PATH "tests/golden/frames.json"
#define GOLDEN_BYTES_MAX 4096u

typedef struct golden_frame {
    char name[64];
    uint8_t bytes[GOLDEN_BYTES_MAX];
    size_t length;
} golden_frame;

static inline size_t golden_unhex(const char *text, uint8_t *bytes, size_t size) {
    size_t length = 0;
    for (unsigned value; sscanf(text + 2 * length, "%2x", &value) == 1; length++) {
        assert(length < size);
        bytes[length] = (uint8_t)value;
    }
    return length;
}

/* The value of "field" in a line, as it stands between its quotes; NULL when it is not there. */
static inline char *golden_field(const char *line, const char *field, char *value, size_t size) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, "\"%s\": \"", field);
    const char *from = strstr(line, pattern);
    if (from == NULL)
        return NULL;
    from += strlen(pattern);
    size_t length = strcspn(from, "\"");
    assert(length < size);
    memcpy(value, from, length);
    value[length] = 0;
    return value;
}

/* Calls `visit` for each line of the file. */
static inline void golden_lines(void (*visit)(const char *line, void *context), void *context) {
    FILE *file = fopen(GOLDEN_PATH, "r");
    assert(file != NULL);
    static char line[4 * GOLDEN_BYTES_MAX];
    while (fgets(line, sizeof line, file) != NULL) {
        assert(strchr(line, '\n') != NULL);
        visit(line, context);
    }
    fclose(file);
}

typedef struct golden_set {
    golden_frame frames[128];
    size_t count;
} golden_set;

static inline void golden_add(const char *line, void *context) {
    golden_set *set = context;
    static char hex[2 * GOLDEN_BYTES_MAX + 1];
    assert(set->count < sizeof set->frames / sizeof *set->frames);
    golden_frame *frame = &set->frames[set->count];
    if (golden_field(line, "hex", hex, sizeof hex) == NULL)
        return;
    assert(golden_field(line, "name", frame->name, sizeof frame->name) != NULL);
    frame->length = golden_unhex(hex, frame->bytes, sizeof frame->bytes);
    set->count++;
}

/* All frames; to be freed. */
static inline golden_set *golden_open(void) {
    golden_set *set = calloc(1, sizeof *set);
    assert(set != NULL);
    golden_lines(golden_add, set);
    assert(set->count > 0);
    return set;
}

static inline const golden_frame *golden_find(const golden_set *set, const char *name) {
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->frames[i].name, name) == 0)
            return &set->frames[i];
    fprintf(stderr, "no golden frame \"%s\"\n", name);
    abort();
}

#endif
