// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 300
/* The metadata core: tasks (drain, repair, replicate, move), servers that have just joined, hosts. */
#include "md_memory.h"
#include "metadata_kit.h"

static ms_task task_of(uint64_t id) {
    ms_task task;
    EXPECT(md_task_get(h->core, h->now, id, &task) == MS_OK);
    return task;
}

static uint64_t drain_server(uint32_t server) {
    uint64_t id = 0;
    EXPECT(md_server_drain(h->core, h->now, server, &id) == MS_OK && id != 0);
    harness_drain(h);
    return id;
}

static uint64_t start(uint32_t kind, const char *prefix, uint32_t count, uint32_t source,
                      uint32_t target) {
    ms_task_order order = {.kind = kind,
                           .source_server = source,
                           .target_server = target,
                           .replica_count = count,
                           .prefix_length = (uint32_t)strlen(prefix)};
    uint64_t id = 0;
    EXPECT(md_task_start(h->core, h->now, 0, &order, (const uint8_t *)prefix, &id) == MS_OK);
    harness_drain(h);
    return id;
}

static ms_status put_at(const char *key, uint32_t server, uint8_t replica_count) {
    ms_put_item item = harness_item(h, key, 4096);
    item.replica_count = replica_count;
    item.preferred_server = server + 1;
    return harness_put_item(h, key, &item);
}

static uint64_t objects_at(uint32_t server) {
    md_server_view view;
    EXPECT(md_server_get(h->core, server, &view) == MS_OK);
    return view.object_count;
}

static uint32_t replicas_of(const char *key) {
    ms_location_view location;
    return harness_lookup(h, key, &location) == MS_OK ? location.head.replica_count : 0;
}

static void open_without_bound(void) {
    md_config config;
    md_config_default(&config);
    config.copy_bytes_per_s = 0;
    config.repair_delay_ms = 2000;
    config.ramp_ms = 0;
    harness_open(h, &config);
}

static void a_drained_server_has_nothing_left(void) {
    open_without_bound();
    for (uint32_t i = 0; i < 3; i++)
        harness_add_server(h, i, 1000);
    for (uint32_t i = 0; i < 300; i++)
        EXPECT(put_at(name(i), i % 3, i % 2 == 0 ? 1 : 2) == MS_OK);
    uint64_t before = objects_at(0);
    EXPECT(before > 100);
    uint64_t id = drain_server(0), again = drain_server(0);
    EXPECT(id == again && task_of(id).kind == MS_TASK_DRAIN);
    EXPECT(task_of(id).objects_total == before);
    EXPECT(put_at("new", 0, 1) == MS_OK && objects_at(0) <= before); /* not there */
    harness_advance(h, 3000);
    ms_task task = task_of(id);
    EXPECT(task.state == MS_TASK_DONE && task.ended_ms != 0 && task.objects_failed == 0);
    EXPECT(objects_at(0) == 0 && pages_free(0) == 1000 && task.objects_done == before);
    EXPECT(task.bytes_done == before * 4096 && task.objects_total == before);
    for (uint32_t i = 0; i < 300; i++)
        EXPECT(replicas_of(name(i)) == (i % 2 == 0 ? 1 : 2));
    EXPECT(harness_counter(h, "replicas_short") == 0);
    harness_check(h);
    md_server_view view;
    EXPECT(md_server_get(h->core, 0, &view) == MS_OK && view.state == MS_MEMBER_DRAINING);
    EXPECT(md_server_undrain(h->core, h->now, 0) == MS_OK);
    EXPECT(md_server_get(h->core, 0, &view) == MS_OK && view.state == MS_MEMBER_READY);
    EXPECT(task_of(id).state == MS_TASK_CANCELLED);
    EXPECT(put_at("back", 0, 1) == MS_OK && objects_at(0) == 1);
    harness_close(h);
}

