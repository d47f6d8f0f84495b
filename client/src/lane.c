/* Where asyncio's reads that need no master run when calls that may wait for it hold all workers.
 *
 * One thread and a bounded queue, started when first needed.  What runs here asks no master, and gives a store server
 * the hedge's time: a read that turns out to need more is handed on to the workers (see cl_get_known).  So whatever the
 * master and a frozen server do, a read whose location is known waits for other such reads only.
 */
#include "cl_internal.h"

static void *work(void *argument) {
    cl_client *client = argument;
    cl_lane *lane = &client->lane;
    pthread_mutex_lock(&lane->lock);
    for (;;) {
        while (lane->count == 0 && !lane->is_stopping)
            pthread_cond_wait(&lane->filled, &lane->lock);
        if (lane->count == 0)
            break;
        cl_lane_job job = lane->jobs[lane->first];
        lane->first = (lane->first + 1) % CL_LANE_JOBS;
        lane->count--;
        pthread_mutex_unlock(&lane->lock);
        job.run(job.argument);
        pthread_mutex_lock(&lane->lock);
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

void cl_lane_open(cl_client *client) {
    pthread_mutex_init(&client->lane.lock, NULL);
    pthread_cond_init(&client->lane.filled, NULL);
}

/* Lock held. */
static bool start(cl_client *client) {
    cl_lane *lane = &client->lane;
    if (lane->runs)
        return true;
    if (lane->jobs == NULL)
        lane->jobs = malloc(CL_LANE_JOBS * sizeof *lane->jobs);
    if (lane->jobs == NULL || pthread_create(&lane->thread, NULL, work, client) != 0)
        return false;
    pthread_setname_np(lane->thread, "cl-lane");
    lane->runs = true;
    return true;
}

bool cl_lane_spawn(cl_client *client, void (*run)(void *argument), void *argument) {
    cl_lane *lane = &client->lane;
    pthread_mutex_lock(&lane->lock);
    bool is_taken = !lane->is_stopping && lane->count < CL_LANE_JOBS && start(client);
    if (is_taken) {
        uint32_t at = (lane->first + lane->count++) % CL_LANE_JOBS;
        lane->jobs[at] = (cl_lane_job){.run = run, .argument = argument};
        pthread_cond_signal(&lane->filled);
    }
    pthread_mutex_unlock(&lane->lock);
    return is_taken;
}

void cl_lane_stop(cl_client *client) {
    cl_lane *lane = &client->lane;
    pthread_mutex_lock(&lane->lock);
    lane->is_stopping = true;
    bool runs = lane->runs;
    pthread_cond_broadcast(&lane->filled);
    pthread_mutex_unlock(&lane->lock);
    if (runs)
        pthread_join(lane->thread, NULL);
    lane->runs = false;
}

void cl_lane_close(cl_client *client) {
    pthread_mutex_destroy(&client->lane.lock);
    pthread_cond_destroy(&client->lane.filled);
    free(client->lane.jobs);
}
