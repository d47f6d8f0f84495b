/* Sockets: addresses, listening, connecting with a deadline, and single non-blocking sends and
 * receives. */
#include "te_interfaces.h"
#include "te_pacing.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "te_fault.h"

#define BACKLOG 4096
#define DESCRIPTORS_MAX 4 /* passed with one frame */

/* ---- addresses ------------------------------------------------------------------------------- */

static ms_status parse_unix(const char *path, size_t length, te_address *address, char *error) {
    struct sockaddr_un *un = (struct sockaddr_un *)&address->storage;
    if (length == 0 || length >= sizeof un->sun_path || memchr(path, '\0', length) != NULL) {
        te_error(error, "the socket path has %zu bytes; 1 to %zu can be used", length,
                 sizeof un->sun_path - 1);
        return MS_BAD_REQUEST;
    }
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, length);
    address->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    address->is_unix = true;
    snprintf(address->text, sizeof address->text, "unix:%.*s", (int)length, path);
    return MS_OK;
}

/* The numeric address alone, as a socket address with port 0. */
static bool parse_host(const char *text, size_t length, struct sockaddr_storage *storage,
                       socklen_t *storage_length) {
    char host[96];
    if (length > 2 && text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    if (length == 0 || length >= sizeof host) {
        return false;
    }
    memcpy(host, text, length);
    host[length] = '\0';
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, NULL, &hints, &found) != 0) {
        return false;
    }
    memcpy(storage, found->ai_addr, found->ai_addrlen);
    *storage_length = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

ms_status te_address_bind(te_address *address, const char *local, size_t length, char *error) {
    if (length == 0) {
        return MS_OK;
    }
    if (address->is_unix || !parse_host(local, length, &address->local, &address->local_length) ||
        address->local.ss_family != address->storage.ss_family) {
        te_error(error, "%.*s is not a numeric address from which %.100s can be reached",
                 (int)(length > 60 ? 60 : length), local, address->text);
        return MS_BAD_REQUEST;
    }
    return MS_OK;
}

static ms_status parse_remote(const char *text, size_t length, te_address *address, char *error);

ms_status te_address_parse(const char *text, size_t length, te_address *address, char *error) {
    const char *arrow = memchr(text, '>', length);
    bool is_unix = length >= 5 && memcmp(text, "unix:", 5) == 0;
    if (arrow == NULL || is_unix) {
        return parse_remote(text, length, address, error);
    }
    size_t local_length = (size_t)(arrow - text);
    ms_status status = parse_remote(arrow + 1, length - local_length - 1, address, error);
    return status == MS_OK ? te_address_bind(address, text, local_length, error) : status;
}

static ms_status parse_remote(const char *text, size_t length, te_address *address, char *error) {
    memset(address, 0, sizeof *address);
    if (length >= 5 && memcmp(text, "unix:", 5) == 0) {
        return parse_unix(text + 5, length - 5, address, error);
    }
    char host[96], port[8];
    const char *host_text = text;
    size_t colon = length; /* one past the last colon */
    while (colon > 0 && text[colon - 1] != ':') {
        colon--;
    }
    size_t host_length = colon > 0 ? colon - 1 : 0, port_length = length - colon;
    if (host_length > 2 && text[0] == '[' && text[host_length - 1] == ']') {
        host_text++;
        host_length -= 2;
    } else if (memchr(text, ':', host_length) != NULL) {
        host_length = 0; /* an IPv6 address without its brackets: which colon begins the port? */
    }
    if (host_length == 0 || host_length >= sizeof host || port_length == 0 ||
        port_length >= sizeof port) {
        te_error(error,
                 "%.*s is not an address: use \"127.0.0.1:7700\", \"[::1]:7700\" or \"unix:PATH\"",
                 (int)(length > 100 ? 100 : length), text);
        return MS_BAD_REQUEST;
    }
    memcpy(host, host_text, host_length);
    host[host_length] = '\0';
    memcpy(port, text + colon, port_length);
    port[port_length] = '\0';

    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    if (getaddrinfo(host, port, &hints, &found) != 0) {
        te_error(error, "%s port %s is not a numeric IPv4 or IPv6 address and a port", host, port);
        return MS_BAD_REQUEST;
    }
    memcpy(&address->storage, found->ai_addr, found->ai_addrlen);
    address->length = found->ai_addrlen;
    snprintf(address->text, sizeof address->text,
             found->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    freeaddrinfo(found);
    return MS_OK;
}

/* ---- options --------------------------------------------------------------------------------- */

void te_socket_tune(int descriptor, bool is_unix) {
    if (is_unix) {
        return;
    }
    /* All of these are improvements: without them a connection still works. */
    int on = 1, idle_s = 10, interval_s = 3, probes = 3;
    unsigned unsent_ms = 20000;
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &unsent_ms, sizeof unsent_ms);
}