static void a_drain_says_what_cannot_move_and_why(void) {
    open_without_bound();
    harness_add_server(h, 0, 20);
    harness_add_server(h, 1, 4);
    ms_put_item item = harness_item(h, "large", 6 * 4096);
    item.preferred_server = 1;
    EXPECT(harness_put_item(h, "large", &item) == MS_OK);
    for (uint32_t i = 0; i < 4; i++) { /* the other server is full, and nothing may leave there */
        item = harness_item(h, name(i), 4096);
        item.preferred_server = 2;
        item.flags = MS_PUT_HARD_PIN;
        EXPECT(harness_put_item(h, name(i), &item) == MS_OK);
    }
    EXPECT(objects_at(1) == 4 && put_at("small", 0, 1) == MS_OK);
    ms_location_view open;
    item = harness_item(h, "open", 4096);
    item.preferred_server = 1;
    EXPECT(harness_start_item(h, "open", &item, 1, &open) == MS_OK);
    uint64_t id = drain_server(0);
    EXPECT(harness_end(h, "open", open.head.version, 1, 2) == MS_OK);
    harness_advance(h, 12000);
    ms_task task = task_of(id);
    EXPECT(task.state == MS_TASK_BLOCKED && task.ended_ms == 0);
    EXPECT(task.objects_failed == 3 && task.sole_left == 3 && task.objects_left == 3);
    EXPECT(harness_counter(h, "evicted") == 0); /* nothing in vain */
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    ms_tasks asked = {.task = id, .failures_max = 2};
    EXPECT(md_tasks_write(h->core, h->now, &asked, &out) == MS_OK);
    ms_reader reader = ms_reader_of(out.data, out.length);
    EXPECT(ms_reader_u32(&reader) == 1 && ms_reader_u32(&reader) == 0);
    MS_READER_STRUCT(&reader, &task);
    EXPECT(task.failure_count == 2 && task.task == id);
    ms_task_failure failure;
    MS_READER_STRUCT(&reader, &failure);
    EXPECT(failure.status == MS_NO_SPACE || failure.status == MS_TOO_LARGE);
    asked.task = 77;
    EXPECT(md_tasks_write(h->core, h->now, &asked, &out) == MS_NOT_FOUND);
    harness_check(h);
    /* Room comes: it goes on by itself. */
    harness_add_server(h, 2, 100);
    harness_advance(h, 3000);
    EXPECT(task_of(id).state == MS_TASK_DONE && objects_at(0) == 0);
    EXPECT(replicas_of("large") == 1 && replicas_of("small") == 1 && replicas_of("open") == 1);
    harness_close(h);
}

static void the_last_server_cannot_be_drained(void) {
    open_without_bound();
    harness_add_server(h, 0, 20);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    uint64_t id = drain_server(0);
    harness_advance(h, 1000);
    EXPECT(task_of(id).state == MS_TASK_BLOCKED && task_of(id).sole_left == 1);
    EXPECT(harness_put(h, "b", 4096) == MS_UNAVAILABLE && replicas_of("a") == 1);
    EXPECT(md_task_cancel(h->core, h->now, id) == MS_BAD_REQUEST); /* undrain */
    EXPECT(md_server_undrain(h->core, h->now, 0) == MS_OK && harness_put(h, "b", 4096) == MS_OK);
    harness_close(h);
}

/* A new master was told of the drain before the server came. */
static void a_drain_waits_for_its_server(void) {
    open_without_bound();
    uint8_t node[16] = {1};
    uint32_t server;
    uint64_t id = ms_task_id(1, 77);
    EXPECT(md_server_expect(h->core, h->now, node, &server) == MS_OK);
    EXPECT(md_server_find(h->core, node) == server);
    EXPECT(md_server_drain(h->core, h->now, server, &id) == MS_OK && id == ms_task_id(1, 77));
    harness_add_server(h, 1, 100);
    harness_advance(h, 500);
    EXPECT(task_of(id).state == MS_TASK_WAITING);
    EXPECT(harness_join_as(h, 0, 1, 100, 100, "", &server) == MS_OK && server == 0);
    EXPECT(tell(0, 1, "a", 5, 4096, 3, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, 0, 1) == MS_OK);
    harness_advance(h, 1000);
    EXPECT(task_of(id).state == MS_TASK_DONE && objects_at(0) == 0 && objects_at(1) == 1);
    harness_close(h);
}

