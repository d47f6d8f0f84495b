/* A mutational fuzzer for the decoders of frames, inside one process.
 *
 * It begins with the golden frames and tests/fuzz/corpus, knows how bodies are built (fields of 1, 2, 4
 * and 8 bytes at their places, counts before items, padding to 8), and keeps what is well formed in a
 * new way as a base for more.  Each input lies in memory of exactly its size, so AddressSanitizer sees
 * the first byte too many; what is accepted is walked to its last byte and must keep its promises.
 */
#ifndef FRAME_FUZZ_H
#define FRAME_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FUZZ_BODY_MAX 4096u

/* What is judged: the parts of a header that decide the form of a body, and the body. */
typedef struct fuzz_input {
    uint32_t status;
    uint16_t method;
    uint8_t kind;
    uint8_t shift; /* misalignment at which the body is put */
    uint32_t length;
    uint8_t body[FUZZ_BODY_MAX];
} fuzz_input;

/* Whether it was accepted; aborts when something accepted does not keep a promise. */
bool fuzz_execute(const fuzz_input *input);

/* Runs; prints the seed, executions and verdicts of each method.  The current input is always in the
 * file `current_path`, so it is there after a crash; removed at the end.  0 when all methods have
 * accepted and refused something. */
int fuzz_run(uint64_t seed, uint64_t executions, const char *corpus_folder,
             const char *current_path);

/* Executes one input that a crash left behind. */
int fuzz_replay(const char *path);

#endif
