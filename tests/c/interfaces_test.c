/* Pairs of this machine's interfaces with a peer's addresses: tables; and what the kernel says about this machine. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
#include <arpa/inet.h>

#include "engine_kit.h"
#include "te_interfaces.h"
#include "te_internal.h"

/* "eth0 10.0.0.1/24, !eth1 10.0.0.2/24": a "!" has lost its link; what "lo" has is this machine's own. */
static void read_interfaces(const char *text, te_interfaces *interfaces) {
    static char names[16][IF_NAMESIZE];
    uint32_t known = 0;
    interfaces->count = interfaces->own_count = 0;
    while (*text != '\0') {
        te_interface read = {.is_running = *text != '!'};
        char address[TE_NIC_ADDRESS_BYTES];
        int bits = 0, length = 0;
        CHECK(sscanf(text + (*text == '!'), " %15s %47[^/]/%d%n", read.name, address, &bits,
                     &length) == 3);
        text += length + (*text == '!');
        text += strspn(text, ", ");
        read.family = strchr(address, ':') != NULL ? AF_INET6 : AF_INET;
        CHECK(inet_pton(read.family, address, read.bytes) == 1);
        for (int i = 0; i < bits; i++)
            read.mask[i / 8] = (uint8_t)(read.mask[i / 8] | 0x80 >> i % 8);
        snprintf(read.text, sizeof read.text, "%s", address);
        te_own_address *own = &interfaces->own[interfaces->own_count++];
        own->family = read.family;
        memcpy(own->bytes, read.bytes, sizeof own->bytes);
        if (strcmp(read.name, "lo") == 0)
            continue;
        uint32_t at = 0;
        while (at < known && strcmp(names[at], read.name) != 0)
            at++;
        if (at == known)
            memcpy(names[known++], read.name, sizeof read.name);
        read.number = at + 2; /* the loopback is the first */
        interfaces->all[interfaces->count++] = read;
    }
}

static void check_pairs(const char *here, const char *topology_json, const char *addresses,
                        const char *expected) {
    static te_topology topology;
    te_interfaces interfaces;
    te_rail_ends ends[TE_RAILS_MAX];
    char found[TE_RAILS_MAX * 3 * TE_RAIL_ADDRESS_BYTES] = "";
    memset(&topology, 0, sizeof topology);
    if (topology_json != NULL)
        CHECK(te_topology_parse(topology_json, strlen(topology_json), &topology, NULL) == MS_OK);
    read_interfaces(here, &interfaces);
    uint32_t count = te_pairs_build(&interfaces, &topology, addresses, ends);
    CHECK(count <= TE_RAILS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        size_t used = strlen(found);
        snprintf(found + used, sizeof found - used, "%s%s>%s/%u", i == 0 ? "" : " ", ends[i].local,
                 ends[i].remote, ends[i].tier);
    }
    if (strcmp(found, expected) != 0) {
        fprintf(stderr, "%s to %s\n  found    %s\n  expected %s\n", here, addresses, found,
                expected);
        exit(1);
    }
}

