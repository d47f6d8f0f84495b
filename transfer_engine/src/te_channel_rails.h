/* The rails of a channel: large transfers of te_read and te_write go over all addresses of the peer at once.
 *
 * A channel with several TCP addresses has a path (te_rail_ops.h) over them, opened in the background by the first
 * transfer that is large enough.  Nobody waits for it: while no rail is up, and for what the rails could not move, bytes
 * go over the channel's connections as they do without rails.  A channel with one address costs a look at two numbers, until a
 * transfer says how bytes are to be shared: from then on its one rail has a schedule, too.
 *
 * Beside those addresses a path has a rail for each RDMA NIC of this engine.  While one of them is up, all bytes go by NICs.
 *
 * A path's connections say the channel's HELLO.  With another HELLO (a new session or epoch) comes another path; what is
 * under way over the old one ends there.
 */
#ifndef TE_CHANNEL_RAILS_H
#define TE_CHANNEL_RAILS_H

#include "te_carrier.h"

/* Less is not worth the change of threads: it would be one slice. */
#define TE_RAILS_BYTES_MIN (UINT64_C(128) << 10)

typedef struct te_channel_rails te_channel_rails;

/* `addresses`: as te_channel_config has them. */
ms_status te_channel_rails_open(te_channel *channel, const char *addresses,
                                te_channel_rails **rails);
/* Nobody is inside the channel any more. */
void te_channel_rails_close(te_channel_rails *rails);
/* The HELLO or the place has changed: transfers from now on open another path. */
void te_channel_rails_renew(te_channel_rails *rails);
/* What is under way ends.  `for_ever`: nothing begins any more. */
void te_channel_rails_break_off(te_channel_rails *rails, bool for_ever);
/* Other rails from now on: none, or one, is no path. */
ms_status te_channel_rails_set(te_channel_rails *rails, const te_rail_ends *ends, uint32_t count);
/* Whether there are several. */
bool te_channel_rails_are_several(const te_channel_rails *rails);
/* There are several, or one whose bytes a transfer has asked to share (te_channel_rails_want). */
bool te_channel_rails_are_used(const te_channel_rails *rails);
/* Whether a transfer of so many bytes goes over lanes of RDMA NICs: it is large enough and somebody has said how bytes are
 * shared, or it is of class BACKGROUND; and one is up.  If it should, and none is up, one is asked for. */
bool te_channel_rails_serve_rdma(te_channel_rails *rails, te_opcode opcode, uint64_t bytes,
                                 bool is_background);
/* From now on also one rail has a schedule: what is urgent goes first on it as well. */
void te_channel_rails_want(te_channel_rails *rails);
/* Rail `index` of the path that is used now, READs first; false: there is none. */
bool te_channel_rails_look(te_channel_rails *rails, uint32_t index, te_rail_status *status);

/* Moves what it can of those items that are PENDING and have bytes.  An item that it could not move, and that certainly
 * will not be moved later by what it tried, stays PENDING.  OK, or what ended all of it: TIMEOUT, CANCELLED, IO_ERROR
 * (a WRITE that the peer may still carry out). */
ms_status te_channel_rails_read(te_channel *channel, const ms_read_item *items,
                                void *const *targets, size_t count, ms_read_result *results,
                                const te_transfer_options *options, int64_t deadline_ns);
ms_status te_channel_rails_write(te_channel *channel, const ms_write_item *items,
                                 const void *const *sources, size_t count, uint32_t *statuses,
                                 const te_transfer_options *options, int64_t deadline_ns);

/* ---- channel.c, for it ---- */
te_channel_rails *te_channel_rails_of(const te_channel *channel);
/* A copy of the HELLO that counts now. */
ms_status te_channel_copy_hello(te_channel *channel, uint8_t **hello, size_t *length);

#endif