ms_status te_socket_set_blocking(int descriptor, bool blocking) {
    int flags = fcntl(descriptor, F_GETFL);
    if (flags < 0 ||
        fcntl(descriptor, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) < 0) {
        return MS_IO_ERROR;
    }
    return MS_OK;
}

/* ---- listening ------------------------------------------------------------------------------- */

/* A file that nobody listens on is left over from a process that died. */
static bool is_stale(const te_address *address) {
    int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) {
        return false;
    }
    bool refused =
        connect(descriptor, (const struct sockaddr *)&address->storage, address->length) != 0 &&
        errno == ECONNREFUSED;
    close(descriptor);
    return refused;
}

static int bind_unix(int descriptor, const te_address *address) {
    /* Linux takes the mode of the file from that of the socket: it is never open to others, not
     * even for a moment. */
    if (fchmod(descriptor, S_IRUSR | S_IWUSR) != 0) {
        return -1;
    }
    const char *path = ((const struct sockaddr_un *)&address->storage)->sun_path;
    for (int attempt = 0;; attempt++) {
        if (bind(descriptor, (const struct sockaddr *)&address->storage, address->length) == 0) {
            return chmod(path, S_IRUSR | S_IWUSR);
        }
        if (errno != EADDRINUSE || attempt > 0 || !is_stale(address) || unlink(path) != 0) {
            return -1;
        }
    }
}

ms_status te_socket_listen(const te_address *address, int *listener, uint16_t *port, char *error) {
    int descriptor =
        socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) {
        te_error(error, "cannot open a socket for %s: %s", address->text, strerror(errno));
        return MS_IO_ERROR;
    }
    int on = 1, failed;
    if (address->is_unix) {
        failed = bind_unix(descriptor, address);
    } else {
        te_unpace_before_listen(descriptor);
        failed = setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (failed == 0 && address->storage.ss_family == AF_INET6) {
            failed = setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
        }
        if (failed == 0) {
            failed = bind(descriptor, (const struct sockaddr *)&address->storage, address->length);
        }
    }
    if (failed == 0) {
        failed = listen(descriptor, BACKLOG);
    }
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof bound;
    if (failed == 0) {
        failed = getsockname(descriptor, (struct sockaddr *)&bound, &length);
    }
    if (failed != 0) {
        ms_status status = errno == EADDRINUSE ? MS_BUSY : MS_IO_ERROR;
        te_error(error, "cannot listen on %s: %s", address->text, strerror(errno));
        close(descriptor);
        return status;
    }
    if (port != NULL && bound.ss_family == AF_INET) {
        *port = ntohs(((struct sockaddr_in *)&bound)->sin_port);
    } else if (port != NULL && bound.ss_family == AF_INET6) {
        *port = ntohs(((struct sockaddr_in6 *)&bound)->sin6_port);
    }
    *listener = descriptor;
    return MS_OK;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static ms_status wait_connected(int descriptor, int64_t deadline_ns, int *problem) {
    for (;;) {
        int64_t left = deadline_ns - te_now_ns();
        if (left <= 0) {
            return MS_TIMEOUT;
        }
        struct timespec timeout = {.tv_sec = (time_t)(left / TE_NS_PER_S),
                                   .tv_nsec = (long)(left % TE_NS_PER_S)};
        struct pollfd waited = {.fd = descriptor, .events = POLLOUT};
        int ready = ppoll(&waited, 1, &timeout, NULL);
        if (ready < 0 && errno != EINTR) {
            *problem = errno;
            return MS_UNAVAILABLE;
        }
        if (ready > 0) {
            socklen_t length = sizeof *problem;
            if (getsockopt(descriptor, SOL_SOCKET, SO_ERROR, problem, &length) != 0) {
                *problem = errno;
            }
            return *problem == 0 ? MS_OK : MS_UNAVAILABLE;
        }
    }
}