static void pairs(void) {
    static const struct {
        const char *here, *addresses, *expected;
    } rows[] = {
        /* A network for each cable. */
        {"a 10.0.0.1/24, b 10.0.1.1/24", "10.0.0.2:7,10.0.1.2:7",
         "10.0.0.1>10.0.0.2:7/0 10.0.1.1>10.0.1.2:7/0"},
        /* One network: different interfaces at both ends. */
        {"a 10.0.0.1/24, b 10.0.0.3/24", "10.0.0.2:7,10.0.0.4:7",
         "10.0.0.1>10.0.0.2:7/0 10.0.0.3>10.0.0.4:7/0"},
        /* More interfaces here than there, and the other way round. */
        {"a 10.0.0.1/24, b 10.0.0.3/24, c 10.0.0.5/24", "10.0.0.2:7,10.0.0.4:7",
         "10.0.0.1>10.0.0.2:7/0 10.0.0.3>10.0.0.4:7/0 10.0.0.5>10.0.0.2:7/0"},
        {"a 10.0.0.1/24", "10.0.0.2:7,10.0.0.4:7", "10.0.0.1>10.0.0.2:7/0 10.0.0.1>10.0.0.4:7/0"},
        /* Through a router: as the routes go. */
        {"a 10.0.0.1/24, b 10.0.1.1/24", "10.9.0.2:7,10.0.1.2:7",
         ">10.9.0.2:7/0 10.0.1.1>10.0.1.2:7/0"},
        /* An interface without its link is not used where another one is in that network, and kept where none is. */
        {"a 10.0.0.1/24, !b 10.0.0.3/24", "10.0.0.2:7,10.0.0.4:7",
         "10.0.0.1>10.0.0.2:7/0 10.0.0.1>10.0.0.4:7/0"},
        {"a 10.0.0.1/24, !b 10.0.1.1/24", "10.0.0.2:7,10.0.1.2:7",
         "10.0.0.1>10.0.0.2:7/0 10.0.1.1>10.0.1.2:7/0"},
        /* Several addresses of an interface are one interface. */
        {"a 10.0.0.1/24, a 10.0.0.9/24, b 10.0.0.3/24", "10.0.0.2:7,10.0.0.4:7",
         "10.0.0.1>10.0.0.2:7/0 10.0.0.3>10.0.0.4:7/0"},
        /* IPv6 alone, and beside IPv4. */
        {"a fd00::1/64, b fd00::3/64", "[fd00::2]:7,[fd00::4]:7",
         "fd00::1>[fd00::2]:7/0 fd00::3>[fd00::4]:7/0"},
        {"a 10.0.0.1/24, a fd00::1/64, b 10.0.0.3/24, b fd00::3/64", "10.0.0.2:7,[fd00::4]:7",
         "10.0.0.1>10.0.0.2:7/0 fd00::1>[fd00::4]:7/0 10.0.0.3>10.0.0.2:7/0 fd00::3>[fd00::4]:7/0"},
        /* Prefixes that end within a byte; the networks of containers are another one. */
        {"a 10.0.0.1/20, docker0 172.17.0.1/16, b 10.0.16.1/20", "10.0.15.2:7,10.0.17.2:7",
         "10.0.0.1>10.0.15.2:7/0 10.0.16.1>10.0.17.2:7/0"},
        /* Ourselves, by hand, nobody, nonsense. */
        {"a 10.0.0.1/24, b 10.0.0.3/24", "10.0.0.1:7,127.0.0.1:7", ">10.0.0.1:7/0 >127.0.0.1:7/0"},
        /* A virtual address that the loopback holds is ours, though an interface is in its network. */
        {"a 10.0.0.1/24, lo 10.0.0.100/32", "10.0.0.100:7,10.0.0.2:7",
         ">10.0.0.100:7/0 10.0.0.1>10.0.0.2:7/0"},
        {"a fd00::1/64, lo fd00::100/128", "[fd00::100]:7,[::1]:7", ">[fd00::100]:7/0 >[::1]:7/0"},
        {"a 10.0.0.1/24, b 10.0.0.3/24", "10.0.0.3>10.0.0.2:7,10.0.0.1>10.0.0.4:7",
         "10.0.0.3>10.0.0.2:7/0 10.0.0.1>10.0.0.4:7/0"},
        {"", "10.0.0.2:7", ">10.0.0.2:7/0"},
        {"a 10.0.0.1/24", "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_pairs(rows[i].here, NULL, rows[i].addresses, rows[i].expected);
    /* What the engine was told of itself decides which interfaces may be used, and how near they are. */
    static const char told[] = "{\"nics\": {\"b\": [\"10.0.0.3\"], \"c\": [\"10.0.0.5\"]}, "
                               "\"matrix\": {\"*\": [[\"c\"], [\"b\"]]}}";
    check_pairs("a 10.0.0.1/24, b 10.0.0.3/24, c 10.0.0.5/24", told, "10.0.0.2:7,10.0.0.4:7",
                "10.0.0.3>10.0.0.2:7/1 10.0.0.5>10.0.0.4:7/0");
}

static void room_for_pairs_ends(void) {
    char here[1024] = "", addresses[1024] = "";
    te_interfaces interfaces;
    te_rail_ends ends[TE_RAILS_MAX + 1];
    te_topology *topology = calloc(1, sizeof *topology);
    for (int i = 0; i < 12; i++)
        snprintf(here + strlen(here), sizeof here - strlen(here), "n%d 10.0.0.%d/24, ", i, i + 1);
    for (int i = 0; i < 20; i++)
        snprintf(addresses + strlen(addresses), sizeof addresses - strlen(addresses),
                 "10.0.0.%d:7,", 100 + i);
    read_interfaces(here, &interfaces);
    memset(ends, 0x55, sizeof ends);
    CHECK(te_pairs_build(&interfaces, topology, addresses, ends) == TE_RAILS_MAX);
    CHECK((uint8_t)ends[TE_RAILS_MAX].local[0] == 0x55);
    uint32_t seen[12] = {0};
    for (uint32_t i = 0; i < TE_RAILS_MAX; i++)
        seen[ends[i].local_nic - 1]++;
    for (uint32_t i = 0; i < 12; i++)
        CHECK(seen[i] == 1 || seen[i] == 2);
    free(topology);
}

static void this_machine_is_looked_at(void) {
    te_interfaces now;
    CHECK(te_interfaces_look(&now, AF_UNSPEC) == MS_OK);
    for (uint32_t i = 0; i < now.count; i++) {
        CHECK(now.all[i].number > 0 && now.all[i].name[0] != '\0' && now.all[i].text[0] != '\0');
        CHECK(strncmp(now.all[i].text, "127.", 4) != 0);
    }
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char name[IF_NAMESIZE] = "x";
    te_interface_between((struct sockaddr *)&here, (struct sockaddr *)&here, name);
    CHECK(name[0] == '\0');
}

static void what_is_lost(void) {
    static const struct {
        const char *here, *address;
        bool is_lost;
    } rows[] = {
        {"a 10.0.0.1/24, !b 10.0.0.3/24", "10.0.0.1", false},
        {"a 10.0.0.1/24, !b 10.0.0.3/24", "10.0.0.3", true},
        {"a 10.0.0.1/24", "10.0.0.3", true}, /* the address has gone, or its interface is down */
        {"!a fd00::1/64", "fd00::1", true},
        {"a fd00::1/64", "fd00::3", true},
        {"a fd00::1/64", "fd00::1", false},
        /* The loopback has no link to lose. */
        {"a 10.0.0.1/24, lo 10.0.0.100/32", "10.0.0.100", false},
        {"", "127.0.0.5", false},
        {"", "::1", false},
        /* Nothing is known of these. */
        {"", "fe80::1%eth0", false},
        {"", "", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        te_interfaces interfaces;
        read_interfaces(rows[i].here, &interfaces);
        if (te_interface_is_lost(&interfaces, rows[i].address) == rows[i].is_lost)
            continue;
        fprintf(stderr, "with %s, %s is %slost\n", rows[i].here, rows[i].address,
                rows[i].is_lost ? "not " : "");
        exit(1);
    }
    te_interfaces full;
    read_interfaces("a 10.0.0.1/24", &full);
    full.own_count = TE_OWN_ADDRESSES_MAX; /* there may be more that were not listed */
    CHECK(!te_interface_is_lost(&full, "10.0.0.3"));
}

static te_address address_of(const char *text) {
    te_address address;
    char error[TE_ERROR_BYTES];
    CHECK(te_address_parse(text, strlen(text), &address, error) == MS_OK);
    return address;
}

static bool stays_here(const char *here, const char *there) {
    te_address near = address_of(here), far = address_of(there);
    return te_stays_here((struct sockaddr *)&near.storage, (struct sockaddr *)&far.storage);
}

static void what_stays_here(void) {
    CHECK(stays_here("127.0.0.1:1", "127.0.0.1:2"));
    CHECK(stays_here("127.0.0.1:1", "127.0.0.2:2"));
    CHECK(stays_here("10.0.0.1:1", "10.0.0.1:2")); /* an interface's own address */
    CHECK(stays_here("[::1]:1", "[::1]:2"));
    CHECK(stays_here("[fd00::1]:1", "[fd00::1]:2"));
    CHECK(!stays_here("10.0.0.1:1", "10.0.0.2:1"));
    CHECK(!stays_here("[fd00::1]:1", "[fd00::2]:1"));
    CHECK(!stays_here("10.0.0.1:1", "[fd00::1]:1"));
    te_address ip = address_of("127.0.0.1:1"), path = address_of("unix:/tmp/none");
    CHECK(!te_stays_here((struct sockaddr *)&path.storage, (struct sockaddr *)&path.storage));
    CHECK(!te_stays_here((struct sockaddr *)&ip.storage, (struct sockaddr *)&path.storage));
}

int main(void) {
    what_stays_here();
    pairs();
    what_is_lost();
    room_for_pairs_ends();
    this_machine_is_looked_at();
    return 0;
}
