/* Where inputs come from, and what becomes of them: see frame_fuzz.h. */
#include "frame_fuzz.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "golden.h"
#include "ms_frame.h"

#define POOL_MAX 8192u
#define KEPT_MAX 64u /* of one method: messages with free fields would crowd out the rest */
#define METHODS 0x60u

typedef struct verdicts {
    uint64_t accepted, refused;
    uint32_t kept;
} verdicts;

typedef struct fuzzer {
    uint64_t random;
    fuzz_input *pool; /* the corpus, then what was found */
    uint32_t pool_count, corpus_count;
    uint8_t seen[1u << 16]; /* forms of accepted inputs, by hash */
    verdicts verdicts[3][METHODS];
} fuzzer;

/* ---- chance -------------------------------------------------------------------------------------- */

static uint64_t next_random(fuzzer *fuzzer) {
    uint64_t x = fuzzer->random;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    fuzzer->random = x;
    return x * 0x2545f4914f6cdd1du;
}

static uint32_t below(fuzzer *fuzzer, uint32_t bound) {
    return (uint32_t)((next_random(fuzzer) >> 32) * bound >> 32);
}

static uint64_t interesting(fuzzer *fuzzer, const fuzz_input *input) {
    static const uint64_t values[] = {
        0,          1,          2,          3,          7,          8,
        15,         16,         17,         31,         33,         64,
        65,         107,        108,        255,        256,        257,
        1024,       1025,       4096,       4097,       65535,      65536,
        65537,      0x7fffffff, 0x80000000, 0xfffffff0, ~0u,        ~0u - 1,
        1ull << 32, 1ull << 34, ~0ull,      ~0ull >> 1, 1ull << 63, ~0ull - 4095,
    };
    switch (below(fuzzer, 4)) {
    case 0:
        return input->length + below(fuzzer, 9) - 4; /* lengths near the truth */
    case 1:
        return below(fuzzer, 16);
    default:
        return values[below(fuzzer, sizeof values / sizeof *values)];
    }
}

/* ---- mutations ------------------------------------------------------------------------------------- */

static void change_field(fuzzer *fuzzer, fuzz_input *input) {
    uint32_t width = 1u << below(fuzzer, 4);
    if (input->length < width)
        return;
    uint32_t at = below(fuzzer, input->length / width) * width;
    uint64_t value = 0;
    memcpy(&value, input->body + at, width);
    switch (below(fuzzer, 4)) {
    case 0:
        value += below(fuzzer, 5) - 2ull;
        break;
    case 1:
        value ^= 1ull << below(fuzzer, width * 8);
        break;
    default:
        value = interesting(fuzzer, input);
        break;
    }
    memcpy(input->body + at, &value, width);
}

/* Take out or put in at a multiple of 8: the sizes of items. */
static void change_length(fuzzer *fuzzer, fuzz_input *input) {
    uint32_t size = (1 + below(fuzzer, 12)) * 8;
    uint32_t at = below(fuzzer, input->length / 8 + 1) * 8;
    if (below(fuzzer, 4) == 0) { /* any cut, any tail */
        input->length = below(fuzzer, input->length + 9);
        if (input->length > FUZZ_BODY_MAX)
            input->length = FUZZ_BODY_MAX;
    } else if (below(fuzzer, 2) == 0) {
        if (at + size > input->length)
            return;
        memmove(input->body + at, input->body + at + size, input->length - at - size);
        input->length -= size;
    } else if (input->length + size <= FUZZ_BODY_MAX) {
        memmove(input->body + at + size, input->body + at, input->length - at);
        memset(input->body + at, 0, size);
        input->length += size;
    }
}

/* One item more or less: repeat what lies there, and count it. */
static void change_count(fuzzer *fuzzer, fuzz_input *input) {
    static const uint32_t places[] = {0, 4, 8, 16, 20};
    static const uint32_t sizes[] = {4, 8, 16, 24, 32, 40, 48, 56, 72, 80, 96, 112, 128};
    uint32_t place = places[below(fuzzer, sizeof places / sizeof *places)];
    uint32_t size = sizes[below(fuzzer, sizeof sizes / sizeof *sizes)];
    if (place + 8 + size > input->length || input->length + size > FUZZ_BODY_MAX)
        return;
    uint32_t at = place + 8, count;
    memcpy(&count, input->body + place, 4);
    count++;
    memcpy(input->body + place, &count, 4);
    memmove(input->body + at + size, input->body + at, input->length - at);
    input->length += size;
}

