/* The connections of a channel: the pool, dead ones, other addresses and HELLOs, rails; and the engine's workers. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 200
#include "channel_kit.h"

/* ---- the pool --------------------------------------------------------------------------------------------- */

static bool always(void *match_context, void *peer_context) {
    (void)match_context;
    (void)peer_context;
    return true;
}

static void dead_connections_are_replaced(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 4);
    for (int round = 0; round < 5; round++) {
        call_echo(channel, "before");
        CHECK(te_close_matching(served.engine, always, NULL, "the test cuts") == 1);
        wait_at_least(&served.closes, 2 * round + 1);
        call_echo(channel, "after");
        CHECK(te_close_matching(served.engine, always, NULL, "the test cuts") == 1);
        wait_at_least(&served.closes, 2 * round + 2);
    }
    /* The whole process is another one, at the same address. */
    char address[64];
    snprintf(address, sizeof address, "%s", served.address);
    uint16_t port = served.port;
    kit_close_all(&served);
    te_reply reply = {0};
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(1000)), MS_UNAVAILABLE);
    te_engine_config config;
    te_engine_config_default(&config);
    te_engine *again;
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_engine_open(&config, &again), MS_OK);
    CHECK_STATUS(te_listen_tcp(again, "127.0.0.1", port, &port, error), MS_OK);
    CHECK_STATUS(te_call(channel, MS_PING, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    CHECK(reply.header.status == MS_OK);
    te_channel_close(channel);
    te_engine_close(asker);
    te_engine_close(again);
}

typedef struct outsider {
    te_channel *channel;
    ms_status status;
    int64_t waited_ms;
} outsider;

/* A thread that holds nothing. */
static void *come_from_outside(void *argument) {
    outsider *one = argument;
    te_connection *connection;
    int64_t begin = te_now_ns();
    one->status = te_checkout(one->channel, in_ms(60), &connection);
    one->waited_ms = elapsed_ms(begin);
    return NULL;
}

static void the_pool_is_bounded(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    te_connection *first, *second, *third, *fourth, *more;
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &first), MS_OK);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &second), MS_OK);
    CHECK(te_next_request(first) != te_next_request(second));
    outsider one = {.channel = channel};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, come_from_outside, &one) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_STATUS(one.status, MS_TIMEOUT);
    CHECK(one.waited_ms >= 59 && one.waited_ms < SLACK_MS);
    char error[TE_ERROR_BYTES];
    te_channel_error(channel, error);
    CHECK(strstr(error, "all 2 connections") != NULL);

    /* Who holds some already need not wait for others who do so too, up to twice as many. */
    CHECK_STATUS(te_checkout_try(channel, in_ms(1000), &more), MS_LIMIT);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &third), MS_OK);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &fourth), MS_OK);
    CHECK_STATUS(te_checkout(channel, in_ms(60), &more), MS_TIMEOUT);
    te_checkin(fourth, true); /* not kept: there are more than two */
    te_checkin(third, true);
    CHECK(atomic_load(&served.hellos) == 4);
    te_checkin(first, true);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &third), MS_OK);
    CHECK(third == first);
    te_checkin(second, false); /* closed: its place is free */
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &second), MS_OK);
    te_checkin(second, true);
    te_checkin(third, true);
    CHECK(atomic_load(&served.hellos) == 5);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

typedef struct caller {
    te_channel *channel;
    pthread_t thread;
    uint64_t number;
    int calls;
} caller;

static void *call_often(void *argument) {
    caller *own = argument;
    for (int i = 0; i < own->calls; i++) {
        uint64_t sent[2] = {own->number, (uint64_t)i}, back[2] = {0};
        struct iovec body = {.iov_base = sent, .iov_len = sizeof sent};
        te_reply reply = {.body = (uint8_t *)back, .body_size = sizeof back};
        CHECK_STATUS(te_call(own->channel, KIT_ECHO, 0, &body, 1, &reply, in_ms(20000)), MS_OK);
        CHECK(back[0] == sent[0] && back[1] == sent[1]);
    }
    return NULL;
}

