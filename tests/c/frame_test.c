/* Reader and writer of frames: bounds, faults, golden vectors field by field. */
// sources: mooncake_store/protocol/src/*.c
// variants: plain address
// flags: -Wl,--wrap=realloc
#include "golden.h"
#include "ms_frame.h"
#include "ms_hash.h"

#define EPOCH 7u
#define SESSION ((uint64_t)EPOCH << 32 | 3u)
#define CHECKSUM 0x8a9136aau

static const char key[] = "vllm/llama-3-8b/0/9f86d081884c7d65";
#define KEY_LENGTH (sizeof key - 1)

/* ---- memory that runs out when the test says so ------------------------------------------------ */

void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);
static int reallocs_left = -1;

void *__wrap_realloc(void *memory, size_t size) {
    if (reallocs_left == 0)
        return NULL;
    if (reallocs_left > 0)
        reallocs_left--;
    return __real_realloc(memory, size);
}

/* ---- reader ---------------------------------------------------------------------------------------- */

static void test_reader_stops_at_the_end_and_stays_bad(void) {
    uint8_t bytes[12] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
    ms_reader reader = ms_reader_of(bytes, sizeof bytes);
    assert(ms_reader_u64(&reader) == 0x200000001u);
    assert(ms_reader_left(&reader) == 4 && !ms_reader_is_done(&reader));
    assert(ms_reader_u64(&reader) == 0); /* only four bytes left */
    assert(reader.is_bad && !ms_reader_is_done(&reader));
    assert(ms_reader_u32(&reader) == 0); /* they are not handed out after a fault */
    assert(ms_reader_bytes(&reader, 0) == NULL);

    reader = ms_reader_of(NULL, 0);
    assert(ms_reader_is_done(&reader));
    assert(ms_reader_bytes(&reader, 1) == NULL);

    /* A length so large that adding it to an address would wrap round. */
    reader = ms_reader_of(bytes, sizeof bytes);
    assert(ms_reader_bytes(&reader, SIZE_MAX) == NULL && reader.is_bad);
}

static void test_counts_are_believed_only_if_the_items_can_be_there(void) {
    uint32_t body[] = {3, 0, 1, 2, 3};
    ms_array items;
    assert(ms_read_array(body, sizeof body, 4, &items) && items.count == 3);
    assert(ms_array_u32(items, 2) == 3);
    body[0] = 4;
    assert(!ms_read_array(body, sizeof body, 4, &items));
    body[0] = 2; /* one item is left over */
    assert(!ms_read_array(body, sizeof body, 4, &items));
    body[0] = UINT32_MAX; /* times 16 is 2**36 - 16, not -16 */
    ms_reader reader = ms_reader_of(body, sizeof body);
    assert(ms_reader_list(&reader, 16) == 0 && reader.is_bad);
    /* More than a batch may have, though the bytes were there. */
    size_t length = 8 + (MS_BATCH_ITEMS_MAX + 1) * 4;
    uint32_t *large = calloc(1, length);
    assert(large != NULL);
    large[0] = MS_BATCH_ITEMS_MAX + 1;
    assert(!ms_read_array(large, length, 4, &items));
    large[0] = MS_BATCH_ITEMS_MAX;
    assert(ms_read_array(large, length - 4, 4, &items));
    free(large);
}

static void test_padding_may_be_missing_only_at_the_end(void) {
    uint8_t body[16] = {5, 0, 0, 0, 'h', 'e', 'l', 'l', 'o', 0, 0, 0, 0, 0, 0, 0};
    ms_text text;
    ms_reader reader = ms_reader_of(body, 16);
    assert(ms_reader_string(&reader, 5, &text) && ms_reader_is_done(&reader));
    assert(text.length == 5 && memcmp(text.data, "hello", 5) == 0);
    reader = ms_reader_of(body, 9);
    assert(ms_reader_string(&reader, 5, &text) && ms_reader_is_done(&reader));
    reader = ms_reader_of(body, 8); /* a letter is missing */
    assert(!ms_reader_string(&reader, 5, &text));
    reader = ms_reader_of(body, 16);
    assert(!ms_reader_string(&reader, 4, &text)); /* longer than allowed */
}

