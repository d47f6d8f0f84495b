/* CUT: a peer has a connection of its own closed, and is told when nothing of it can be carried out any more.
 *
 * Whoever lost a path in the middle of a WRITE cannot know what has arrived.  To send it again over another path would
 * be wrong as long as the first may still come: late bytes would fall on what was written after it.  So a connection
 * that carries WRITEs asks for its token first; when the path is lost, the token is sent over another one.  The answer
 * says that the connection, if it was still there, is closed and no step of it touches memory.
 */
#include <string.h>
#include <sys/random.h>

#include "te_parts.h"

static uint64_t token_of(te_link *link) {
    uint64_t token = 0;
    pthread_mutex_lock(&link->engine->peers_lock);
    token = link->cut_token;
    pthread_mutex_unlock(&link->engine->peers_lock);
    while (token == 0) /* random: nobody guesses another's */
        if (getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token)
            return 0;
    pthread_mutex_lock(&link->engine->peers_lock);
    link->cut_token = token;
    pthread_mutex_unlock(&link->engine->peers_lock);
    return token;
}

/* The link with that token, held; NULL: there is none any more. */
static te_link *find(te_engine *engine, uint64_t token) {
    te_link *found = NULL;
    pthread_mutex_lock(&engine->peers_lock);
    for (uint32_t slot = 0; slot < engine->peer_slots && found == NULL; slot++)
        if (engine->peers[slot] != NULL && engine->peers[slot]->cut_token == token)
            found = engine->peers[slot];
    if (found != NULL)
        te_link_hold(found);
    pthread_mutex_unlock(&engine->peers_lock);
    return found;
}

static void answer_cut(te_engine *engine, te_link *link, const te_request *request) {
    uint64_t token = 0;
    if (request->header->body_length != sizeof token) {
        te_link_refuse(link, request->header, MS_BAD_FRAME, "CUT has one number as its body");
        return;
    }
    memcpy(&token, request->body, sizeof token);
    if (token == 0) {
        token = token_of(link);
    } else {
        te_link *other = find(engine, token);
        if (other == link) {
            te_link_release(other);
            te_link_refuse(link, request->header, MS_BAD_REQUEST,
                           "a connection is cut over another one");
            return;
        }
        if (other != NULL) {
            te_link_cut(other, "cut by its peer, who has lost it");
            te_link_release(other);
        }
    }
    struct iovec body = {&token, sizeof token};
    te_link_answer(link, request->header, token == 0 ? MS_INTERNAL : MS_OK, &body, 1, NULL, 0, NULL,
                   0);
}

void te_cuts_install(te_engine *engine) { engine->methods[MS_CUT] = answer_cut; }