/* The other replica is not known yet when the server that drains has told what it has. */
static void a_drain_waits_for_the_inventories(void) {
    open_without_bound();
    uint8_t nodes[3][16] = {{1}, {2}, {3}};
    uint32_t server;
    uint64_t id = 0;
    for (uint32_t i = 0; i < 3; i++)
        EXPECT(md_server_expect(h->core, h->now, nodes[i], &server) == MS_OK && server == i);
    EXPECT(md_server_drain(h->core, h->now, 0, &id) == MS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        EXPECT(harness_join_as(h, i, 1, 100, 100, "", &server) == MS_OK && server == i);
        if (i == 0)
            EXPECT(tell(0, 1, "a", 5, 4096, 3, 1, 0, 1) == MS_OK);
        EXPECT(md_inventory_end(h->core, h->now, i, 1) == MS_OK);
    }
    harness_advance(h, 3000);
    EXPECT(h->copy_count == 0 && task_of(id).state == MS_TASK_RUNNING);
    EXPECT(harness_join_as(h, 2, 1, 100, 100, "", &server) == MS_OK && server == 2);
    EXPECT(tell(2, 1, "a", 5, 4096, 7, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, 2, 1) == MS_OK);
    harness_advance(h, 1000);
    EXPECT(task_of(id).state == MS_TASK_DONE && objects_at(0) == 0 && h->copy_count == 0);
    EXPECT(objects_at(2) == 1);
    harness_close(h);
    /* One that does not come is not waited for. */
    open_without_bound();
    for (uint32_t i = 0; i < 3; i++)
        EXPECT(md_server_expect(h->core, h->now, nodes[i], &server) == MS_OK);
    EXPECT(md_server_drain(h->core, h->now, 0, &id) == MS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        EXPECT(harness_join_as(h, i, 1, 100, 100, "", &server) == MS_OK);
        if (i == 0)
            EXPECT(tell(0, 1, "a", 5, 4096, 3, 1, 0, 1) == MS_OK);
        EXPECT(md_inventory_end(h->core, h->now, i, 1) == MS_OK);
    }
    harness_advance(h, 12000);
    EXPECT(task_of(id).state == MS_TASK_DONE && objects_at(1) == 1);
    harness_close(h);
}

static void what_lost_a_replica_is_copied_again(void) {
    open_without_bound();
    for (uint32_t i = 0; i < 3; i++)
        harness_add_server(h, i, 1000);
    for (uint32_t i = 0; i < 90; i++)
        EXPECT(put_at(name(i), i % 3, 2) == MS_OK);
    uint64_t at_1 = objects_at(1);
    harness_advance(h, 3000);
    md_server_gone(h->core, h->now, 1, 1);
    harness_advance(h, 9900);
    EXPECT(h->copy_count == 0); /* its grace is not over */
    harness_advance(h, 1000);
    EXPECT(harness_counter(h, "objects_short") == 0 && objects_at(0) + objects_at(2) == 180);
    EXPECT(harness_counter(h, "task_bytes") == at_1 * 4096);
    for (uint32_t i = 0; i < 90; i++)
        EXPECT(replicas_of(name(i)) == 2);
    harness_close(h);
}

static void repair_waits_and_keeps_its_pace(void) {
    md_config config;
    md_config_default(&config);
    config.member_grace_ms = 100;
    config.repair_delay_ms = 5000;
    config.copy_bytes_per_s = 40 * 4096; /* of two copies each: 20 objects a second */
    harness_open(h, &config);
    for (uint32_t i = 0; i < 3; i++)
        harness_add_server(h, i, 1000);
    for (uint32_t i = 0; i < 100; i++)
        EXPECT(put_at(name(i), i % 3, 2) == MS_OK);
    harness_advance(h, 6000);
    uint64_t lost = objects_at(2);
    md_server_gone(h->core, h->now, 2, 1);
    harness_advance(h, 4900);
    EXPECT(harness_counter(h, "objects_short") == lost && h->copy_count == 0);
    harness_advance(h, 1100);
    uint64_t done = lost - harness_counter(h, "objects_short");
    EXPECT(done >= 15 && done <= 30);
    harness_advance(h, 1000);
    uint64_t more = lost - harness_counter(h, "objects_short") - done;
    EXPECT(more >= 17 && more <= 23);
    /* Cancelled, it does not begin again at once. */
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    ms_tasks all = {0};
    EXPECT(md_tasks_write(h->core, h->now, &all, &out) == MS_OK);
    ms_reader reader = ms_reader_of(out.data, out.length);
    EXPECT(ms_reader_u32(&reader) == 1 && ms_reader_u32(&reader) == 0);
    ms_task task;
    MS_READER_STRUCT(&reader, &task);
    EXPECT(task.kind == MS_TASK_REPAIR && task.state == MS_TASK_RUNNING);
    EXPECT(md_task_cancel(h->core, h->now, task.task) == MS_OK);
    EXPECT(md_task_cancel(h->core, h->now, task.task) == MS_COMPLETE);
    EXPECT(md_task_cancel(h->core, h->now, 99) == MS_NOT_FOUND);
    harness_advance(h, 5000);
    EXPECT(lost - harness_counter(h, "objects_short") - done - more <= 24); /* under way */
    /* Begun by hand, and without a bound from now on. */
    h->config.copy_bytes_per_s = 0;
    md_reconfigure(h->core, &h->config);
    start(MS_TASK_REPAIR, "", 0, 0, 0);
    harness_advance(h, 300);
    EXPECT(harness_counter(h, "objects_short") == 0);
    harness_close(h);
}