static void test_locations_that_cannot_be_true_are_refused(const golden_set *golden) {
    const golden_frame *frame = golden_find(golden, "change_replica answered");
    size_t length = frame->length - sizeof(ms_header);
    uint8_t body[256];
    assert(length <= sizeof body);
#define WITH(type, offset, field, is_valid)                                                        \
    do {                                                                                           \
        memcpy(body, frame->bytes + sizeof(ms_header), length);                                    \
        type changed;                                                                              \
        memcpy(&changed, body + (offset), sizeof changed);                                         \
        changed.field;                                                                             \
        memcpy(body + (offset), &changed, sizeof changed);                                         \
        ms_reader reader = ms_reader_of(body, length);                                             \
        ms_location_view view;                                                                     \
        assert((ms_reader_location(&reader, &view) && ms_reader_is_done(&reader)) == (is_valid));  \
    } while (0)
    size_t replica = sizeof(ms_location), extent = replica + sizeof(ms_replica);
    WITH(ms_location, 0, status = MS_OK, true);
    WITH(ms_location, 0, status = MS_STATUS_COUNT, false);
    WITH(ms_location, 0, status = MS_NOT_FOUND, false); /* with replicas */
    WITH(ms_location, 0, replica_count = MS_REPLICAS_MAX + 1, false);
    WITH(ms_location, 0, replica_count = 1, false); /* one is left over */
    WITH(ms_location, 0, size = 3 * MS_PAGE_SIZE, true);
    WITH(ms_location, 0, size = 3 * MS_PAGE_SIZE + 1, false); /* than the pages hold */
    WITH(ms_location, 0, size = MS_VALUE_BYTES_MAX + 1, false);
    WITH(ms_location, 0, size = UINT64_MAX, false);
    WITH(ms_replica, replica, extent_count = 0, false);
    WITH(ms_replica, replica, extent_count = MS_EXTENTS_MAX + 1, false);
    WITH(ms_extent, extent, page_count = 0, false);
    WITH(ms_extent, extent, page_count = UINT32_MAX, false); /* wraps round */
    WITH(ms_extent, extent, page = UINT32_MAX, false);
    WITH(ms_extent, extent, page = UINT32_MAX - 2, true);
#undef WITH
    assert(ms_pages_of(0) == 1 && ms_pages_of(1) == 1 && ms_pages_of(4096) == 1 &&
           ms_pages_of(4097) == 2);
}

/* ---- header ---------------------------------------------------------------------------------------- */

static void test_headers_are_refused_with_a_reason(void) {
    ms_header good = ms_header_make(1, MS_REQUEST, MS_LOOKUP, 5);
    good.body_length = MS_BODY_BYTES_MAX;
    good.payload_length = MS_VALUE_BYTES_MAX;
    good.trailer_length = MS_BODY_BYTES_MAX;
    assert(ms_header_check(&good, 1) == MS_FAULT_NONE);
    assert(ms_header_rest(&good) == 2ull * MS_BODY_BYTES_MAX + MS_VALUE_BYTES_MAX);
#define REFUSED(field, version, fault)                                                             \
    do {                                                                                           \
        ms_header header = good;                                                                   \
        header.field;                                                                              \
        assert(ms_header_check(&header, version) == (fault));                                      \
        assert(strlen(ms_fault_text(fault)) > 0);                                                  \
    } while (0)
    REFUSED(magic ^= 1, 1, MS_FAULT_MAGIC);
    REFUSED(version = 2, 1, MS_FAULT_VERSION);
    REFUSED(version = 1, 2, MS_FAULT_VERSION);
    REFUSED(kind = MS_ONEWAY + 1, 1, MS_FAULT_KIND);
    REFUSED(body_length = MS_BODY_BYTES_MAX + 1, 1, MS_FAULT_BODY);
    REFUSED(trailer_length = MS_BODY_BYTES_MAX + 1, 1, MS_FAULT_TRAILER);
    REFUSED(payload_length = MS_VALUE_BYTES_MAX + 1, 1, MS_FAULT_PAYLOAD);
    REFUSED(payload_length = UINT64_MAX, 1, MS_FAULT_PAYLOAD);
    REFUSED(reserved = 1, 1, MS_FAULT_RESERVED);
    REFUSED(method = MS_LOOKUP, 0, MS_FAULT_HELLO);
    REFUSED(method = 0xffff, 1, MS_FAULT_NONE); /* can be skipped and answered */

    good = ms_header_make(2, MS_REQUEST, MS_HELLO, 1);
    assert(good.version == 1); /* for ever */
    good.body_length = MS_BODY_BYTES_MAX_HELLO;
    assert(ms_header_check(&good, 0) == MS_FAULT_NONE);
    assert(ms_header_check(&good, 2) == MS_FAULT_NONE);
    REFUSED(version = 2, 0, MS_FAULT_VERSION);
    REFUSED(kind = MS_ONEWAY, 0, MS_FAULT_HELLO);
    REFUSED(body_length++, 0, MS_FAULT_BODY);
    REFUSED(trailer_length = 1, 0, MS_FAULT_TRAILER);
    REFUSED(payload_length = 1, 0, MS_FAULT_PAYLOAD);
#undef REFUSED
}

