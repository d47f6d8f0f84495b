// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c client/src/breaker.c client/src/client.c client/src/get.c client/src/health.c client/src/lane.c client/src/location.c client/src/lookup.c client/src/node.c client/src/pins.c client/src/put.c client/src/session.c client/src/view.c client/src/write.c client/src/write_early.c client/src/write_list.c
/* A WRITE with relay that its server refuses as a whole says nothing about the master's connection; one that is not
 * answered leaves in doubt what still comes on it. */
#include "../../client/src/put.h"
#include "../../client/src/write_early.h"
#include "engine_kit.h"

#define BYTES 64u

typedef struct writing {
    kit server, master;
    te_engine *engine;
    te_channel *to_master;
    cl_client client;
    cl_node node;
    cl_location grant;
    cl_replica replica;
    ms_extent extent;
    uint8_t bytes[BYTES];
    cl_item item;
    cl_put_options options;
    cl_put_state state;
    cl_putting put;
} writing;

/* A put of one object whose grant and connection to the master are there. */
static writing *writing_open(uint8_t right) {
    writing *made = calloc(1, sizeof *made);
    CHECK(made != NULL);
    kit_open(&made->server, "127.0.0.1", false, MS_PAGE_SIZE, NULL);
    made->server.refuse_from = UINT64_MAX;
    kit_open(&made->master, "127.0.0.1", false, 0, NULL);
    made->engine = kit_asker();
    made->to_master = kit_channel(made->engine, made->master.address, NULL, 4);
    ms_hello hello = {.version_oldest = 1, .version_newest = 1, .right = right};
    te_channel_config config = {.addresses = made->server.address,
                                .hello = (const uint8_t *)&hello,
                                .hello_length = sizeof hello,
                                .connections_max = 4};
    CHECK_STATUS(te_channel_open(made->engine, &config, &made->node.writing), MS_OK);
    made->node.reading = kit_channel(made->engine, made->server.address, NULL, 4); /* is probed */
    made->node.incarnation = made->node.epoch_first = 1;
    atomic_store(&made->node.epoch_last, 1);
    made->client.engine = made->engine;
    made->client.config.allow_relay = true;
    cl_health_open(&made->client);
    pthread_mutex_init(&made->client.staging_lock, NULL);
    atomic_store(&made->client.epoch, 1);
    atomic_store(&made->client.nodes[0], &made->node);
    atomic_store(&made->client.nodes_end, 1);
    made->replica = (cl_replica){.segment = 2, .incarnation = 1, .extent_count = 1};
    made->extent = (ms_extent){.page_count = 1};
    made->grant = (cl_location){.replica_count = 1,
                                .version = 5,
                                .size = BYTES,
                                .epoch = 1,
                                .extent_count = 1,
                                .replicas = &made->replica,
                                .extents = &made->extent};
    made->item = (cl_item){
        .key = (const uint8_t *)"key", .key_length = 3, .memory = made->bytes, .size = BYTES};
    made->options.replica_count = 1;
    made->state.grant = &made->grant;
    made->put = (cl_putting){.client = &made->client,
                             .items = &made->item,
                             .count = 1,
                             .options = &made->options,
                             .deadline_ns = in_ms(10000),
                             .is_last = true,
                             .states = &made->state};
    CHECK_STATUS(te_checkout(made->to_master, in_ms(5000), &made->put.master), MS_OK);
    return made;
}

static void writing_close(writing *gone) {
    cl_health_stop(&gone->client);
    cl_health_close(&gone->client);
    te_channel_close(gone->node.reading);
    te_channel_close(gone->node.writing);
    te_channel_close(gone->to_master);
    te_engine_close(gone->engine);
    kit_close_all(&gone->server);
    kit_close_all(&gone->master);
    pthread_mutex_destroy(&gone->client.staging_lock);
    free(gone);
}