/* Each restart of a server puts repair off, but not for ever. */
static void a_server_that_comes_and_goes_does_not_stop_repair(void) {
    md_config config;
    md_config_default(&config);
    config.member_grace_ms = 100;
    config.repair_delay_ms = 5000;
    harness_open(h, &config);
    for (uint32_t i = 0; i < 4; i++)
        harness_add_server(h, i, 1000);
    ms_put_item item = harness_item(h, "a", 4096);
    item.replica_count = 2;
    item.preferred_server = 1;
    EXPECT(harness_put_item(h, "a", &item) == MS_OK);
    ms_location_view there;
    EXPECT(harness_lookup(h, "a", &there) == MS_OK);
    uint32_t second = there.replicas[1].head.server, flapping = second == 3 ? 2 : 3;
    md_server_gone(h->core, h->now, second, 1);
    for (uint32_t i = 0; i < 4; i++) {
        harness_advance(h, 4000);
        EXPECT(replicas_of("a") == 1);
        md_server_gone(h->core, h->now, flapping, i + 1);
        uint32_t server;
        EXPECT(harness_join_as(h, flapping, i + 2, 1000, 1000, "", &server) == MS_OK);
        EXPECT(md_inventory_end(h->core, h->now, flapping, i + 2) == MS_OK);
    }
    harness_advance(h, 4500);
    EXPECT(replicas_of("a") == 2);
    harness_close(h);
}

static void all_objects_of_a_prefix_get_replicas(void) {
    open_without_bound();
    for (uint32_t i = 0; i < 3; i++)
        harness_add_server(h, i, 1000);
    for (uint32_t i = 0; i < 20; i++)
        EXPECT(put_at(name(i), i % 3, (uint8_t)(i % 3 + 1)) == MS_OK);
    EXPECT(put_at("other", 0, 1) == MS_OK);
    uint64_t id = start(MS_TASK_REPLICATE, "key-", 2, 0, 0);
    harness_advance(h, 1000);
    ms_task task = task_of(id);
    EXPECT(task.state == MS_TASK_DONE && task.objects_done == 13 && task.objects_total == 13);
    EXPECT(task.bytes_done == 7 * 4096 && task.bytes_total == 7 * 4096);
    for (uint32_t i = 0; i < 20; i++)
        EXPECT(replicas_of(name(i)) == 2);
    EXPECT(replicas_of("other") == 1 && harness_counter(h, "objects_short") == 0);
    /* More than there can be: as many as there can be, and short of the rest. */
    id = start(MS_TASK_REPLICATE, "oth", 5, 0, 0);
    harness_advance(h, 1000);
    EXPECT(task_of(id).state == MS_TASK_DONE && replicas_of("other") == 3);
    EXPECT(harness_counter(h, "replicas_short") == 2);
    harness_close(h);
}

