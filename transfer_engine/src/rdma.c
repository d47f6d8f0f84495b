/* RDMA of one engine: its NICs, and what happens to them. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "te_rdma.h"

#include "te_fault.h"

#define LOOK_MS 10000     /* new devices tell nobody: so often the list is read */
#define LOOK_GONE_MS 1000 /* while one is away that was there */

/* One line a process: engines are many, and the machine is one. */
static void tell_once(te_engine *engine, const char *format, const char *what) {
    static _Atomic bool is_told;
    if (!atomic_exchange(&is_told, true))
        te_log(engine, format, what);
}

/* ---- NICs ------------------------------------------------------------------------------------------------------- */

te_rdma_nic *te_rdma_nic_at(te_rdma *rdma, uint32_t index) {
    return index < atomic_load(&rdma->nic_count) ? rdma->nics[index] : NULL;
}

static uint32_t nics_up(te_rdma *rdma) {
    uint32_t up = 0;
    for (uint32_t i = 0; i < atomic_load(&rdma->nic_count); i++)
        up += atomic_load_explicit(&rdma->nics[i]->is_up, memory_order_relaxed);
    return up;
}

static bool is_open(te_rdma *rdma, const char *device) {
    uint32_t count = atomic_load(&rdma->nic_count);
    for (uint32_t i = 0; i < count; i++)
        if (!atomic_load(&rdma->nics[i]->is_gone) && strcmp(rdma->nics[i]->name, device) == 0)
            return true;
    return false;
}