static void test_a_refusal_of_all_leaves_the_connection_to_the_master(void) {
    writing *on = writing_open(MS_RIGHT_READ);
    cl_failure failure = {0};
    bool is_done = true;
    CHECK_STATUS(cl_put_write(&on->put, &is_done, &failure), MS_REFUSED);
    CHECK(!is_done && on->state.sealed == 0);
    CHECK_STATUS(on->state.failed, MS_REFUSED);
    CHECK(on->put.master != NULL);
    te_checkin(on->put.master, true);
    te_reply reply = {0};
    CHECK_STATUS(te_call(on->to_master, MS_PING, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    CHECK(atomic_load(&on->master.hellos) == 1); /* over the same one */
    writing_close(on);
}

static void test_a_refusal_of_its_item_leaves_both_connections(void) {
    writing *on = writing_open(MS_RIGHT_READ | MS_RIGHT_WRITE);
    on->server.refuse_from = 0;
    on->server.refuse_write = MS_WRONG_EPOCH;
    cl_failure failure = {0};
    bool is_done = true;
    for (int turn = 0; turn < 2; turn++) {
        CHECK_STATUS(cl_put_write(&on->put, &is_done, &failure), MS_OK);
        CHECK(!is_done && on->state.sealed == 0 && on->put.master != NULL);
        CHECK_STATUS(on->state.failed, MS_WRONG_EPOCH);
    }
    CHECK(atomic_load(&on->server.hellos) == 1);
    te_checkin(on->put.master, true);
    writing_close(on);
}

static void test_a_write_that_is_not_answered_ends_both_connections(void) {
    writing *on = writing_open(MS_RIGHT_READ | MS_RIGHT_WRITE);
    on->server.swallow_done = true;
    on->put.deadline_ns = in_ms(300);
    cl_failure failure = {0};
    bool is_done = true;
    CHECK_STATUS(cl_put_write(&on->put, &is_done, &failure), MS_TIMEOUT);
    CHECK(!is_done && on->state.is_unclear && on->put.master == NULL);
    wait_at_least(&on->server.closes, 1);
    wait_at_least(&on->master.closes, 1);
    writing_close(on);
}

/* Two values that go over one connection, as both halves of a batch do. */
typedef struct pair {
    writing *on;
    cl_write_early first, second;
    cl_putting put;
    cl_item item;
    cl_put_state state;
    cl_failure failure;
} pair;

static void pair_send(pair *both, uint8_t right) {
    writing *on = both->on = writing_open(right);
    te_checkin(on->put.master, true);
    on->put.master = NULL;
    on->client.config.allow_relay = false;
    both->state = (cl_put_state){.grant = &on->grant};
    both->item = on->item;
    both->put = on->put;
    both->put.items = &both->item;
    both->put.states = &both->state;
    CHECK(cl_write_early_begin(&both->first, &on->put, NULL));
    CHECK(cl_write_early_begin(&both->second, &both->put, &both->first));
    CHECK(both->first.connection == both->second.connection);
}

static void test_a_refusal_of_all_is_told_to_both(void) {
    pair both = {0};
    pair_send(&both, MS_RIGHT_READ);
    CHECK_STATUS(cl_write_early_end(&both.first, &both.on->put, &both.failure), MS_REFUSED);
    (void)cl_write_early_end(&both.second, &both.put,
                             &both.failure); /* it was asked again, alone */
    CHECK(both.on->state.sealed == 0 && both.state.sealed == 0);
    CHECK_STATUS(both.on->state.failed, MS_REFUSED);
    CHECK_STATUS(both.state.failed, MS_REFUSED);
    writing_close(both.on);
}

static void test_both_are_answered(void) {
    pair both = {0};
    pair_send(&both, MS_RIGHT_READ | MS_RIGHT_WRITE);
    CHECK_STATUS(cl_write_early_end(&both.first, &both.on->put, &both.failure), MS_OK);
    CHECK_STATUS(cl_write_early_end(&both.second, &both.put, &both.failure), MS_OK);
    CHECK(both.on->state.sealed == 1 && both.state.sealed == 1);
    CHECK(atomic_load(&both.on->server.hellos) == 1);
    writing_close(both.on);
}

int main(int argc, char **argv) {
    RUN(test_a_refusal_of_all_leaves_the_connection_to_the_master);
    RUN(test_a_refusal_of_its_item_leaves_both_connections);
    RUN(test_a_write_that_is_not_answered_ends_both_connections);
    RUN(test_a_refusal_of_all_is_told_to_both);
    RUN(test_both_are_answered);
    return 0;
}