static void threads_share_few_connections(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 3);
    caller callers[12];
    for (uint64_t i = 0; i < 12; i++) {
        callers[i] = (caller){.channel = channel, .number = i, .calls = 200};
        CHECK(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]) == 0);
    }
    for (int i = 0; i < 12; i++) {
        pthread_join(callers[i].thread, NULL);
    }
    CHECK(atomic_load(&served.hellos) <= 3 && atomic_load(&served.requests) == 2400);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

static void *call_silent(void *argument) {
    te_reply reply = {0};
    int64_t begin = te_now_ns();
    ms_status status = te_call(argument, KIT_SILENT, 0, NULL, 0, &reply, in_ms(4 * SLACK_MS));
    CHECK(status == MS_UNAVAILABLE || status == MS_CLOSED);
    CHECK(elapsed_ms(begin) < SLACK_MS);
    return NULL;
}

static void closing_a_channel_wakes_its_callers(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    pthread_t threads[3]; /* one of them waits for a connection */
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&threads[i], NULL, call_silent, channel) == 0);
    }
    wait_at_least(&served.requests, 2);
    usleep(10000);
    te_channel_close(channel);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    te_engine_close(asker);
    kit_close_all(&served);
}

/* Another leader: who waits for the old one is let go, and everything from then on goes to the new one. */
static void a_channel_moves_to_another_peer(void) {
    kit served[2];
    for (int i = 0; i < 2; i++)
        kit_open(&served[i], "127.0.0.1", true, 0, NULL);
    te_engine *asker = kit_asker();
    for (int over_unix = 0; over_unix < 2; over_unix++) {
        /* Two rails, so that there is room for a socket. */
        char addresses[256];
        snprintf(addresses, sizeof addresses, "%s,%s", served[0].address, served[0].address);
        te_channel *channel = kit_channel(asker, addresses, NULL, 2);
        te_channel_health health;
        te_channel_get_health(channel, &health);
        CHECK(health.failures == 0 && health.waiting_ns == 0);
        call_echo(channel, "at the first");
        te_channel_get_health(channel, &health);
        CHECK(health.failures == 0 && health.waiting_ns == 0);
        int at_first = served[0].requests, at_second = served[1].requests;
        pthread_t waiting;
        CHECK(pthread_create(&waiting, NULL, call_silent, channel) == 0);
        wait_at_least(&served[0].requests, at_first + 1);
        usleep(20000);
        te_channel_get_health(channel, &health);
        CHECK(health.waiting_ns >= 10000000);
        CHECK_STATUS(te_channel_move(channel, "nonsense", NULL), MS_BAD_REQUEST);
        CHECK_STATUS(
            te_channel_move(channel, served[1].address, over_unix ? served[1].unix_path : NULL),
            MS_OK);
        pthread_join(waiting, NULL);
        te_channel_get_health(channel, &health);
        CHECK(health.failures == 1 && health.waiting_ns == 0);
        for (int i = 0; i < 5; i++)
            call_echo(channel, "at the second");
        CHECK(te_channel_is_local(channel) == over_unix);
        CHECK(served[1].requests >= at_second + 5);
        te_channel_close(channel);
    }
    te_engine_close(asker);
    for (int i = 0; i < 2; i++)
        kit_close_all(&served[i]);
}

