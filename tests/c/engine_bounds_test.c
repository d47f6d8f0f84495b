/* The accepting side: slow and dead peers, the fence, and the bounds of a process. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 200
#include "engine_raw.h"

static te_engine_config impatient(void) {
    te_engine_config config;
    te_engine_config_default(&config);
    config.handshake_timeout_ms = 300;
    config.stall_timeout_ms = 300;
    return config;
}

static void slow_peers_are_closed(void) {
    te_engine_config config = impatient();
    kit served;
    kit_open(&served, "127.0.0.1", false, MIB, &config);
    int silent = raw_connect(&served), dripping = raw_connect(&served);
    int half_header = raw_open(&served, 1), half_body = raw_open(&served, 1),
        half_payload = raw_open(&served, 1);
    int patient = raw_open(&served, 1);
    ms_header header = frame(MS_REQUEST, KIT_ECHO, 1, 100000);
    raw_send(half_header, &header, 20);
    raw_send(half_body, &header, sizeof header);
    struct {
        uint32_t count, zero;
        ms_write_item item;
    } write = {1, 0, {.segment = 2, .page_count = 200, .version = 1, .length = 500000}};
    header = frame(MS_REQUEST, MS_WRITE, 1, sizeof write);
    header.payload_length = 500000;
    raw_send(half_payload, &header, sizeof header);
    raw_send(half_payload, &write, sizeof write);
    raw_send(half_payload, "some bytes", 10);
    int64_t begin = te_now_ns();
    header = frame(MS_REQUEST, MS_HELLO, 1, 40);
    for (size_t i = 0; i < sizeof header; i++) { /* a byte now and then does not keep it open */
        if (send(dripping, (uint8_t *)&header + i, 1, MSG_NOSIGNAL) != 1) {
            break;
        }
        usleep(20000);
    }
    CHECK(is_closed(silent) && is_closed(dripping));
    CHECK(is_closed(half_header) && is_closed(half_body) && is_closed(half_payload));
    CHECK(te_now_ns() - begin < INT64_C(3000000000));
    expect_log(&served, "no HELLO in time");
    expect_log(&served, "not finished in time");
    expect_echo(patient, 7, "idle is no fault");
    CHECK(kit_count(&served, &served.incomplete) == 1);
    close(silent);
    close(dripping);
    close(half_header);
    close(half_body);
    close(half_payload);
    close(patient);
    kit_close_all(&served);
}

/* A reader that never takes its answer gives its use counts back when it is closed. */
static void a_reader_that_stalls_is_closed(void) {
    te_engine_config config = impatient();
    kit served;
    kit_open(&served, "127.0.0.1", false, 32 * MIB, &config);
    int descriptor = raw_open(&served, 1);
    struct {
        uint32_t count, zero;
        ms_read_item item;
    } read = {1, 0, {.segment = 2, .length = 32 * MIB}};
    ms_header header = frame(MS_REQUEST, MS_READ, 1, sizeof read);
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &read, sizeof read);
    wait_at_least(&served.closes, 1);
    expect_log(&served, "has not taken its answers");
    close(descriptor);
    kit_close_all(&served);
}

static void a_peer_that_takes_no_answers_is_held_up(void) {
    kit served;
    te_engine_config config;
    te_engine_config_default(&config);
    config.outbound_bytes_max = 4 * MIB;
    kit_open(&served, "127.0.0.1", false, 0, &config);
    int descriptor = raw_open(&served, 1);
    /* 200 MiB of answers if it were served without end: it is no longer read from, and nothing is
     * lost. */
    enum { FRAMES = 800, BODY = 256 << 10 };
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uint8_t *body = calloc(1, BODY);
        for (uint64_t i = 0; i < FRAMES && body != NULL; i++) {
            ms_header header = frame(MS_REQUEST, KIT_ECHO, i, BODY);
            memcpy(body, &i, sizeof i);
            raw_send(descriptor, &header, sizeof header);
            raw_send(descriptor, body, BODY);
        }
        _exit(0);
    }
    usleep(300000);
    int requests = atomic_load(&served.requests);
    CHECK(requests > 0 && requests < FRAMES / 2);
    uint8_t *body = malloc(BODY);
    CHECK(body != NULL);
    for (uint64_t i = 0; i < FRAMES; i++) {
        ms_header answer;
        CHECK(raw_receive(descriptor, &answer, sizeof answer) && answer.request == i &&
              answer.body_length == BODY);
        CHECK(raw_receive(descriptor, body, BODY) && memcmp(body, &i, sizeof i) == 0);
    }
    free(body);
    int state;
    CHECK(waitpid(child, &state, 0) == child && state == 0);
    close(descriptor);
    kit_close_all(&served);
}

