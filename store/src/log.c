/* The log: lines wait in a ring until the process that runs the server takes them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "st_internal.h"

#define LOG_LINES 256u

struct st_log_line {
    int severity;
    char text[256];
};

ms_status st_log_open(st_server *server) {
    server->log_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->log_lines = calloc(LOG_LINES, sizeof *server->log_lines);
    return server->log_event >= 0 && server->log_lines != NULL ? MS_OK : MS_NO_MEMORY;
}

void st_log_close(st_server *server) {
    if (server->log_event >= 0)
        close(server->log_event);
    free(server->log_lines);
}

void st_log(st_server *server, int severity, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&server->log_lock);
    if (server->log_count == LOG_LINES) { /* nobody reads: the oldest goes */
        server->log_first = (server->log_first + 1) % LOG_LINES;
        server->log_count--;
        server->log_dropped++;
        st_count_add(server, ST_COUNT_LINES_DROPPED, 1);
    }
    struct st_log_line *line =
        &server->log_lines[(server->log_first + server->log_count) % LOG_LINES];
    line->severity = severity;
    vsnprintf(line->text, sizeof line->text, format, arguments);
    server->log_count++;
    pthread_mutex_unlock(&server->log_lock);
    va_end(arguments);
    uint64_t one = 1;
    ssize_t written = write(server->log_event, &one, sizeof one);
    (void)written; /* full means readable, which is all it says */
}

size_t st_next_log(st_server *server, char *text, size_t size, int *severity) {
    size_t length = 0;
    pthread_mutex_lock(&server->log_lock);
    if (server->log_dropped != 0 && size != 0) {
        length = (size_t)snprintf(text, size, "lines_dropped count=%u reason=\"nobody took them\"",
                                  server->log_dropped);
        length = length < size ? length : size - 1;
        *severity = 1;
        server->log_dropped = 0;
    } else if (server->log_count != 0 && size != 0) {
        const struct st_log_line *line = &server->log_lines[server->log_first];
        snprintf(text, size, "%s", line->text);
        length = strlen(text);
        *severity = line->severity;
        server->log_first = (server->log_first + 1) % LOG_LINES;
        server->log_count--;
    }
    if (server->log_count == 0) {
        uint64_t value;
        ssize_t got = read(server->log_event, &value, sizeof value);
        (void)got;
    }
    pthread_mutex_unlock(&server->log_lock);
    return length;
}

int st_log_descriptor(st_server *server) { return server->log_event; }