/* Head of one, tail of another. */
static void cross_over(fuzzer *fuzzer, fuzz_input *input) {
    const fuzz_input *other = &fuzzer->pool[below(fuzzer, fuzzer->pool_count)];
    uint32_t head = below(fuzzer, input->length / 8 + 1) * 8;
    uint32_t from = below(fuzzer, other->length / 8 + 1) * 8;
    uint32_t tail = other->length - from;
    if (head + tail > FUZZ_BODY_MAX)
        return;
    memcpy(input->body + head, other->body + from, tail);
    input->length = head + tail;
}

static void change_method(fuzzer *fuzzer, fuzz_input *input) {
    switch (below(fuzzer, 3)) {
    case 0:
        input->method = (uint16_t)below(fuzzer, METHODS);
        break;
    case 1:
        input->kind = (uint8_t)below(fuzzer, 3);
        break;
    default:
        input->status = below(fuzzer, 2) == 0 ? 0 : below(fuzzer, MS_STATUS_COUNT + 1);
        break;
    }
}

static void mutate(fuzzer *fuzzer, fuzz_input *input) {
    for (uint32_t times = 1 + below(fuzzer, 4); times != 0; times--) {
        switch (below(fuzzer, 10)) {
        case 0:
        case 1:
            change_length(fuzzer, input);
            break;
        case 2:
        case 3:
            change_count(fuzzer, input);
            break;
        case 4:
            cross_over(fuzzer, input);
            break;
        case 5:
            if (below(fuzzer, 8) == 0)
                change_method(fuzzer, input);
            break;
        default:
            change_field(fuzzer, input);
            break;
        }
    }
    input->shift = (uint8_t)below(fuzzer, 8);
}

/* ---- headers ----------------------------------------------------------------------------------------- */

static void execute_header(fuzzer *fuzzer) {
    ms_header header = ms_header_make(1, MS_REQUEST, (uint16_t)below(fuzzer, METHODS), 1);
    uint8_t *bytes = (uint8_t *)&header;
    for (uint32_t times = below(fuzzer, 4); times != 0; times--)
        bytes[below(fuzzer, sizeof header)] = (uint8_t)next_random(fuzzer);
    uint8_t version = (uint8_t)below(fuzzer, 2);
    ms_fault fault = ms_header_check(&header, version);
    assert(ms_fault_text(fault)[0] != 0);
    if (fault != MS_FAULT_NONE)
        return;
    assert(header.magic == MS_MAGIC && header.kind <= MS_ONEWAY && header.reserved == 0);
    assert(ms_header_rest(&header) <= MS_VALUE_BYTES_MAX + 2ull * MS_BODY_BYTES_MAX);
    if (version == 0)
        assert(ms_header_rest(&header) <= MS_BODY_BYTES_MAX_HELLO);
}

/* ---- corpus ------------------------------------------------------------------------------------------ */

static void add_frame(fuzzer *fuzzer, const uint8_t *bytes, size_t length) {
    ms_header header;
    assert(length >= sizeof header && fuzzer->pool_count < POOL_MAX);
    memcpy(&header, bytes, sizeof header);
    fuzz_input *input = &fuzzer->pool[fuzzer->pool_count++];
    input->kind = header.kind;
    input->method = header.method;
    input->status = header.kind == MS_ANSWER ? header.status : 0;
    size_t body = length - sizeof header;
    input->length = header.body_length < body ? header.body_length : (uint32_t)body;
    assert(input->length <= FUZZ_BODY_MAX);
    memcpy(input->body, bytes + sizeof header, input->length);
}

static void read_corpus(fuzzer *fuzzer, const char *folder) {
    golden_set *golden = golden_open();
    for (size_t i = 0; i < golden->count; i++)
        add_frame(fuzzer, golden->frames[i].bytes, golden->frames[i].length);
    free(golden);
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort); /* sorted: a seed repeats anywhere */
    assert(count >= 0);
    for (int i = 0; i < count; i++) {
        if (strstr(entries[i]->d_name, ".frame") != NULL) {
            char path[512];
            static uint8_t bytes[sizeof(ms_header) + FUZZ_BODY_MAX];
            snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
            FILE *file = fopen(path, "rb");
            assert(file != NULL);
            add_frame(fuzzer, bytes, fread(bytes, 1, sizeof bytes, file));
            fclose(file);
        }
        free(entries[i]);
    }
    free(entries);
    fuzzer->corpus_count = fuzzer->pool_count;
}

/* ---- running ----------------------------------------------------------------------------------------- */

static unsigned log2_of(uint32_t value) {
    return value == 0 ? 0 : 32u - (unsigned)__builtin_clz(value);
}

/* Keep it when it is accepted and of a form (method, size, first fields) not accepted before.  Sentences
 * are not kept: any bytes are one, and they would crowd out the rest. */