static bool is_session(void *match_context, void *peer_context) {
    return match_context == peer_context;
}

typedef struct flooder {
    const kit *served;
    pthread_t thread;
    uint64_t session;
    uint32_t page; /* each writes 5 MiB of its own */
} flooder;

#define FLOOD_MIB 5

/* Writes as fast as it can until it is cut off. */
static void *flood(void *argument) {
    flooder *own = argument;
    int descriptor = raw_open(own->served, own->session);
    struct {
        uint32_t count, zero;
        ms_write_item item;
    } write = {1,
               0,
               {.segment = 2,
                .page = own->page,
                .page_count = FLOOD_MIB * 256,
                .version = 1,
                .length = FLOOD_MIB * MIB}};
    ms_header header = frame(MS_REQUEST, MS_WRITE, 1, sizeof write);
    header.payload_length = FLOOD_MIB * MIB;
    uint8_t *bytes = malloc(MIB);
    CHECK(bytes != NULL);
    for (int value = 0;; value++) {
        memset(bytes, value, MIB);
        bool is_cut = send(descriptor, &header, sizeof header, MSG_NOSIGNAL) != sizeof header ||
                      send(descriptor, &write, sizeof write, MSG_NOSIGNAL) != sizeof write;
        for (int i = 0; i < FLOOD_MIB && !is_cut; i++) {
            for (size_t sent = 0; sent < MIB && !is_cut;) {
                ssize_t some = send(descriptor, bytes + sent, MIB - sent, MSG_NOSIGNAL);
                is_cut = some <= 0;
                sent += some > 0 ? (size_t)some : 0;
            }
        }
        ms_header answer;
        if (is_cut || !raw_receive(descriptor, &answer, sizeof answer) || answer.status != MS_OK) {
            break; /* a WRITE that is refused (no such segment) ends it too */
        }
    }
    free(bytes);
    close(descriptor);
    return NULL;
}

static void after_the_fence_nobody_writes(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 16 * MIB, NULL);
    uint8_t *copy = malloc(16 * MIB);
    CHECK(copy != NULL);
    for (uint64_t round = 0; round < 20; round++) {
        flooder flooders[3];
        for (uint32_t i = 0; i < 3; i++) {
            flooders[i] = (flooder){.served = &served, .session = 5, .page = i * FLOOD_MIB * 256};
        }
        int hellos = atomic_load(&served.hellos);
        for (int i = 0; i < 3; i++) {
            CHECK(pthread_create(&flooders[i].thread, NULL, flood, &flooders[i]) == 0);
        }
        wait_at_least(&served.hellos, hellos + 3);
        usleep(3000 + (useconds_t)round * 500);
        size_t closed = te_close_matching(served.engine, is_session, (void *)5, "fenced");
        CHECK(closed == 3);
        memcpy(copy, served.memory, 16 * MIB);
        usleep(2000);
        CHECK(memcmp(copy, served.memory, 16 * MIB) == 0);
        for (int i = 0; i < 3; i++) {
            pthread_join(flooders[i].thread, NULL);
        }
        CHECK(te_close_matching(served.engine, is_session, (void *)6, "nobody") == 0);
    }
    free(copy);
    kit_close_all(&served);
}

static void a_segment_is_removed_under_its_readers_and_writers(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 32 * MIB, NULL);
    flooder writer = {.served = &served, .session = 8, .page = 16 * 256};
    CHECK(pthread_create(&writer.thread, NULL, flood, &writer) == 0);
    int reader = raw_open(&served, 9), other = raw_open(&served, 9);
    struct {
        uint32_t count, zero;
        ms_read_item item;
    } read = {1, 0, {.segment = 2, .length = 16 * MIB}};
    ms_header header = frame(MS_REQUEST, MS_READ, 1, sizeof read);
    raw_send(reader, &header, sizeof header);
    raw_send(reader, &read, sizeof read);
    usleep(20000);
    te_segment_remove(served.engine, 2);
    te_segment_remove(served.engine, 1);
    memset(served.memory, 0, served.length); /* ours alone now */
    free(served.memory);
    served.memory = NULL;
    pthread_join(writer.thread, NULL);
    ms_header answer;
    ms_read_result result;
    read.item.length = 4;
    raw_send(other, &header, sizeof header);
    raw_send(other, &read, sizeof read);
    CHECK(raw_receive(other, &answer, sizeof answer) && answer.payload_length == 0);
    CHECK(raw_receive(other, &result, sizeof result) && result.status == MS_NOT_REGISTERED);
    close(reader);
    close(other);
    kit_close_all(&served);
}

