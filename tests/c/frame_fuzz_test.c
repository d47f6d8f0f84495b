/* Fuzzes the decoders of frames under AddressSanitizer and UBSan: 1.2 million executions, a new seed each time.
 *
 *     frame_fuzz_test [SEED [EXECUTIONS [INPUT FILE]]]     run; the file keeps the input of a crash
 *     frame_fuzz_test --replay FILE                        execute what a crash left behind
 *
 * tests/fuzz/test_planted_faults.py shows that it finds faults. */
// sources: tests/fuzz/frame_fuzz.c tests/fuzz/frame_walk.c mooncake_store/protocol/src/*.c
// variants: address
// timeout: 120
// flags: -Itests/c -Itests/fuzz
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "frame_fuzz.h"

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--replay") == 0)
        return fuzz_replay(argv[2]);
    uint32_t chance = 0;
    if (argc < 2 && getrandom(&chance, sizeof chance, 0) != sizeof chance)
        return 2;
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : chance;
    uint64_t executions = argc > 2 ? strtoull(argv[2], NULL, 10) : 1200000;
    char path[64] = "";
    if (argc <= 3) {
        if (mkdir("build", 0777) != 0 && errno != EEXIST)
            return 2;
        snprintf(path, sizeof path, "build/frame-fuzz-%llu.input", (unsigned long long)seed);
    }
    return fuzz_run(seed, executions, "tests/fuzz/corpus", argc > 3 ? argv[3] : path);
}