static void keep_if_new(fuzzer *fuzzer, const fuzz_input *input) {
    if (input->kind == MS_ANSWER && input->status != MS_OK)
        return;
    uint32_t fields[6] = {0};
    memcpy(fields, input->body, input->length < sizeof fields ? input->length : sizeof fields);
    uint64_t form = input->method * 3u + input->kind;
    form = form * 31 + log2_of(input->length / 8);
    for (size_t i = 0; i < 6; i++)
        form = form * 37 + log2_of(fields[i]);
    form = (form * 0x9e3779b97f4a7c15u) >> 48;
    verdicts *found = &fuzzer->verdicts[input->kind][input->method];
    if (fuzzer->seen[form] || found->kept == KEPT_MAX || fuzzer->pool_count == POOL_MAX)
        return;
    fuzzer->seen[form] = 1;
    found->kept++;
    fuzzer->pool[fuzzer->pool_count++] = *input;
}

static void *map_current(const char *path) {
    int descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert(descriptor >= 0);
    assert(ftruncate(descriptor, sizeof(fuzz_input)) == 0);
    void *current =
        mmap(NULL, sizeof(fuzz_input), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    assert(current != MAP_FAILED);
    close(descriptor);
    return current;
}

static int report(const fuzzer *fuzzer, uint64_t executions) {
    int missing = 0;
    uint64_t accepted = 0;
    for (unsigned kind = 0; kind < 3; kind++)
        for (unsigned method = 0; method < METHODS; method++)
            accepted += fuzzer->verdicts[kind][method].accepted;
    for (uint32_t i = 0; i < fuzzer->corpus_count; i++) {
        const fuzz_input *input = &fuzzer->pool[i];
        const verdicts *found = &fuzzer->verdicts[input->kind][input->method];
        if (found->accepted != 0 && found->refused != 0)
            continue;
        printf("method %#x kind %u: %llu accepted, %llu refused\n", (unsigned)input->method,
               (unsigned)input->kind, (unsigned long long)found->accepted,
               (unsigned long long)found->refused);
        missing++;
    }
    printf("fuzz: %llu executions, %llu accepted, %u inputs kept\n", (unsigned long long)executions,
           (unsigned long long)accepted, fuzzer->pool_count - fuzzer->corpus_count);
    return missing;
}

int fuzz_run(uint64_t seed, uint64_t executions, const char *corpus_folder,
             const char *current_path) {
    printf("fuzz: seed %llu, current input in %s\n", (unsigned long long)seed, current_path);
    fflush(stdout);
    fuzzer *fuzzer = calloc(1, sizeof *fuzzer);
    assert(fuzzer != NULL);
    fuzzer->pool = calloc(POOL_MAX, sizeof *fuzzer->pool);
    assert(fuzzer->pool != NULL);
    fuzzer->random = seed * 0x9e3779b97f4a7c15u | 1;
    read_corpus(fuzzer, corpus_folder);
    fuzz_input *current = map_current(current_path);

    for (uint64_t i = 0; i < executions; i++) {
        /* Half of the time from the corpus, so that every method has its share. */
        uint32_t range = below(fuzzer, 2) == 0 ? fuzzer->corpus_count : fuzzer->pool_count;
        const fuzz_input *base =
            &fuzzer->pool[i < fuzzer->corpus_count ? (uint32_t)i : below(fuzzer, range)];
        memcpy(current, base, offsetof(fuzz_input, body) + base->length);
        if (i >= fuzzer->corpus_count)
            mutate(fuzzer, current);
        bool is_accepted = fuzz_execute(current);
        if (current->kind < 3 && current->method < METHODS) {
            verdicts *found = &fuzzer->verdicts[current->kind][current->method];
            if (is_accepted)
                found->accepted++;
            else
                found->refused++;
        }
        if (is_accepted)
            keep_if_new(fuzzer, current);
        if (i % 16 == 0)
            execute_header(fuzzer);
    }

    int missing = report(fuzzer, executions);
    munmap(current, sizeof *current);
    unlink(current_path);
    free(fuzzer->pool);
    free(fuzzer);
    return missing != 0;
}

int fuzz_replay(const char *path) {
    fuzz_input input;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(&input, sizeof input, 1, file) != 1) {
        fprintf(stderr, "%s: not an input that a crash left behind\n", path);
        return 2;
    }
    fclose(file);
    printf("method %#x kind %u status %u, %u bytes: ", (unsigned)input.method, (unsigned)input.kind,
           input.status, input.length);
    fflush(stdout);
    puts(fuzz_execute(&input) ? "accepted" : "refused");
    return 0;
}