static void all_objects_of_a_prefix_move(void) {
    open_without_bound();
    for (uint32_t i = 0; i < 3; i++)
        harness_add_server(h, i, 1000);
    for (uint32_t i = 0; i < 20; i++)
        EXPECT(put_at(name(i), 0, 1) == MS_OK);
    EXPECT(put_at("other", 0, 1) == MS_OK);
    uint64_t id = start(MS_TASK_MOVE, "key-1", 0, 1, 3);
    harness_advance(h, 1000);
    EXPECT(task_of(id).state == MS_TASK_DONE && task_of(id).objects_done == 11);
    EXPECT(objects_at(0) == 10 && objects_at(2) == 11);
    ms_task_order wrong = {.kind = MS_TASK_MOVE, .source_server = 1, .target_server = 1};
    EXPECT(md_task_start(h->core, h->now, 0, &wrong, NULL, &id) == MS_BAD_REQUEST);
    wrong.target_server = 9;
    EXPECT(md_task_start(h->core, h->now, 0, &wrong, NULL, &id) == MS_NOT_REGISTERED);
    wrong = (ms_task_order){.kind = MS_TASK_REPLICATE, .replica_count = 17};
    EXPECT(md_task_start(h->core, h->now, 0, &wrong, NULL, &id) == MS_BAD_REQUEST);
    wrong.kind = 9;
    EXPECT(md_task_start(h->core, h->now, 0, &wrong, NULL, &id) == MS_BAD_REQUEST);
    for (uint32_t i = 0; i < 3 * 64; i++) { /* only the last ones are kept */
        start(MS_TASK_REPLICATE, "none", 1, 0, 0);
        harness_advance(h, 300);
    }
    harness_close(h);
}

static void a_failed_copy_is_told_and_tried_again(void) {
    open_without_bound();
    harness_add_server(h, 0, 100);
    harness_add_server(h, 1, 100);
    EXPECT(put_at("a", 0, 1) == MS_OK);
    h->copy_status = MS_IO_ERROR;
    uint64_t id = drain_server(0);
    harness_advance(h, 1000);
    EXPECT(task_of(id).state == MS_TASK_BLOCKED && task_of(id).objects_failed == 1);
    h->copy_status = MS_OK;
    harness_advance(h, 15000);
    EXPECT(task_of(id).state == MS_TASK_DONE && objects_at(0) == 0);
    /* A server that goes in the middle takes its changes along. */
    EXPECT(md_session_open(h->core, h->now, (const uint8_t *)"default", 7, &h->session) == MS_OK);
    EXPECT(put_at("b", 1, 1) == MS_OK);
    EXPECT(md_server_undrain(h->core, h->now, 0) == MS_OK);
    h->holds_copies = true;
    id = drain_server(1);
    harness_advance(h, 200);
    EXPECT(h->copy_count > 0);
    md_server_gone(h->core, h->now, 0, 1);
    harness_drain(h);
    harness_check(h);
    harness_advance(h, 1000);
    EXPECT(task_of(id).state == MS_TASK_BLOCKED);
    md_server_gone(h->core, h->now, 1, 1);
    harness_advance(h, 1000);
    EXPECT(task_of(id).state == MS_TASK_WAITING);
    harness_close(h);
}

static uint32_t new_ones_at(uint32_t server, uint32_t from, uint32_t count) {
    uint32_t there = 0;
    for (uint32_t i = from; i < from + count; i++) {
        ms_location_view location;
        EXPECT(harness_put(h, name(i), 4096) == MS_OK);
        EXPECT(harness_lookup(h, name(i), &location) == MS_OK);
        there += location.replicas[0].head.server == server;
    }
    return there;
}

static void a_new_server_gets_its_share_only(void) {
    md_config config;
    md_config_default(&config);
    config.ramp_ms = 10000;
    config.ramp_share_permille = 100;
    harness_open(h, &config);
    harness_add_server(h, 0, 10000);
    harness_add_server(h, 1, 10000);
    EXPECT(new_ones_at(1, 0, 1000) == 500); /* both began empty: none is new */
    harness_add_server(h, 2, 10000);
    uint32_t share = new_ones_at(2, 1000, 200);
    EXPECT(share >= 18 && share <= 21);
    harness_advance(h, 5000);
    share = new_ones_at(2, 1200, 200);
    EXPECT(share >= 105 && share <= 115); /* half of the way from 10 % to all */
    harness_advance(h, 5000);
    EXPECT(new_ones_at(2, 1400, 100) == 100); /* it has most room */
    /* No put is refused for it: what fits nowhere else goes there. */
    harness_add_server(h, 3, 20000);
    EXPECT(harness_put(h, "large", 15000ull * 4096) == MS_OK);
    EXPECT(objects_at(3) == 1);
    harness_close(h);
}