/* A Unix socket with a full backlog says EAGAIN at once: there is nothing to poll for, so it is
 * tried again. */
static ms_status connect_until(int descriptor, const te_address *address, int64_t deadline_ns,
                               int *problem) {
    for (;;) {
        if (connect(descriptor, (const struct sockaddr *)&address->storage, address->length) == 0) {
            return MS_OK;
        }
        *problem = errno;
        if (errno == EINPROGRESS || (errno == EINTR && !address->is_unix)) {
            return wait_connected(descriptor, deadline_ns, problem);
        }
        if (errno != EAGAIN && errno != EINTR) {
            return MS_UNAVAILABLE;
        }
        if (te_now_ns() >= deadline_ns) {
            return MS_TIMEOUT;
        }
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
}

/* A socket that does not wait, bound to where it should come from. */
static ms_status open_socket(const te_address *address, int *opened, char *error) {
    int descriptor =
        socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) {
        te_error(error, "cannot open a socket for %s: %s", address->text, strerror(errno));
        return errno == EMFILE || errno == ENFILE ? MS_LIMIT : MS_IO_ERROR;
    }
    if (address->local_length > 0) {
        char device[IF_NAMESIZE] = "";
        int on = 1;
        if (!address->is_by_routes) { /* looked up each time: addresses move between interfaces */
            te_interface_between((const struct sockaddr *)&address->local,
                                 (const struct sockaddr *)&address->storage, device);
        }
        if (device[0] != '\0') { /* without the right to it the routes decide */
            (void)setsockopt(descriptor, SOL_SOCKET, SO_BINDTODEVICE, device,
                             (socklen_t)strlen(device));
        }
        (void)setsockopt(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind(descriptor, (const struct sockaddr *)&address->local, address->local_length) !=
            0) {
            te_error(error, "cannot connect to %.100s from the address given: %s", address->text,
                     strerror(errno));
            close(descriptor);
            return MS_UNAVAILABLE;
        }
    }
    te_unpace_before_connect(descriptor, address);
    *opened = descriptor;
    return MS_OK;
}

ms_status te_socket_begin(const te_address *address, int *begun, char *error) {
    int descriptor;
    ms_status status = open_socket(address, &descriptor, error);
    if (status != MS_OK) {
        return status;
    }
    te_socket_tune(descriptor, address->is_unix);
    *begun = descriptor;
    if (connect(descriptor, (const struct sockaddr *)&address->storage, address->length) == 0) {
        return MS_OK;
    }
    if (errno == EINPROGRESS || errno == EINTR) {
        return MS_PENDING;
    }
    te_error(error, "cannot connect to %s: %s", address->text, strerror(errno));
    close(descriptor);
    return MS_UNAVAILABLE;
}