static void relayed_writes_are_not_answered(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, MIB, NULL);
    served.swallow_done = true;
    int descriptor = raw_open(&served, 1);
    struct {
        uint32_t count, zero;
        ms_write_item item;
        uint8_t seal[8];
    } write = {1,
               0,
               {.segment = 2, .page_count = 1, .version = 1, .length = 5, .seal_length = 8},
               "SEALSEA"};
    ms_header header = frame(MS_REQUEST, MS_WRITE, 1, sizeof write);
    header.payload_length = 5;
    header.flags = MS_FLAG_RELAY;
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &write, sizeof write);
    raw_send(descriptor, "bytes", 5);
    expect_echo(descriptor, 2, "the next answer");
    CHECK(kit_count(&served, &served.sealed) == 1 && memcmp(served.memory, "bytes", 5) == 0);
    CHECK(memcmp(served.last_seal, "SEALSEA", 8) == 0);
    close(descriptor);
    kit_close_all(&served);
}

static void connections_are_bounded(void) {
    te_engine_config config;
    te_engine_config_default(&config);
    config.connections_accepted_max = 3;
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, &config);
    int first[3];
    for (int i = 0; i < 3; i++) {
        first[i] = raw_open(&served, 1);
    }
    expect_refusal(raw_connect(&served), MS_LIMIT, "limit");
    expect_echo(first[2], 1, "served");
    close(first[0]);
    wait_at_least(&served.closes, 1);
    int next = raw_open(&served, 1);
    expect_echo(next, 1, "room again");
    close(first[1]);
    close(first[2]);
    close(next);
    kit_close_all(&served);
}

static void unix_sockets_are_private(void) {
    kit served;
    kit_open(&served, "127.0.0.1", true, 0, NULL);
    struct stat file;
    CHECK(stat(served.unix_path, &file) == 0 && (file.st_mode & 0777) == 0600);
    te_engine *other = NULL;
    te_engine_config config;
    te_engine_config_default(&config);
    char error[TE_ERROR_BYTES] = "";
    CHECK_STATUS(te_engine_open(&config, &other), MS_OK);
    CHECK_STATUS(te_listen_unix(other, served.unix_path, error), MS_BUSY); /* somebody listens */
    CHECK(strstr(error, served.unix_path) != NULL);
    char path[108];
    snprintf(path, sizeof path, "%.90s.stale", served.unix_path);
    int stale = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    CHECK(bind(stale, (struct sockaddr *)&address, sizeof address) == 0);
    close(stale); /* the file stays, nobody listens */
    CHECK_STATUS(te_listen_unix(other, path, error), MS_OK);
    te_engine_close(other);
    CHECK(stat(path, &file) != 0 && errno == ENOENT);

    char longer[200];
    memset(longer, 'x', sizeof longer);
    longer[0] = '/';
    longer[150] = '\0';
    CHECK_STATUS(te_listen_unix(served.engine, longer, error), MS_BAD_REQUEST);
    CHECK_STATUS(te_listen_tcp(served.engine, "localhost", 0, &served.port, error), MS_BAD_REQUEST);
    CHECK_STATUS(te_listen_tcp(served.engine, "127.0.0.1", served.port, &served.port, error),
                 MS_BUSY);
    if (geteuid() == 0) { /* another user, let in by the file's mode: the credentials still tell */
        CHECK(chmod(served.unix_path, 0666) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            ms_header answer = {0};
            int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
            snprintf(address.sun_path, sizeof address.sun_path, "%s", served.unix_path);
            bool refused = setuid(65534) == 0 &&
                           connect(descriptor, (struct sockaddr *)&address, sizeof address) == 0 &&
                           recv(descriptor, &answer, sizeof answer, MSG_WAITALL) == sizeof answer &&
                           answer.status == MS_REFUSED;
            _exit(refused ? 0 : 1);
        }
        int state;
        CHECK(waitpid(child, &state, 0) == child && state == 0);
    }
    kit_close_all(&served);
    CHECK(stat(served.unix_path, &file) != 0);
}