static uint32_t join_on(uint32_t node, const char *host) {
    uint32_t server;
    EXPECT(harness_join_as(h, node, 1, 1000, 1000, host, &server) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    return server;
}

static void replicas_go_to_distinct_hosts(void) {
    open_without_bound();
    join_on(0, "a");
    join_on(1, "a");
    join_on(2, "b");
    for (uint32_t i = 0; i < 50; i++) {
        ms_location_view location;
        EXPECT(put_at(name(i), i % 3, 2) == MS_OK);
        EXPECT(harness_lookup(h, name(i), &location) == MS_OK && location.head.replica_count == 2);
        EXPECT(location.replicas[0].head.server == 2 || location.replicas[1].head.server == 2);
    }
    EXPECT(harness_counter(h, "replicas_share_host") == 0);
    EXPECT(put_at("three", 0, 3) == MS_OK && replicas_of("three") == 3); /* two hosts: told */
    EXPECT(harness_counter(h, "replicas_share_host") == 1);
    /* Repair, too, looks at the hosts of those that stay. */
    join_on(3, "c");
    md_server_gone(h->core, h->now, 2, 1);
    harness_advance(h, 20000);
    for (uint32_t i = 0; i < 50; i++) {
        ms_location_view location;
        EXPECT(harness_lookup(h, name(i), &location) == MS_OK && location.head.replica_count == 2);
        EXPECT(location.replicas[0].head.server == 3 || location.replicas[1].head.server == 3);
    }
    EXPECT(harness_counter(h, "replicas_share_host") == 1);
    harness_close(h);
}

/* A pool that is full becomes a smaller pool: what was used last is kept, wherever it was. */
static void a_drain_of_a_full_pool_keeps_what_was_used_last(void) {
    open_without_bound();
    harness_add_server(h, 0, 40);
    harness_add_server(h, 1, 40);
    for (uint32_t i = 0; i < 72; i++) {
        EXPECT(put_at(name(i), i % 2, 1) == MS_OK);
        harness_advance(h, 10);
    }
    for (uint32_t i = 0; i < 72; i += 4) /* at both */
        EXPECT(replicas_of(name(i)) == 1 && replicas_of(name(i + 1)) == 1);
    uint64_t id = drain_server(0);
    harness_advance(h, 30000);
    EXPECT(task_of(id).state == MS_TASK_DONE && objects_at(0) == 0);
    uint32_t left = 0, used = 0;
    for (uint32_t i = 0; i < 72; i++)
        left += harness_exists(h, name(i));
    for (uint32_t i = 0; i < 72; i += 4)
        used += harness_exists(h, name(i)) + harness_exists(h, name(i + 1));
    EXPECT(left >= 36 && left <= 40 && used >= 34); /* of 36 */
    harness_close(h);
}

static void a_server_that_is_forgotten_drains_no_more(void) {
    open_without_bound();
    harness_add_server(h, 0, 100);
    harness_add_server(h, 1, 100);
    EXPECT(put_at("a", 0, 1) == MS_OK);
    h->holds_copies = true;
    uint64_t id = drain_server(0);
    harness_advance(h, 200);
    md_server_gone(h->core, h->now, 0, 1);
    harness_drain(h);
    EXPECT(md_server_forget(h->core, h->now, 0, 1000) == MS_OK);
    harness_advance(h, 500);
    EXPECT(task_of(id).state == MS_TASK_CANCELLED);
    harness_close(h);
}

/* Each allocation fails once: nothing is lost, and what was begun ends. */
static void tasks_get_over_want_of_memory(void) {
    for (uint64_t n = 1; n < 60; n++) {
        open_without_bound();
        for (uint32_t i = 0; i < 3; i++)
            harness_add_server(h, i, 200);
        for (uint32_t i = 0; i < 60; i++)
            EXPECT(put_at(name(i), i % 3, i % 2 == 0 ? 1 : 2) == MS_OK);
        md_memory_fail_after(n);
        uint64_t drain = 0, replicate = 0;
        ms_task_order order = {.kind = MS_TASK_REPLICATE, .replica_count = 2, .prefix_length = 4};
        ms_status status = md_server_drain(h->core, h->now, 0, &drain);
        EXPECT(status == MS_OK || status == MS_LIMIT);
        status = md_task_start(h->core, h->now, 0, &order, (const uint8_t *)"key-", &replicate);
        EXPECT(status == MS_OK || status == MS_NO_MEMORY);
        harness_drain(h);
        harness_advance(h, 25000);
        md_memory_fail_after(0);
        harness_check(h);
        EXPECT(task_of(drain).state == MS_TASK_DONE && objects_at(0) == 0);
        for (uint32_t i = 0; i < 60; i++)
            EXPECT(replicas_of(name(i)) >= 1);
        harness_close(h);
    }
}

static bool is_at(const char *key, uint32_t server) {
    ms_location_view location;
    EXPECT(harness_lookup(h, key, &location) == MS_OK);
    for (uint32_t i = 0; i < location.head.replica_count; i++)
        if (location.replicas[i].head.server == server)
            return true;
    return false;
}

/* One host with its two servers is all that there was when they were put; then another one joins. */
static void replicas_spread_when_a_host_joins(void) {
    md_config config;
    md_config_default(&config);
    config.repair_delay_ms = 0;
    config.copy_bytes_per_s = 40 * 4096; /* one new copy, at 20 objects a second and more */
    harness_open(h, &config);
    EXPECT(join_on(0, "x") == 0 && join_on(1, "x") == 1);
    for (uint32_t i = 0; i < 60; i++)
        EXPECT(put_at(name(i), i % 2, 2) == MS_OK);
    EXPECT(put_at("sole", 0, 1) == MS_OK);
    harness_advance(h, 60000);
    EXPECT(h->copy_count == 0); /* nothing could be better */
    EXPECT(join_on(2, "y") == 2);
    harness_advance(h, 1000);
    uint64_t spread = objects_at(2);
    EXPECT(spread >= 10 && spread < 60); /* at its pace */
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    ms_tasks all = {0};
    EXPECT(md_tasks_write(h->core, h->now, &all, &out) == MS_OK);
    ms_reader reader = ms_reader_of(out.data, out.length);
    EXPECT(ms_reader_u32(&reader) == 1 && ms_reader_u32(&reader) == 0);
    ms_task task;
    MS_READER_STRUCT(&reader, &task);
    EXPECT(task.kind == MS_TASK_REPAIR && task.state == MS_TASK_RUNNING && task.objects_done > 0);
    harness_advance(h, 10000);
    EXPECT(objects_at(2) == 60 && objects_at(0) + objects_at(1) == 61);
    for (uint32_t i = 0; i < 60; i++)
        EXPECT(replicas_of(name(i)) == 2 && is_at(name(i), 2));
    EXPECT(replicas_of("sole") == 1 && is_at("sole", 0));
    EXPECT(task_of(task.task).state == MS_TASK_DONE && task_of(task.task).objects_failed == 0);
    uint32_t copies = h->copy_count;
    harness_advance(h, 600000); /* and then it stays as it is */
    EXPECT(h->copy_count == copies);
    harness_check(h);
    harness_close(h);
}

static void replicas_stay_where_no_other_host_is_better(void) {
    open_without_bound();
    EXPECT(join_on(0, "x") == 0 && join_on(1, "x") == 1 && join_on(2, "y") == 2);
    for (uint32_t i = 0; i < 20; i++)
        EXPECT(put_at(name(i), i % 3, 3) == MS_OK);
    harness_advance(h, 60000);
    EXPECT(h->copy_count == 0);
    EXPECT(join_on(3, "y") == 3);
    harness_advance(h, 60000);
    EXPECT(h->copy_count == 0);
    EXPECT(join_on(4, "z") == 4); /* one of each host */
    harness_advance(h, 10000);
    EXPECT(objects_at(4) == 20 && objects_at(0) + objects_at(1) == 20 && objects_at(2) == 20);
    harness_close(h);
}

/* There was a host, but no room on it; when there is, it is found without anybody joining. */
static void replicas_spread_when_there_is_room(void) {
    open_without_bound();
    EXPECT(join_on(0, "x") == 0 && join_on(1, "x") == 1);
    uint32_t server;
    EXPECT(harness_join_as(h, 2, 1, 2, 2, "y", &server) == MS_OK && server == 2);
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    harness_drain(h);
    EXPECT(put_at("full-1", 2, 1) == MS_OK && put_at("full-2", 2, 1) == MS_OK);
    EXPECT(put_at("a", 0, 2) == MS_OK && is_at("a", 0) && is_at("a", 1));
    harness_advance(h, 5000);
    EXPECT(h->copy_count == 0 && harness_counter(h, "evicted") == 0);
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    ms_tasks all = {.failures_max = 4};
    EXPECT(md_tasks_write(h->core, h->now, &all, &out) == MS_OK);
    ms_reader reader = ms_reader_of(out.data, out.length);
    EXPECT(ms_reader_u32(&reader) == 1 && ms_reader_u32(&reader) == 0);
    ms_task task;
    ms_task_failure failure;
    MS_READER_STRUCT(&reader, &task);
    EXPECT(task.kind == MS_TASK_REPAIR && task.objects_failed == 1 && task.failure_count == 1);
    MS_READER_STRUCT(&reader, &failure);
    EXPECT(failure.status == MS_NO_SPACE);
    ms_status removed = harness_remove(h, "full-1", false, 1);
    EXPECT(removed == MS_OK || removed == MS_PENDING);
    harness_drain(h);
    harness_advance(h, 30000);
    EXPECT(replicas_of("a") == 2 && is_at("a", 2));
    harness_close(h);
}

/* Nothing is remembered: another master finds them in the inventories, and one whose target goes in the middle begins
 * again when it is back. */
static void replicas_are_spread_by_the_next_master(void) {
    open_without_bound();
    uint32_t server;
    static const char *const hosts[] = {"x", "x", "y"};
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT(harness_join_as(h, i, 1, 100, 100, hosts[i], &server) == MS_OK && server == i);
        for (uint32_t key = 0; i < 2 && key < 10; key++) {
            ms_inventory_item item = {.hash = harness_hash(h, name(key)),
                                      .version = 5 + key,
                                      .size = 4096,
                                      .note = 5 + key,
                                      .page = key,
                                      .page_count = 1,
                                      .part_count = 1,
                                      .key_length = (uint16_t)strlen(name(key)),
                                      .flags = (uint8_t)ms_wanted_flags(2),
                                      .state = 1,
                                      .tenant_length = 7};
            EXPECT(md_inventory(h->core, h->now, i, 1, &item, (const uint8_t *)"default",
                                (const uint8_t *)name(key)) == MS_OK);
        }
        EXPECT(md_inventory_end(h->core, h->now, i, 1) == MS_OK);
        harness_drain(h);
    }
    h->holds_copies = true;
    harness_advance(h, 3000);
    EXPECT(h->copy_count > 0 && objects_at(2) == 0);
    md_server_gone(h->core, h->now, 2, 1);
    harness_drain(h);
    harness_check(h);
    h->holds_copies = false;
    EXPECT(harness_join_as(h, 2, 2, 100, 100, "y", &server) == MS_OK && server == 2);
    EXPECT(md_inventory_end(h->core, h->now, 2, 2) == MS_OK);
    harness_drain(h);
    harness_advance(h, 15000);
    for (uint32_t key = 0; key < 10; key++)
        EXPECT(replicas_of(name(key)) == 2 && is_at(name(key), 2));
    EXPECT(objects_at(2) == 10);
    harness_check(h);
    harness_close(h);
}