/* A frozen peer's kernel accepts, and nobody answers HELLO: such a dial is a wait like others. */
static void dials_that_wait_are_seen_and_broken_off(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    char address[64], addresses[160];
    int deaf = deaf_listener(address);
    snprintf(addresses, sizeof addresses, "%s,%s", address, address);
    te_engine *asker = kit_asker();
    for (int way = 0; way < 3; way++) {
        te_channel *channel = kit_channel(asker, addresses, NULL, 2);
        pthread_t waiting;
        CHECK(pthread_create(&waiting, NULL, call_silent, channel) == 0);
        te_channel_health health = {0};
        for (int64_t begin = te_now_ns(); health.waiting_ns < 20000000; usleep(1000)) {
            CHECK(elapsed_ms(begin) < SLACK_MS);
            te_channel_get_health(channel, &health);
        }
        if (way == 0) {
            te_channel_break_off(channel);
        } else if (way == 1) {
            CHECK_STATUS(te_channel_move(channel, served.address, NULL), MS_OK);
        }
        if (way == 2) {
            te_channel_close(channel);
            pthread_join(waiting, NULL);
            continue;
        }
        pthread_join(waiting, NULL);
        te_channel_get_health(channel, &health);
        CHECK(health.waiting_ns == 0);
        if (way == 1)
            call_echo(channel, "elsewhere");
        te_channel_close(channel);
    }
    te_engine_close(asker);
    close(deaf);
    kit_close_all(&served);
}

static void a_new_hello_is_said(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    ms_hello hello = {.version_oldest = 1, .version_newest = 1, .session = 4711, .epoch = 12};
    call_echo(channel, "old");
    te_connection *held;
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &held), MS_OK);
    te_channel_set_hello(channel, &hello, sizeof hello);
    call_echo(channel, "new");
    ms_hello_answer answer;
    uint8_t bytes[256];
    CHECK(te_channel_hello_answer(channel, bytes, sizeof bytes) >= sizeof answer);
    memcpy(&answer, bytes, sizeof answer);
    CHECK(answer.session == 4711);
    te_checkin(held, true); /* said the old HELLO: closed */
    wait_at_least(&served.closes, 1);
    call_echo(channel, "new again");
    CHECK(atomic_load(&served.hellos) == 2);

    /* A refusal is an answer: it is told, with its sentence, and no other rail is bothered. */
    atomic_store(&served.refuse_hello, MS_SESSION_LOST);
    te_channel_set_hello(channel, &hello, sizeof hello);
    te_reply reply = {0};
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(1000)), MS_SESSION_LOST);
    te_channel_error(channel, error);
    CHECK(strstr(error, "the test refuses HELLO") != NULL);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

/* Whoever connects meanwhile, or afterwards, says the channel's HELLO and is given no connection of that one. */
static void a_hello_may_be_said_once(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    ms_hello of_all = {.version_oldest = 1, .version_newest = 1, .session = 4711};
    ms_hello of_one = {.version_oldest = 1, .version_newest = 1, .session = 12};
    te_channel_set_hello(channel, &of_all, sizeof of_all);
    ms_hello_answer answer;
    uint8_t bytes[256];
    size_t length;
    te_connection *own, *other;
    CHECK_STATUS(te_checkout_saying(channel, &of_one, sizeof of_one, in_ms(1000), &own, bytes,
                                    sizeof bytes, &length),
                 MS_OK);
    CHECK(length >= sizeof answer && length <= sizeof bytes);
    memcpy(&answer, bytes, sizeof answer);
    CHECK(answer.session == 12);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &other), MS_OK);
    CHECK(te_channel_hello_answer(channel, bytes, sizeof bytes) >= sizeof answer);
    memcpy(&answer, bytes, sizeof answer);
    CHECK(answer.session == 4711);
    te_checkin(other, true);
    te_checkin(own, true);
    wait_at_least(&served.closes, 1);
    call_echo(channel, "as ever");
    CHECK(atomic_load(&served.hellos) == 2);

    /* Where all places are taken, an idle one makes room ... */
    te_connection *third;
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &other), MS_OK);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &third), MS_OK);
    te_checkin(third, true);
    CHECK_STATUS(te_checkout_saying(channel, &of_one, sizeof of_one, in_ms(1000), &own, bytes,
                                    sizeof bytes, &length),
                 MS_OK);
    te_checkin(own, true);
    te_checkin(other, true);
    wait_at_least(&served.closes, 3);

    /* ... and one that is refused leaves nothing behind. */
    atomic_store(&served.refuse_hello, MS_SESSION_LOST);
    CHECK_STATUS(
        te_checkout_saying(channel, &of_one, sizeof of_one, in_ms(1000), &own, bytes, 4, &length),
        MS_SESSION_LOST);
    atomic_store(&served.refuse_hello, MS_OK);
    CHECK(own == NULL);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &other), MS_OK);
    te_checkin(other, false); /* the next call connects anew */
    call_echo(channel, "again");
    CHECK(te_channel_hello_answer(channel, bytes, sizeof bytes) >= sizeof answer);
    memcpy(&answer, bytes, sizeof answer);
    CHECK(answer.session == 4711);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

