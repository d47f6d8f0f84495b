/* Reads a topology from JSON and ranks NICs: see te_rails.h. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "te.h"
#include "te_rails.h"

#define DEPTH_MAX 32

/* A cursor over JSON; after the first fault everything fails. */
typedef struct json_cursor {
    const char *at, *end;
    bool is_bad;
} json_cursor;

static void skip_space(json_cursor *json) {
    while (json->at < json->end &&
           (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
        json->at++;
}

/* Takes the character if it comes next. */
static bool take(json_cursor *json, char wanted) {
    skip_space(json);
    if (json->is_bad || json->at == json->end || *json->at != wanted)
        return false;
    json->at++;
    return true;
}

static bool expect(json_cursor *json, char wanted) {
    if (take(json, wanted))
        return true;
    json->is_bad = true;
    return false;
}

/* A string of plain characters: names and addresses need no escapes, so those are refused. */
static bool read_text(json_cursor *json, char *target, size_t size) {
    if (!expect(json, '"'))
        return false;
    size_t length = 0;
    while (json->at < json->end && *json->at != '"') {
        char next = *json->at++;
        if (next == '\\' || (unsigned char)next < 0x20 || length + 1 >= size) {
            json->is_bad = true;
            return false;
        }
        target[length++] = next;
    }
    target[length] = '\0';
    return expect(json, '"');
}

static void skip_text(json_cursor *json) {
    if (!expect(json, '"'))
        return;
    while (json->at < json->end && *json->at != '"')
        json->at += *json->at == '\\' && json->at + 1 < json->end ? 2 : 1;
    expect(json, '"');
}

/* Any value, without looking into it. */
static void skip_value(json_cursor *json) {
    int depth = 0;
    do {
        skip_space(json);
        if (json->is_bad || json->at == json->end || depth > DEPTH_MAX) {
            json->is_bad = true;
            return;
        }
        char next = *json->at;
        if (next == '"') {
            skip_text(json);
        } else if (next == '{' || next == '[') {
            json->at++;
            depth++;
        } else if (next == '}' || next == ']') {
            json->at++;
            depth--;
        } else if ((next == ',' || next == ':') && depth > 0) {
            json->at++;
            continue;
        } else {
            const char *start = json->at;
            while (json->at < json->end && strchr(",:]} \t\r\n", *json->at) == NULL)
                json->at++;
            if (json->at == start)
                json->is_bad = true;
        }
        if (depth < 0)
            json->is_bad = true;
    } while (depth > 0);
}

/* Between the members of an object or array: false at its end. */
static bool next_member(json_cursor *json, bool *is_first, char close) {
    if (json->is_bad)
        return false;
    if (*is_first) {
        *is_first = false;
        return !take(json, close);
    }
    if (take(json, close))
        return false;
    return expect(json, ',');
}

static void read_nics(json_cursor *json, te_topology *topology) {
    bool is_first = true;
    expect(json, '{');
    while (next_member(json, &is_first, '}')) {
        if (topology->nic_count == TE_NICS_MAX) {
            json->is_bad = true;
            return;
        }
        te_nic *nic = &topology->nics[topology->nic_count++];
        read_text(json, nic->name, sizeof nic->name);
        expect(json, ':');
        expect(json, '[');
        bool is_first_address = true;
        while (next_member(json, &is_first_address, ']')) {
            if (nic->address_count == TE_NIC_ADDRESSES_MAX) {
                json->is_bad = true;
                return;
            }
            read_text(json, nic->addresses[nic->address_count++], sizeof nic->addresses[0]);
        }
    }
}

static uint64_t read_names(json_cursor *json, const te_topology *topology) {
    uint64_t mask = 0;
    bool is_first = true;
    expect(json, '[');
    while (next_member(json, &is_first, ']')) {
        char name[TE_NIC_NAME_BYTES];
        if (!read_text(json, name, sizeof name))
            break;
        uint32_t nic = 0;
        while (nic < topology->nic_count && strcmp(topology->nics[nic].name, name) != 0)
            nic++;
        if (nic == topology->nic_count)
            json->is_bad = true;
        else
            mask |= UINT64_C(1) << nic;
    }
    return mask;
}

static void read_matrix(json_cursor *json, te_topology *topology) {
    bool is_first = true;
    expect(json, '{');
    while (next_member(json, &is_first, '}')) {
        if (topology->location_count == TE_LOCATIONS_MAX) {
            json->is_bad = true;
            return;
        }
        te_location *location = &topology->locations[topology->location_count++];
        read_text(json, location->name, sizeof location->name);
        expect(json, ':');
        expect(json, '[');
        location->preferred = read_names(json, topology);
        expect(json, ',');
        location->secondary = read_names(json, topology) & ~location->preferred;
        expect(json, ']');
    }
}

ms_status te_topology_parse(const char *text, size_t length, te_topology *topology, char *error) {
    json_cursor json = {text, text + length, false};
    json_cursor matrix = {0};
    memset(topology, 0, sizeof *topology);
    bool is_first = true;
    expect(&json, '{');
    while (next_member(&json, &is_first, '}')) {
        char name[32];
        read_text(&json, name, sizeof name);
        expect(&json, ':');
        if (strcmp(name, "nics") == 0 && topology->nic_count == 0) {
            read_nics(&json, topology);
        } else {
            /* Members come in any order, and the matrix needs the names of the NICs. */
            if (!json.is_bad && strcmp(name, "matrix") == 0)
                matrix = json;
            skip_value(&json);
        }
    }
    skip_space(&json);
    if (json.at != json.end)
        json.is_bad = true;
    if (!json.is_bad && matrix.at != NULL) {
        read_matrix(&matrix, topology);
        json.is_bad = matrix.is_bad;
        if (matrix.is_bad)
            json.at = matrix.at;
    }
    if (!json.is_bad)
        return MS_OK;
    memset(topology, 0, sizeof *topology);
    if (error != NULL)
        snprintf(error, TE_ERROR_BYTES,
                 "topology: not as expected at byte %zu: want {\"nics\": {NAME: [ADDRESS, ...]}, "
                 "\"matrix\": {LOCATION: [[NAME, ...], [NAME, ...]]}}",
                 (size_t)(json.at - text));
    return MS_BAD_REQUEST;
}

uint32_t te_topology_tier(const te_topology *topology, const char *location, uint32_t nic) {
    if (nic >= topology->nic_count)
        return TE_TIER_OTHER;
    for (uint32_t i = 0; i < topology->location_count; i++) {
        if (strcmp(topology->locations[i].name, location) != 0)
            continue;
        if (topology->locations[i].preferred >> nic & 1)
            return TE_TIER_PREFERRED;
        return topology->locations[i].secondary >> nic & 1 ? TE_TIER_SECONDARY : TE_TIER_OTHER;
    }
    return TE_TIER_PREFERRED;
}

uint32_t te_topology_rank(const te_topology *topology, const char *location,
                          uint32_t order[TE_NICS_MAX]) {
    uint32_t count = 0;
    for (uint32_t tier = 0; tier < TE_TIER_COUNT; tier++)
        for (uint32_t nic = 0; nic < topology->nic_count; nic++)
            if (te_topology_tier(topology, location, nic) == tier)
                order[count++] = nic;
    return count;
}

uint32_t te_topology_nic_of(const te_topology *topology, const char *address) {
    for (uint32_t nic = 0; nic < topology->nic_count; nic++)
        for (uint32_t i = 0; i < topology->nics[nic].address_count; i++)
            if (strcmp(topology->nics[nic].addresses[i], address) == 0)
                return nic;
    return UINT32_MAX;
}