static void test_versions_agree_on_the_newest_common_one(void) {
    assert(ms_version_agree(1, 1, 1, 1) == 1);
    assert(ms_version_agree(1, 3, 2, 5) == 3);
    assert(ms_version_agree(2, 5, 1, 3) == 3);
    assert(ms_version_agree(1, 1, 2, 3) == 0);
    assert(ms_version_agree(4, 5, 1, 3) == 0);
}

/* ---- writer ---------------------------------------------------------------------------------------- */

static void test_writer_keeps_its_bound_and_its_first_fault(void) {
    uint8_t memory[24];
    ms_writer writer = ms_writer_fixed(memory, sizeof memory);
    ms_writer_u64(&writer, 1);
    ms_writer_string(&writer, "four", 4);
    assert(writer.status == MS_OK && writer.length == 16);
    ms_writer_bytes(&writer, memory, 9);
    assert(writer.status == MS_LIMIT && writer.length == 16);
    ms_writer_u32(&writer, 1); /* would fit, but the body is spoilt */
    assert(writer.length == 16 && ms_writer_space(&writer, 1) == NULL);
    ms_writer_reset(&writer);
    ms_writer_zeros(&writer, 24);
    assert(writer.status == MS_OK && writer.length == 24);

    writer = ms_writer_growable(1000);
    for (uint32_t i = 0; i < 250; i++)
        ms_writer_u32(&writer, i);
    assert(writer.status == MS_OK && writer.length == 1000);
    uint32_t value;
    memcpy(&value, writer.data + 996, 4);
    assert(value == 249);
    ms_writer_set_u32(&writer, 0, 77);
    memcpy(&value, writer.data, 4);
    assert(value == 77);
    ms_writer_u32(&writer, 0);
    assert(writer.status == MS_LIMIT && writer.length == 1000);
    ms_writer_close(&writer);
    assert(writer.data == NULL && writer.status == MS_OK);
    ms_writer_u32(&writer, 5); /* may be used again */
    assert(writer.status == MS_OK);
    ms_writer_close(&writer);
}

static void test_writer_survives_every_allocation_that_fails(void) {
    for (int fail = 0;; fail++) {
        reallocs_left = fail;
        ms_writer writer = ms_writer_growable(1u << 20);
        for (uint32_t i = 0; i < 4096; i++)
            ms_writer_u32(&writer, i);
        bool is_done = writer.status == MS_OK;
        assert(is_done || writer.status == MS_NO_MEMORY);
        ms_writer_close(&writer);
        if (is_done) {
            assert(fail > 1);
            break;
        }
    }
    reallocs_left = -1;
}

/* ---- golden vectors ---------------------------------------------------------------------------------- */

static void test_every_golden_frame_is_well_formed(const golden_set *golden) {
    for (size_t i = 0; i < golden->count; i++) {
        const golden_frame *frame = &golden->frames[i];
        ms_header header;
        memcpy(&header, frame->bytes, sizeof header);
        uint8_t version = header.method == MS_HELLO ? 0 : 1;
        bool is_good = ms_header_check(&header, version) == MS_FAULT_NONE &&
                       ms_header_rest(&header) == frame->length - sizeof header &&
                       ms_body_valid(header.kind, header.method, header.status,
                                     frame->bytes + sizeof header, header.body_length);
        if (!is_good)
            fprintf(stderr, "golden frame \"%s\" is refused\n", frame->name);
        assert(is_good);
        /* Cut anywhere it is not, unless the rest may be missing (padding) or means something. */
        for (uint32_t length = 0; length < header.body_length; length++) {
            uint8_t *exact = malloc(length != 0 ? length : 1);
            assert(exact != NULL);
            memcpy(exact, frame->bytes + sizeof header, length);
            if (ms_body_valid(header.kind, header.method, header.status, exact, length)) {
                bool is_padding = header.body_length - length < 8;
                bool is_sentence = header.kind == MS_ANSWER && header.status != MS_OK;
                bool is_optional = header.method == MS_PUT_START && header.kind == MS_ANSWER;
                bool is_nothing = length == 0; /* WRITE's answer */
                assert(is_padding || is_sentence || is_optional || is_nothing);
            }
            free(exact);
        }
    }
}