/* ---- in parts ------------------------------------------------------------------------------------------------ */

static void exchanges_may_span_frames_and_peers(void) {
    kit a, b;
    kit_open(&a, "127.0.0.1", false, 0, NULL);
    kit_open(&b, "::1", true, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *to_a = kit_channel(asker, a.address, NULL, 2),
               *to_b = kit_channel(asker, b.address, b.unix_path, 2);
    for (int round = 0; round < 4; round++) {
        te_connection *first, *second;
        CHECK_STATUS(te_checkout(to_a, in_ms(1000), &first), MS_OK);
        CHECK_STATUS(te_checkout(to_b, in_ms(1000), &second), MS_OK);
        int which = -1;
        CHECK_STATUS(te_wait_either(first, second, &which, in_ms(30)), MS_TIMEOUT);
        uint64_t request = te_next_request(first);
        struct iovec body = {.iov_base = "frames", .iov_len = 6};
        CHECK_STATUS(te_send(round % 2 ? first : second, MS_REQUEST,
                             round < 2 ? KIT_ECHO : KIT_LATER, 0, request, 1000, &body, 1, NULL, 0,
                             in_ms(1000)),
                     MS_OK);
        CHECK_STATUS(te_wait_either(first, second, &which, in_ms(2000)), MS_OK);
        CHECK(which == (round % 2 ? 0 : 1));
        uint8_t back[16];
        te_reply reply = {.body = back, .body_size = sizeof back};
        CHECK_STATUS(te_receive(which == 0 ? first : second, &reply, in_ms(1000)), MS_OK);
        CHECK(reply.header.request == request && memcmp(back, "frames", 6) == 0);
        te_checkin(first, true);
        te_checkin(second, true);
    }
    te_channel_close(to_a);
    te_channel_close(to_b);
    te_engine_close(asker);
    kit_close_all(&a);
    kit_close_all(&b);
}

static void a_unix_socket_that_comes_back_is_used_again(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    snprintf(served.unix_path, sizeof served.unix_path, "/tmp/te-test-%d-back.sock", (int)getpid());
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, served.unix_path, 2);
    call_echo(channel, "over TCP");
    CHECK(!te_channel_is_local(channel));
    call_echo(channel, "still");
    CHECK(atomic_load(&served.hellos) == 1); /* not tried again with each call */
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_listen_unix(served.engine, served.unix_path, error), MS_OK);
    int64_t deadline_ns = in_ms(10000);
    while (!te_channel_is_local(channel)) {
        CHECK(te_now_ns() < deadline_ns);
        call_echo(channel, "again");
        usleep(10000);
    }
    int hellos = atomic_load(&served.hellos);
    call_echo(channel, "over the socket");
    CHECK(atomic_load(&served.hellos) == hellos);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

/* ---- rails ------------------------------------------------------------------------------------------------------ */