typedef struct starter {
    const kit *served;
    pthread_barrier_t *barrier;
    pthread_t thread;
    te_peer number;
} starter;

static void *start_client(void *argument) {
    starter *own = argument;
    te_engine *engine = kit_asker();
    te_channel *channel = kit_channel(engine, own->served->address, NULL, 2);
    pthread_barrier_wait(own->barrier);
    for (int i = 0; i < 20; i++) {
        struct iovec body = {.iov_base = &own->number, .iov_len = sizeof own->number};
        te_peer back = 0;
        te_reply reply = {.body = (uint8_t *)&back, .body_size = sizeof back};
        CHECK_STATUS(te_call(channel, KIT_ECHO, 0, &body, 1, &reply, in_ms(30000)), MS_OK);
        CHECK(reply.header.status == MS_OK && back == own->number);
    }
    te_channel_close(channel);
    te_engine_close(engine);
    return NULL;
}

static void sixty_four_clients_start_at_once(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    starter starters[64];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 64);
    for (uint64_t i = 0; i < 64; i++) {
        starters[i] = (starter){.served = &served, .barrier = &barrier, .number = i * 1000};
        CHECK(pthread_create(&starters[i].thread, NULL, start_client, &starters[i]) == 0);
    }
    for (int i = 0; i < 64; i++) {
        pthread_join(starters[i].thread, NULL);
    }
    CHECK(atomic_load(&served.hellos) == 64 && atomic_load(&served.requests) == 64 * 20);
    pthread_barrier_destroy(&barrier);
    kit_close_all(&served);
}

static int64_t cpu_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
}

static void an_idle_engine_sleeps(void) {
    kit served;
    te_service service = {
        .on_hello = kit_hello, .on_request = kit_request, .on_close = kit_close}; /* no ticks */
    kit_service = &service;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    int descriptors[8];
    for (int i = 0; i < 8; i++) {
        descriptors[i] = raw_open(&served, 1);
        expect_echo(descriptors[i], 1, "x");
    }
    usleep(250000); /* the last look at the handshake deadlines is over */
    int64_t before = cpu_ns();
    usleep(1000000);
    int64_t used = cpu_ns() - before;
    CHECK(used < 5000000); /* 0.5 %: mostly the measuring itself */
    for (int i = 0; i < 8; i++) {
        close(descriptors[i]);
    }
    kit_close_all(&served);
}

static void ticks_come_while_nothing_else_happens(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    wait_at_least(&served.ticks, 5);
    kit_close_all(&served);
}

static void a_child_is_told(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    te_reply reply = {0};
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        bool right = te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(1000)) == MS_FORKED;
        te_channel_close(channel); /* both return at once */
        te_engine_close(asker);
        te_engine_close(served.engine);
        _exit(right ? 0 : 1);
    }
    int state;
    CHECK(waitpid(child, &state, 0) == child && state == 0);
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

static void the_log_is_bounded(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    char line[TE_ERROR_BYTES];
    CHECK(!te_engine_log_next(served.engine, line));
    for (int i = 0; i < 200; i++) {
        int descriptor = raw_connect(&served);
        raw_send(descriptor,
                 "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nUser-Agent: x\r\n\r\n", 64);
        ms_header answer;
        CHECK(raw_receive(descriptor, &answer, sizeof answer) && answer.status == MS_BAD_FRAME);
        close(descriptor);
    }
    int lines = 0;
    bool told = false;
    while (te_engine_log_next(served.engine, line)) {
        told = told || strstr(line, "earlier lines were lost") != NULL;
        lines++;
    }
    CHECK(told && lines == 129);
    kit_close_all(&served);
}

int main(int argc, char **argv) {
    RUN(slow_peers_are_closed);
    RUN(a_reader_that_stalls_is_closed);
    RUN(a_peer_that_takes_no_answers_is_held_up);
    RUN(after_the_fence_nobody_writes);
    RUN(a_segment_is_removed_under_its_readers_and_writers);
    RUN(relayed_writes_are_not_answered);
    RUN(connections_are_bounded);
    RUN(unix_sockets_are_private);
    RUN(sixty_four_clients_start_at_once);
    RUN(an_idle_engine_sleeps);
    RUN(ticks_come_while_nothing_else_happens);
    RUN(a_child_is_told);
    RUN(the_log_is_bounded);
    return 0;
}