ms_status te_socket_connect(const te_address *address, int64_t deadline_ns, int *connected,
                            char *error) {
    int descriptor, problem = 0;
    ms_status status = open_socket(address, &descriptor, error);
    if (status != MS_OK) {
        return status;
    }
    status = connect_until(descriptor, address, deadline_ns, &problem);
    if (status == MS_TIMEOUT) {
        te_error(error, "%s did not accept a connection in time", address->text);
    } else if (status != MS_OK) {
        te_error(error, "cannot connect to %s: %s", address->text, strerror(problem));
    } else {
        te_socket_tune(descriptor, address->is_unix);
        struct timeval tick = {.tv_usec = TE_TICK_MS * 1000};
        if (setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick) != 0 ||
            setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &tick, sizeof tick) != 0 ||
            te_socket_set_blocking(descriptor, true) != MS_OK) {
            te_error(error, "cannot set up the connection to %s: %s", address->text,
                     strerror(errno));
            status = MS_IO_ERROR;
        }
    }
    if (status != MS_OK) {
        close(descriptor);
        return status;
    }
    *connected = descriptor;
    return MS_OK;
}

/* ---- moving bytes ---------------------------------------------------------------------------- */

ssize_t te_socket_send(int descriptor, const struct iovec *parts, size_t count,
                       const int *descriptors, size_t descriptor_count, int flags) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = count};
    if (descriptor_count > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(descriptor_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(descriptor_count * sizeof(int));
        memcpy(CMSG_DATA(header), descriptors, descriptor_count * sizeof(int));
    }
    ssize_t sent;
    do {
        sent = sendmsg(descriptor, &message, MSG_NOSIGNAL | flags);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

ssize_t te_socket_receive(int descriptor, struct iovec *parts, size_t count, int *passed,
                          size_t passed_room, size_t *passed_count, int flags) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    if (passed != NULL) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    ssize_t received;
    do {
        received = recvmsg(descriptor, &message, MSG_CMSG_CLOEXEC | flags);
    } while (received < 0 && errno == EINTR);
    if (received < 0 || passed == NULL) {
        return received;
    }
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t came = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < came; i++) {
            int one;
            memcpy(&one, CMSG_DATA(header) + i * sizeof one, sizeof one);
            if (*passed_count < passed_room) {
                passed[(*passed_count)++] = one;
            } else {
                close(one); /* nobody asked for it */
            }
        }
    }
    return received;
}

void te_socket_low_water(int descriptor, int bytes) {
    (void)setsockopt(descriptor, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes); /* speed only */
}

size_t te_iov_bytes(const struct iovec *parts, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += parts[i].iov_len;
    }
    return bytes;
}

void te_iov_advance(struct iovec **parts, size_t *count, size_t bytes) {
    while (*count > 0 && bytes >= (*parts)->iov_len) {
        bytes -= (*parts)->iov_len;
        (*parts)++;
        (*count)--;
    }
    if (bytes > 0 && *count > 0) {
        (*parts)->iov_base = (uint8_t *)(*parts)->iov_base + bytes;
        (*parts)->iov_len -= bytes;
    }
}

/* Copies between blocks [offset, offset + length) and a flat buffer, one way or the other. */
static void copy_blocks(const struct iovec *parts, size_t count, size_t offset, uint8_t *flat,
                        size_t length, bool to_flat) {
    for (size_t i = 0; i < count && length > 0; i++) {
        if (offset >= parts[i].iov_len) {
            offset -= parts[i].iov_len;
            continue;
        }
        size_t bytes = parts[i].iov_len - offset;
        bytes = bytes < length ? bytes : length;
        uint8_t *block = (uint8_t *)parts[i].iov_base + offset;
        memcpy(to_flat ? flat : block, to_flat ? block : flat, bytes);
        flat += bytes;
        length -= bytes;
        offset = 0;
    }
}

void te_iov_read(const struct iovec *parts, size_t count, size_t offset, void *target,
                 size_t length) {
    copy_blocks(parts, count, offset, target, length, true);
}

void te_iov_write(const struct iovec *parts, size_t count, size_t offset, const void *source,
                  size_t length) {
    copy_blocks(parts, count, offset, (uint8_t *)(uintptr_t)source, length, false);
}