static ms_hash test_hash(const char *name, size_t length) {
    uint8_t secret[MS_SECRET_BYTES];
    for (unsigned i = 0; i < sizeof secret; i++)
        secret[i] = (uint8_t)i;
    return ms_hash_key(secret, "default", 7, name, length);
}

static void test_fields_are_where_the_golden_put_start_has_them(const golden_set *golden) {
    const golden_frame *frame = golden_find(golden, "put_start");
    ms_header header;
    memcpy(&header, frame->bytes, sizeof header);
    assert(header.magic == MS_MAGIC && header.version == 1 && header.kind == MS_REQUEST &&
           header.method == MS_PUT_START && header.status == 5000 && header.epoch == EPOCH);
    ms_reader reader = ms_reader_of(frame->bytes + sizeof header, header.body_length);
    ms_batch batch;
    ms_put_item_view item;
    assert(ms_reader_batch(&reader, sizeof(ms_put_item), &batch));
    assert(batch.number == 11 && batch.number_done == 10 && batch.count == 2);
    assert(ms_reader_put_item(&reader, &item));
    assert(ms_hash_equal(item.head.hash, test_hash(key, KEY_LENGTH)));
    assert(ms_hash_equal(item.head.parent, test_hash("k", 1)));
    assert(item.head.size == 10000 && item.head.ttl_ms == 3600000 &&
           item.head.deadline_ms == 60000);
    assert(item.head.group == 77 && item.head.replica_count == 2 &&
           item.head.replica_count_min == 2);
    assert(item.head.flags == (MS_PUT_UPSERT | MS_PUT_STRICT_REPLICAS));
    assert(item.head.preferred_server == 3);
    assert(item.head.spared_first == 2 && item.head.spared_second == 5);
    assert(item.head.key_length == KEY_LENGTH && memcmp(item.key, key, KEY_LENGTH) == 0);
    assert(ms_reader_put_item(&reader, &item));
    assert(item.head.size == 0 && ms_hash_is_none(item.head.parent));
    assert(ms_key_valid(item.key, item.head.key_length));
    assert(ms_reader_is_done(&reader));
}

static void expect(const golden_set *golden, const char *name, const ms_writer *writer) {
    const golden_frame *frame = golden_find(golden, name);
    ms_header header;
    memcpy(&header, frame->bytes, sizeof header);
    bool is_equal = writer->status == MS_OK && writer->length == header.body_length &&
                    memcmp(writer->data, frame->bytes + sizeof(ms_header), writer->length) == 0;
    if (!is_equal)
        fprintf(stderr, "what C writes is not the golden body of \"%s\"\n", name);
    assert(is_equal);
}

