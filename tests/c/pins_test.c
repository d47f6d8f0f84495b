// sources: client/src/pins.c mooncake_store/protocol/src/*.c
// variants: plain address
/* What a client states of its pins when answers are lost: the master's part is a count here, and an answer is lost where
 * a real network would hardly ever lose it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../client/src/cl_internal.h"

#define NS_PER_S INT64_C(1000000000)

static uint32_t counted; /* of the one key, by the master */
static int stated;       /* how often */
static bool loses_answer;

int64_t te_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

ms_status cl_master_check(cl_client *client, const char *stage, int64_t deadline_ns,
                          cl_failure *failure) {
    (void)client, (void)stage, (void)deadline_ns, (void)failure;
    return MS_OK;
}

ms_status cl_fail(cl_failure *failure, ms_status status, const char *stage, const char *node,
                  const char *format, ...) {
    (void)failure, (void)stage, (void)node, (void)format;
    return status;
}

/* PINS of one key. */
ms_status te_call(te_channel *channel, uint16_t method, uint32_t flags, const struct iovec *body,
                  size_t body_count, te_reply *reply, int64_t deadline_ns) {
    (void)channel, (void)flags, (void)deadline_ns;
    assert(method == MS_PINS && body_count == 2 && body[1].iov_len == sizeof(ms_pins_item));
    counted = ((const ms_pins_item *)body[1].iov_base)->count;
    stated++;
    if (loses_answer)
        return MS_TIMEOUT;
    const uint32_t statuses[3] = {1, 0, MS_OK}; /* a list: its head, then the items */
    reply->body = malloc(sizeof statuses);
    assert(reply->body != NULL);
    memcpy(reply->body, statuses, sizeof statuses);
    reply->header = (ms_header){.status = MS_OK, .body_length = sizeof statuses};
    return MS_OK;
}

static const ms_hash key = {.low = 1, .high = 2};
static cl_client client;

static void begin(cl_pins_call *call) {
    assert(cl_pins_call_begin(&client, call, 1, "test", te_now_ns() + NS_PER_S, NULL) == MS_OK);
}

static void pin_for(uint32_t deadline_ms) {
    cl_pins_call call;
    begin(&call);
    counted++;
    cl_pins_add(&client, &call, key, deadline_ms);
    cl_pins_call_end(&client, &call);
}

static void pin(void) { pin_for(0); }

/* Whether it was one of this client's pins. */
static bool unpin(void) {
    cl_pins_call call;
    begin(&call);
    bool was_there = counted != 0;
    counted -= was_there;
    bool is_known = cl_pins_drop(&client, &call, key, was_there);
    cl_pins_call_end(&client, &call);
    return was_there || is_known;
}

static void open_client(void) {
    client = (cl_client){0};
    atomic_store(&client.session, 1);
    assert(cl_pins_open(&client));
    counted = 0;
    stated = 0;
}

/* The master has handled a statement in a new session, and its answer is lost; an unpin comes before the next one. */
static void test_an_unpin_stays_when_the_answer_to_pins_is_lost(void) {
    open_client();
    pin();
    pin();
    atomic_store(&client.session, 2); /* the pins of the first are lost with it */
    counted = 0;
    loses_answer = true;
    cl_pins_settle(&client);
    loses_answer = false;
    assert(stated == 1 && counted == 2);
    assert(unpin() && counted == 1);
    cl_pins_settle(&client);
    assert(stated == 2 && counted == 1);
    assert(unpin() && counted == 0);
    cl_pins_settle(&client);
    assert(counted == 0 && !cl_pins_any(&client));
    assert(!unpin());
    cl_pins_close(&client);
}

/* The keeper has more to do than this. */
static void test_a_long_call_does_not_stop_the_keeper(void) {
    open_client();
    pin();
    atomic_store(&client.session, 2);
    cl_pins_call call;
    begin(&call); /* one that is not answered for long */
    int64_t begun_ns = te_now_ns();
    cl_pins_settle(&client);
    assert(te_now_ns() - begun_ns < 5 * NS_PER_S && stated == 0);
    cl_pins_call_end(&client, &call);
    cl_pins_settle(&client);
    assert(stated == 1 && counted == 1);
    assert(unpin() && !unpin());
    cl_pins_close(&client);
}

