/* What the files of tasks share: task.c (beginning and end), task_walk.c, task_object.c, task_repair.c, task_calls.c. */
#ifndef MD_TASK_H
#define MD_TASK_H

#include "md_internal.h"

#define MD_TASK_AGAIN_MS 200 /* before the next walk of a task that moves on */
#define MD_REPAIR_PAUSE_MS_MAX 600000

/* ---- task.c ------------------------------------------------------------------------------------------------------ */
bool md_task_is_over(const md_task *task);
md_task *md_task_find(md_core *core, uint64_t id);
/* The drain of that server, also one that is done; NULL: there is none. */
md_task *md_task_drain_of(md_core *core, uint32_t server);
/* NULL: as many are at work as there may be.  id 0: the next number. */
md_task *md_task_begin(md_core *core, uint32_t kind, uint64_t id);
void md_task_end(md_core *core, md_task *task, uint32_t state);
void md_task_resume(md_core *core, md_task *task);
void md_task_forget(md_task *task);
/* Whoever waits for it, or shows it, is told that its state is another one. */
void md_task_tell(md_core *core, const md_task *task);
void md_task_failures_forget(md_task *task);
void md_task_failure_add(md_task *task, const md_shard *shard, const md_record *record,
                         ms_status status);
void md_task_pass_begin(md_core *core, md_task *task, md_task_pass pass);
void md_task_pass_again(md_core *core, md_task *task, md_task_pass pass, int64_t pause_ms);

/* ---- task_object.c ----------------------------------------------------------------------------------------------- */
void md_task_credit_refill(md_core *core);
/* Whether the bandwidth and what is under way allow one more change. */
bool md_task_may_begin(const md_core *core);
bool md_server_is_in_touch(const md_server *server);
bool md_task_in_scope(const md_task *task, md_shard *shard, md_record *record);
void md_task_treat(md_core *core, md_task *task, uint32_t shard, uint32_t number);
/* What matters of an object's replicas. */
typedef struct md_holders {
    md_replica_set set;
    uint32_t live;    /* that count */
    uint32_t staying; /* of those, at servers that do not drain */
    bool has_source, has_target, is_reachable;
} md_holders;
/* Why no change of this object can begin now; OK: one may.  target: server + 1, or 0. */
ms_status md_task_obstacle(md_core *core, md_shard *shard, const md_record *record,
                           const md_holders *found, uint32_t target);
/* Begins it, or adds why not to the task's failures. */
void md_task_order_change(md_core *core, md_task *task, md_change_order *wanted);

/* ---- task_spread.c ----------------------------------------------------------------------------------------------- */
/* Whether objects may have replicas that share a host and need not. */
bool md_spread_is_due(md_core *core);
/* Of an object that has all of its replicas: one of two on a host goes to another host. */
void md_spread_one(md_core *core, md_task *task, uint32_t shard, uint32_t number,
                   const md_holders *found);

/* ---- task_repair.c ----------------------------------------------------------------------------------------------- */
md_task *md_repair_running(md_core *core);
md_task *md_repair_begin(md_core *core);
void md_repair_pass_ended(md_core *core, md_task *task);

#endif
