// sources: store/src/*.c master/src/*.c master/src/metadata/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c client/src/breaker.c client/src/client.c client/src/get.c client/src/health.c client/src/lane.c client/src/location.c client/src/lookup.c client/src/node.c client/src/pins.c client/src/put.c client/src/session.c client/src/view.c client/src/write.c client/src/write_early.c client/src/write_list.c
// flags of store/src: -DST_TEST_STEPS
/* HELLO with the longest texts that the protocol allows, by everybody who says one. */
#include "../../client/src/cl_internal.h"
#include "st_kit.h"

static char longest_token[MS_TOKEN_BYTES_MAX + 2], longest_name[MS_NAME_BYTES_MAX + 2];

static void make_texts(void) {
    for (size_t at = 0; at < MS_TOKEN_BYTES_MAX; at++)
        longest_token[at] = (char)('a' + at % 26);
    memset(longest_name, 'n', MS_NAME_BYTES_MAX);
}

static bool text_is(ms_text text, const char *wanted) {
    return text.length == strlen(wanted) && memcmp(text.data, wanted, text.length) == 0;
}

static void test_client_says_the_longest_texts(void) {
    static char tenant[MS_TENANT_BYTES_MAX + 1];
    memset(tenant, 't', MS_TENANT_BYTES_MAX);
    cl_client client = {.pid = 7,
                        .session = SESSION,
                        .epoch = EPOCH,
                        .token = longest_token,
                        .name = longest_name,
                        .tenant_length = MS_TENANT_BYTES_MAX};
    memcpy(client.tenant, tenant, MS_TENANT_BYTES_MAX);
    uint8_t body[CL_HELLO_BYTES_MAX];
    size_t length = 0;
    CHECK_STATUS(cl_hello_for_node(&client, MS_RIGHT_WRITE, 5, body, sizeof body, &length), MS_OK);
    ms_hello_view hello;
    CHECK(length <= sizeof body && ms_read_hello(body, length, &hello));
    CHECK(text_is(hello.tenant, tenant) && text_is(hello.token, longest_token) &&
          text_is(hello.name, longest_name));
    CHECK(hello.head.session == SESSION && hello.head.incarnation == 5 &&
          hello.head.right == MS_RIGHT_WRITE);
    /* What is longer is no HELLO: it is refused here, and nothing is written behind the end. */
    uint8_t guarded[CL_HELLO_BYTES_MAX + 64];
    memset(guarded, 0x5a, sizeof guarded);
    static char too_long[2 * MS_TOKEN_BYTES_MAX];
    memset(too_long, 'x', sizeof too_long - 1);
    client.token = too_long;
    CHECK(cl_hello_for_node(&client, MS_RIGHT_READ, 0, guarded, CL_HELLO_BYTES_MAX, &length) !=
          MS_OK);
    for (size_t at = CL_HELLO_BYTES_MAX; at < sizeof guarded; at++)
        CHECK(guarded[at] == 0x5a);
}

/* A connection to the server with that token. */
static ms_status call_with_token(const node *node, const char *token) {
    cl_client teller = {.token = (char *)(uintptr_t)token,
                        .name = longest_name,
                        .tenant = "default",
                        .tenant_length = 7};
    uint8_t hello[CL_HELLO_BYTES_MAX];
    client client = {.engine = client_engine()};
    te_channel_config config = {.addresses = node->address, .hello = hello};
    CHECK_STATUS(
        cl_hello_for_node(&teller, MS_RIGHT_READ, 0, hello, sizeof hello, &config.hello_length),
        MS_OK);
    CHECK_STATUS(te_channel_open(client.engine, &config, &client.channel), MS_OK);
    te_reply reply = {0};
    ms_status status = te_call(client.channel, MS_PING, 0, NULL, 0, &reply, in_seconds(10));
    client_close(&client);
    return status;
}

static void test_server_says_and_hears_the_longest_texts(void) {
    master master;
    node node;
    master_open(&master);
    node_folder(&node);
    node.name = longest_name;
    node.token = longest_token;
    node_start(&node, 8 * MIB, master.address);
    master_wait_connections(&master, 1); /* its own HELLO went through */
    CHECK_STATUS(master_adopt(&master, EPOCH, NULL), MS_OK);
    node_wait_adopted(&node);
    CHECK_STATUS(call_with_token(&node, longest_token), MS_OK);
    static char other[sizeof longest_token];
    memcpy(other, longest_token, sizeof other);
    other[MS_TOKEN_BYTES_MAX - 1] ^= 1; /* all of it is compared */
    CHECK_STATUS(call_with_token(&node, other), MS_REFUSED);
    CHECK_STATUS(call_with_token(&node, ""), MS_REFUSED);
    stop(&master, &node);
}

static void test_server_with_a_longer_token_does_not_start(void) {
    node node;
    char error[ST_ERROR_BYTES] = "";
    node_folder(&node);
    longest_token[MS_TOKEN_BYTES_MAX] = 'x';
    node.token = longest_token;
    CHECK_STATUS(node_try(&node, 8 * MIB, NULL, error), MS_BAD_REQUEST);
    CHECK(strstr(error, "a token 8192") != NULL);
    longest_token[MS_TOKEN_BYTES_MAX] = '\0';
    node_remove_folder(&node);
}

int main(void) {
    make_texts();
    RUN(test_client_says_the_longest_texts());
    RUN(test_server_says_and_hears_the_longest_texts());
    RUN(test_server_with_a_longer_token_does_not_start());
    return 0;
}