static void test_what_c_writes_is_golden(const golden_set *golden) {
    uint64_t version = ms_version(EPOCH, 41);
    ms_hash hash = test_hash(key, KEY_LENGTH);
    uint8_t memory[2048];
    ms_writer writer = ms_writer_fixed(memory, sizeof memory);

    ms_batch batch = {.number = 12, .number_done = 11, .count = 1};
    ms_end_item end = {.hash = hash,
                       .version = version,
                       .replica_mask = 3,
                       .checksum = CHECKSUM,
                       .flags = MS_OBJECT_HAS_CHECKSUM};
    MS_WRITER_STRUCT(&writer, &batch);
    MS_WRITER_STRUCT(&writer, &end);
    expect(golden, "put_end", &writer);

    ms_writer_reset(&writer);
    ms_location location = {.status = MS_OK,
                            .replica_count = 2,
                            .version = version,
                            .size = 10000,
                            .checksum = CHECKSUM,
                            .flags = MS_OBJECT_HAS_CHECKSUM | MS_OBJECT_SOFT_PIN,
                            .lifetime_ms = 30000};
    ms_replica first = {.server = 2, .incarnation = 9, .extent_count = 2, .state = 1};
    ms_replica second = {
        .server = 5, .incarnation = 1, .segment = 1, .extent_count = 1, .tier = 1, .state = 1};
    ms_extent extents[] = {{16, 2}, {1u << 20, 1}, {0, 3}};
    ms_writer_list(&writer, 2);
    MS_WRITER_STRUCT(&writer, &location);
    MS_WRITER_STRUCT(&writer, &first);
    ms_writer_bytes(&writer, extents, 2 * sizeof *extents);
    MS_WRITER_STRUCT(&writer, &second);
    ms_writer_bytes(&writer, extents + 2, sizeof *extents);
    ms_writer_no_location(&writer, MS_NOT_FOUND);
    expect(golden, "lookup answered", &writer);

    ms_writer_reset(&writer);
    ms_seal seal = {.hash = hash,
                    .size = 10000,
                    .expiry_ms = 1800000000000,
                    .parent = test_hash("k", 1),
                    .group = 77,
                    .number = 12,
                    .checksum = CHECKSUM,
                    .part = 1,
                    .part_count = 2,
                    .key_length = KEY_LENGTH,
                    .flags = MS_OBJECT_HAS_CHECKSUM,
                    .tenant_length = 7};
    ms_write_item items[] = {
        {.page = 16, .page_count = 2, .version = version, .length = 5},
        {.page = 1u << 20,
         .page_count = 1,
         .version = version,
         .length = 3,
         .seal_length = ms_seal_length(7, KEY_LENGTH)},
        {.segment = 1,
         .page_count = 3,
         .source = 4,
         .source_offset = 8192,
         .version = version,
         .offset = 4096,
         .length = 5904},
    };
    ms_writer_array(&writer, items, 3, sizeof *items);
    ms_writer_seal(&writer, &seal, "default", key);
    expect(golden, "write with a seal", &writer);
    ms_write_view view;
    assert(ms_read_write(memory, writer.length, &view));
    assert(view.items.count == 3 && view.payload_length == 8);
    assert(view.seals_length == ms_seal_length(7, KEY_LENGTH));

    ms_writer_reset(&writer);
    ms_server_info server = {
        .incarnation = 9, .state = MS_MEMBER_READY, .server = 2, .segment_count = 2};
    golden_unhex("6b1f0c3e5d7a4c21b0d1e2f3a4b5c6d7", server.node_id, 16);
    golden_unhex("3f1c9d2ab47e4e0f8a5566778899aabb", server.boot_id, 16);
    ms_segment_info segments[] = {{0, 0, 262144, 16384}, {1, 1, 1u << 28, 1u << 28}};
    ms_writer_u32(&writer, 4);
    ms_writer_u32(&writer, 1);
    ms_writer_server(&writer, &server, segments, "node-a", "host-1",
                     "/run/user/1000/mooncake-store/node-a.sock", "127.0.0.1:40001,[::1]:40001");
    expect(golden, "members answered", &writer);
}

static void test_hello_views_have_the_strings(const golden_set *golden) {
    const golden_frame *frame = golden_find(golden, "hello from a store server");
    ms_hello_view hello;
    assert(
        ms_read_hello(frame->bytes + sizeof(ms_header), frame->length - sizeof(ms_header), &hello));
    assert(hello.head.role == MS_ROLE_SERVER && hello.head.pid == 17);
    assert(hello.tenant.length == 7 && memcmp(hello.tenant.data, "default", 7) == 0);
    assert(hello.server.segments.count == 2 && hello.server.host.length == 6);
    frame = golden_find(golden, "hello answered by a master");
    ms_hello_answer_view answer;
    assert(ms_read_hello_answer(frame->bytes + sizeof(ms_header), frame->length - sizeof(ms_header),
                                &answer));
    assert(answer.head.session == SESSION && answer.secret.length == MS_SECRET_BYTES);
    assert((uint8_t)answer.secret.data[191] == 191);
}

int main(void) {
    golden_set *golden = golden_open();
    test_reader_stops_at_the_end_and_stays_bad();
    test_counts_are_believed_only_if_the_items_can_be_there();
    test_padding_may_be_missing_only_at_the_end();
    test_locations_that_cannot_be_true_are_refused(golden);
    test_headers_are_refused_with_a_reason();
    test_versions_agree_on_the_newest_common_one();
    test_writer_keeps_its_bound_and_its_first_fault();
    test_writer_survives_every_allocation_that_fails();
    test_every_golden_frame_is_well_formed(golden);
    test_fields_are_where_the_golden_put_start_has_them(golden);
    test_what_c_writes_is_golden(golden);
    test_hello_views_have_the_strings(golden);
    free(golden);
    return 0;
}