static void wait_for_the_end_of_pins(void) {
    int64_t until_ns = te_now_ns() + 30 * NS_PER_S;
    while (cl_pins_any(&client)) {
        assert(te_now_ns() < until_ns);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Whatever has been looked at before: pins end, one after the other, and later ones too. */
static void test_pins_that_have_ended_are_forgotten(void) {
    open_client();
    pin_for(1);
    wait_for_the_end_of_pins();
    assert(!cl_pins_any(&client));
    pin_for(200000);
    assert(cl_pins_any(&client));
    cl_pins_call call;
    begin(&call);
    cl_pins_add(&client, &call, (ms_hash){.low = 3, .high = 4}, 2);
    cl_pins_call_end(&client, &call);
    assert(cl_pins_any(&client));
    assert(unpin());
    wait_for_the_end_of_pins();
    cl_pins_close(&client);
}

/* One that was not certain ends as others do when it is. */
static void test_a_pin_that_has_become_certain_ends(void) {
    open_client();
    pin_for(300);
    cl_pins_call call;
    begin(&call);
    cl_pins_unheard(&client, &call, key, false);
    cl_pins_add(&client, &call, (ms_hash){.low = 3, .high = 4}, 1);
    cl_pins_call_end(&client, &call);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert(cl_pins_any(&client)); /* the other one has ended */
    cl_pins_settle(&client);
    assert(stated == 1);
    wait_for_the_end_of_pins();
    cl_pins_close(&client);
}

/* That there was nothing to be stated does not hide what comes later. */
static void test_what_comes_later_is_stated_too(void) {
    open_client();
    pin();
    cl_pins_settle(&client);
    cl_pins_settle(&client);
    assert(stated == 0);
    cl_pins_call call;
    begin(&call);
    cl_pins_unheard(&client, &call, key, false);
    cl_pins_call_end(&client, &call);
    cl_pins_settle(&client);
    assert(stated == 1);
    cl_pins_settle(&client);
    assert(stated == 1);
    begin(&call);
    atomic_store(&client.session, 2);
    cl_pins_add(&client, &call, key, 0); /* in which of both sessions it was is not known */
    cl_pins_call_end(&client, &call);
    cl_pins_settle(&client);
    assert(stated == 2);
    atomic_store(&client.session, 3);
    cl_pins_settle(&client);
    assert(stated == 3);
    cl_pins_settle(&client);
    assert(stated == 3);
    cl_pins_close(&client);
}

/* Calls that began in the session before: in which of both they were counted is not known. */
static void test_calls_of_an_earlier_session_are_stated_too(void) {
    cl_pins_call early, late;
    open_client();
    begin(&early);
    begin(&late);
    atomic_store(&client.session, 2);
    cl_pins_settle(&client);
    cl_pins_add(&client, &early, key, 0);
    cl_pins_call_end(&client, &early);
    cl_pins_call_end(&client, &late);
    cl_pins_settle(&client);
    assert(stated == 1);
    pin();
    begin(&late);
    late.session = 1;
    cl_pins_settle(&client);
    assert(stated == 1);
    assert(!cl_pins_drop(&client, &late, key, true));
    cl_pins_call_end(&client, &late);
    cl_pins_settle(&client);
    assert(stated == 2);
    cl_pins_close(&client);
}

/* A keeper that was held up states a pin that has ended since it looked; a hole in its slot would hide others. */
static void test_a_pin_that_ends_before_it_is_stated_is_forgotten(void) {
    open_client();
    pin_for(20);
    assert(cl_pins_any(&client));
    atomic_store(&client.session, 2);
    nanosleep(&(struct timespec){.tv_nsec = 40000000}, NULL);
    cl_pins_settle(&client);
    assert(stated == 1 && counted == 0);
    assert(!cl_pins_any(&client));
    cl_pins_settle(&client);
    assert(stated == 1);
    cl_pins_close(&client);
}

int main(void) {
    test_calls_of_an_earlier_session_are_stated_too();
    test_pins_that_have_ended_are_forgotten();
    test_a_pin_that_has_become_certain_ends();
    test_a_pin_that_ends_before_it_is_stated_is_forgotten();
    test_what_comes_later_is_stated_too();
    test_an_unpin_stays_when_the_answer_to_pins_is_lost();
    test_a_long_call_does_not_stop_the_keeper();
    return 0;
}