static void fewer_replicas_stay_on_distinct_hosts(void) {
    open_without_bound();
    EXPECT(join_on(0, "x") == 0 && join_on(1, "x") == 1 && join_on(2, "y") == 2);
    EXPECT(put_at("a", 0, 3) == MS_OK && replicas_of("a") == 3);
    start(MS_TASK_REPLICATE, "a", 2, 0, 0);
    harness_advance(h, 1000);
    EXPECT(replicas_of("a") == 2 && is_at("a", 2));
    harness_close(h);
}

int main(void) {
    h = malloc(sizeof *h);
    a_drain_of_a_full_pool_keeps_what_was_used_last();
    a_server_that_is_forgotten_drains_no_more();
    tasks_get_over_want_of_memory();
    a_drained_server_has_nothing_left();
    a_drain_says_what_cannot_move_and_why();
    the_last_server_cannot_be_drained();
    a_drain_waits_for_its_server();
    a_drain_waits_for_the_inventories();
    what_lost_a_replica_is_copied_again();
    repair_waits_and_keeps_its_pace();
    a_server_that_comes_and_goes_does_not_stop_repair();
    all_objects_of_a_prefix_get_replicas();
    all_objects_of_a_prefix_move();
    a_failed_copy_is_told_and_tried_again();
    a_new_server_gets_its_share_only();
    replicas_go_to_distinct_hosts();
    replicas_spread_when_a_host_joins();
    replicas_stay_where_no_other_host_is_better();
    replicas_spread_when_there_is_room();
    replicas_are_spread_by_the_next_master();
    fewer_replicas_stay_on_distinct_hosts();
    free(h);
    puts("ok");
    return 0;
}