/* Opens what is there and not open yet.  True: something was. */
static bool open_devices(te_rdma *rdma) {
    int count = 0;
    bool any = false;
    verbs_device **list = rdma->verbs->get_device_list(&count);
    for (int i = 0; list != NULL && i < count; i++) {
        uint32_t there = atomic_load(&rdma->nic_count);
        if (!te_rdma_settings_allow(&rdma->settings, list[i]->name) || is_open(rdma, list[i]->name))
            continue;
        te_rdma_nic *nics[TE_RDMA_NICS_MAX];
        uint32_t found =
            te_rdma_device_open(rdma->verbs, list[i], there, nics, TE_RDMA_NICS_MAX - there);
        for (uint32_t j = 0; j < found; j++) {
            rdma->nics[there + j] = nics[j];
            atomic_store(&rdma->nic_count, there + j + 1);
            any = true;
        }
    }
    if (list != NULL)
        rdma->verbs->free_device_list(list);
    return any;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static void gone(te_rdma *rdma, te_rdma_nic *nic, const char *why) {
    if (!atomic_exchange(&nic->is_gone, true))
        te_log(rdma->engine, "rdma: %s %s", nic->name, why);
    atomic_store(&nic->is_up, false);
}

static void take_events(te_rdma *rdma, te_rdma_nic *nic) {
    verbs_async_event event;
    while (nic->verbs->get_async_event(nic->context, &event) == 0) {
        nic->verbs->ack_async_event(&event);
        if (event.event_type == VERBS_EVENT_DEVICE_FATAL) {
            gone(rdma, nic, "has failed or was removed");
            return;
        }
        bool was_up = atomic_load(&nic->is_up);
        if (event.event_type == VERBS_EVENT_PORT_ERR)
            atomic_store(&nic->is_up, false);
        else if (event.event_type >= VERBS_EVENT_PORT_ACTIVE &&
                 event.event_type <= VERBS_EVENT_GID_CHANGE)
            te_rdma_nic_look(nic);
        if (was_up != atomic_load(&nic->is_up))
            te_log(rdma->engine, "rdma: port %u of %s is %s", (unsigned)nic->port, nic->name,
                   was_up ? "down" : "up");
    }
    if (errno != EAGAIN && errno != EINTR)
        gone(rdma, nic, "was removed");
}

static void *watch(void *argument) {
    te_rdma *rdma = argument;
    for (;;) {
        struct pollfd waited[TE_RDMA_NICS_MAX + 1] = {{.fd = rdma->stop_event, .events = POLLIN}};
        te_rdma_nic *nics[TE_RDMA_NICS_MAX];
        nfds_t count = 1;
        bool is_one_away = false;
        for (uint32_t i = 0; i < atomic_load(&rdma->nic_count); i++) {
            if (atomic_load(&rdma->nics[i]->is_gone)) {
                is_one_away = is_one_away || !is_open(rdma, rdma->nics[i]->name);
                continue;
            }
            nics[count - 1] = rdma->nics[i];
            waited[count++] =
                (struct pollfd){.fd = rdma->nics[i]->context->async_fd, .events = POLLIN};
        }
        int ready = poll(waited, count, is_one_away ? LOOK_GONE_MS : LOOK_MS);
        if (waited[0].revents != 0)
            return NULL;
        for (nfds_t i = 1; ready > 0 && i < count; i++)
            if (waited[i].revents & (POLLERR | POLLHUP | POLLNVAL))
                gone(rdma, nics[i - 1], "was removed");
            else if (waited[i].revents != 0)
                take_events(rdma, nics[i - 1]);
        if (ready == 0)
            for (nfds_t i = 1; i < count; i++)
                te_rdma_nic_look(nics[i - 1]);
        if (ready == 0 && open_devices(rdma))
            te_rdma_ranges_add_nic(rdma);
    }
}

/* ---- open and close --------------------------------------------------------------------------------------------- */

static void tell_nics(te_rdma *rdma) {
    char names[TE_ERROR_BYTES / 2] = "";
    for (uint32_t i = 0; i < atomic_load(&rdma->nic_count); i++) {
        size_t length = strlen(names);
        snprintf(names + length, sizeof names - length, "%s%s%s", i > 0 ? ", " : "",
                 rdma->nics[i]->name, atomic_load(&rdma->nics[i]->is_up) ? "" : " (down)");
    }
    tell_once(rdma->engine, "rdma: %s", names);
}

ms_status te_rdma_open(te_engine *engine, te_rdma **opened) {
    const char *why = NULL;
    char problem[160];
    te_rdma_settings settings;
    *opened = NULL;
    te_rdma_settings_read(getenv, &settings, problem, sizeof problem);
    if (problem[0] != '\0')
        te_log(engine, "rdma: %s", problem);
    if (!settings.is_on) {
        tell_once(engine, "rdma: off (%s): TCP is used", "MOONCAKE_STORE_RDMA=0");
        return MS_OK;
    }
    if (!te_rdma_is_there()) {
        tell_once(engine, "rdma: off (%s): TCP is used", "this machine has no RDMA device");
        return MS_OK;
    }
    const te_verbs *verbs = te_verbs_get(&why);
    if (verbs == NULL) {
        tell_once(engine, "rdma: off (%s): TCP is used", why);
        return MS_OK;
    }
    te_rdma *rdma = calloc(1, sizeof *rdma);
    if (rdma == NULL)
        return MS_NO_MEMORY;
    rdma->engine = engine;
    rdma->verbs = verbs;
    rdma->settings = settings;
    pthread_mutex_init(&rdma->lock, NULL);
    pthread_cond_init(&rdma->changed, NULL);
    rdma->stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (rdma->stop_event < 0) {
        te_rdma_close(rdma);
        return MS_LIMIT;
    }
    if (!open_devices(rdma)) {
        tell_once(engine, "rdma: off (%s): TCP is used", "no device could be opened");
        te_rdma_close(rdma);
        return MS_OK;
    }
    tell_nics(rdma);
    *opened = rdma;
    engine->rdma = rdma;
    ms_status status = te_rdma_bounce_open(rdma, &rdma->bounce);
    if (status == MS_OK)
        status = te_thread_start(&rdma->events_thread, "ms-rdma", watch, rdma);
    rdma->has_thread = status == MS_OK;
    return status;
}

void te_rdma_look(te_engine *engine, te_rdma_view *view) {
    te_rdma *rdma = engine->rdma;
    *view = (te_rdma_view){0};
    if (rdma == NULL)
        return;
    const struct te_rdma_counters *counters = &rdma->counters;
    for (uint32_t i = 0; i < atomic_load(&rdma->nic_count); i++)
        view->nics += !atomic_load(&rdma->nics[i]->is_gone);
    view->nics_up = nics_up(rdma);
    view->endpoints_opened = atomic_load(&counters->endpoints_opened);
    view->endpoints = (uint32_t)(view->endpoints_opened - atomic_load(&counters->endpoints_closed));
    view->queue_pairs = (uint32_t)(atomic_load(&counters->queue_pairs_made) -
                                   atomic_load(&counters->queue_pairs_gone));
    view->read_bytes = atomic_load(&counters->read_bytes);
    view->write_bytes = atomic_load(&counters->write_bytes);
    view->slices = atomic_load(&counters->slices);
    view->fallbacks = atomic_load(&counters->fallbacks);
    view->rail_failures = atomic_load(&counters->rail_failures);
    te_rdma_progress(rdma, &view->registered_bytes, &view->wanted_bytes);
}

void te_rdma_stop(te_rdma *rdma) {
    if (rdma == NULL)
        return;
    uint64_t one = 1;
    if (rdma->has_thread && write(rdma->stop_event, &one, sizeof one) == sizeof one)
        pthread_join(rdma->events_thread, NULL);
    rdma->has_thread = false;
    pthread_mutex_lock(&rdma->lock);
    rdma->is_stopping = true;
    while (rdma->is_registering)
        pthread_cond_wait(&rdma->changed, &rdma->lock);
    pthread_mutex_unlock(&rdma->lock);
}

void te_rdma_close(te_rdma *rdma) {
    if (rdma == NULL)
        return;
    te_rdma_stop(rdma);
    te_rdma_bounce_close(rdma->bounce);
    for (uint32_t i = 0; i < atomic_load(&rdma->nic_count); i++)
        te_rdma_nic_close(rdma->nics[i]);
    if (rdma->stop_event >= 0)
        close(rdma->stop_event);
    pthread_mutex_destroy(&rdma->lock);
    pthread_cond_destroy(&rdma->changed);
    free(rdma);
}