static void rails_share_the_load_and_fail_over(void) {
    kit a, b;
    kit_open(&a, "127.0.0.1", false, 4 * MIB, NULL); /* two ways to "one" peer */
    kit_open(&b, "::1", false, 4 * MIB, NULL);
    char addresses[160], dead[64];
    int listener = deaf_listener(dead);
    close(listener);
    te_engine *asker = kit_asker();
    snprintf(addresses, sizeof addresses, "%s,%s", a.address, b.address);
    te_channel *channel = kit_channel(asker, addresses, NULL, 4);
    te_connection *held[4];
    for (int i = 0; i < 4; i++) {
        CHECK_STATUS(te_checkout(channel, in_ms(1000), &held[i]), MS_OK);
    }
    CHECK(atomic_load(&a.hellos) == 2 && atomic_load(&b.hellos) == 2);
    for (int i = 0; i < 4; i++) {
        te_checkin(held[i], true);
    }
    /* One rail dies: calls go on over the other, without an error. */
    te_segment_remove(a.engine, 1);
    kit_close_all(&a);
    for (int i = 0; i < 50; i++) {
        call_echo(channel, "over what is left");
    }
    uint8_t target[1000];
    void *targets[] = {target};
    ms_read_item item = {.segment = 1, .offset = 77, .length = sizeof target};
    ms_read_result result;
    CHECK_STATUS(te_read(channel, &item, targets, 1, &result, in_ms(2000)), MS_OK);
    CHECK(result.status == MS_OK && has_pattern(target, sizeof target, 77, 1));
    te_channel_close(channel);

    /* A dead Unix socket and a dead address before a living one. */
    snprintf(addresses, sizeof addresses, "%s,%s", dead, b.address);
    channel = kit_channel(asker, addresses, "/tmp/te-test-there-is-no-such-socket", 2);
    for (int i = 0; i < 5; i++) {
        call_echo(channel, "found");
        te_channel_set_hello(channel, NULL, 0); /* dial again */
    }
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&b);
}

/* A rail that swallows what it is sent costs its part of the deadline, then the other one is
 * used. */
static void a_black_hole_is_left(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    char addresses[160], deaf_address[64];
    int deaf = deaf_listener(deaf_address);
    te_engine *asker = kit_asker();
    snprintf(addresses, sizeof addresses, "%s,%s", deaf_address, served.address);
    te_channel_config config = {
        .addresses = addresses, .connections_max = 2, .connect_timeout_ms = 100};
    te_channel *channel;
    CHECK_STATUS(te_channel_open(asker, &config, &channel), MS_OK);
    te_reply reply = {0};
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(4000)), MS_OK);
    te_channel_close(channel);
    te_engine_close(asker);
    close(deaf);
    kit_close_all(&served);
}

/* ---- workers ------------------------------------------------------------------------------------------------------ */

static _Atomic int jobs_done;

static void slow_job(void *argument) {
    usleep(200);
    atomic_fetch_add(&jobs_done, *(int *)argument);
}

static void the_queue_of_workers_is_bounded(void) {
    te_engine *engine = kit_asker();
    int one = 1, given = 0;
    ms_status status = MS_OK;
    while (given < 6000 && (status = te_spawn(engine, slow_job, &one)) == MS_OK) {
        given++;
    }
    CHECK_STATUS(status, MS_LIMIT);
    CHECK(given >= 4096);
    te_engine_close(engine); /* runs what was accepted */
    CHECK(atomic_load(&jobs_done) == given);
}

int main(int argc, char **argv) {
    RUN(dead_connections_are_replaced);
    RUN(the_pool_is_bounded);
    RUN(threads_share_few_connections);
    RUN(closing_a_channel_wakes_its_callers);
    RUN(a_channel_moves_to_another_peer);
    RUN(dials_that_wait_are_seen_and_broken_off);
    RUN(a_new_hello_is_said);
    RUN(a_hello_may_be_said_once);
    RUN(exchanges_may_span_frames_and_peers);
    RUN(a_unix_socket_that_comes_back_is_used_again);
    RUN(rails_share_the_load_and_fail_over);
    RUN(a_black_hole_is_left);
    RUN(the_queue_of_workers_is_bounded);
    return 0;
}
