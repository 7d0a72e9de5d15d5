/* A stand-in for NCCL that writes down what it is asked, for ranks on the stand-in driver. Nothing travels.

   cc -shared -fPIC -Wl,-soname,libnccl.so.2 -o libnccl.so.2 nccl.c

   STAND_IN_NCCL        the file to which every call is appended: one line of JSON
   STAND_IN_NCCL_FAIL   NAME:N:CODE: the N-th call of function NAME in a process fails with CODE
   STAND_IN_NCCL_RELEASE   the version [default: 22703]
   STAND_IN_NCCL_TAKES  milliseconds that a collective is in progress [default: 0]

   Signatures as in nccl.h of NCCL 2.14 and later. Communicators do not block: their first state is "in progress". */

#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int Result;
enum { SUCCESS = 0, INVALID_ARGUMENT = 4, IN_PROGRESS = 7 };
struct Id { unsigned char bytes[128]; };
struct Config { size_t size; unsigned magic, version; int blocking; };
struct Comm { int rank, ranks, looks; unsigned id; long long done; };

static void record(const char *format, ...) {
    const char *path = getenv("STAND_IN_NCCL");
    char line[512];
    int used = snprintf(line, sizeof line, "{\"process\": %d, \"thread\": %ld, ", (int)getpid(), (long)syscall(SYS_gettid));
    va_list arguments;
    if (!path) return;
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 3, format, arguments);
    va_end(arguments);
    used += snprintf(line + used, 3, "}\n");
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line, (size_t)used) != used) perror(path);
    if (file >= 0) close(file);
}

/* The code with which this call of a function is to fail. */
static Result fails(const char *name) {
    static int calls;
    const char *text = getenv("STAND_IN_NCCL_FAIL");
    char wanted[64];
    int call, code;
    if (!text || sscanf(text, "%63[^:]:%d:%d", wanted, &call, &code) != 3 || strcmp(wanted, name) != 0) return SUCCESS;
    return __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) == call ? code : SUCCESS;
}

static long long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static Result collective(const char *name, struct Comm *comm, size_t count, int type, int peer, const void *from,
                         const void *to, void *stream) {
    record("\"call\": \"%s\", \"id\": %u, \"rank\": %d, \"ranks\": %d, \"count\": %zu, \"type\": %d, \"peer\": %d, \"from\": %zu, "
           "\"to\": %zu, \"stream\": %zu", name, comm->id, comm->rank, comm->ranks, count, type, peer, (size_t)from, (size_t)to,
           (size_t)stream);
    const char *takes = getenv("STAND_IN_NCCL_TAKES");
    const Result code = fails(name);
    if (!takes || code != SUCCESS) return code;
    comm->done = milliseconds() + atoi(takes);
    return IN_PROGRESS;
}

Result ncclGetVersion(int *version) {
    const char *text = getenv("STAND_IN_NCCL_RELEASE");
    *version = text ? atoi(text) : 22703;
    return SUCCESS;
}

const char *ncclGetErrorString(Result code) { return code == 6 ? "remote process exited" : "the stand-in refused this"; }

Result ncclGetUniqueId(struct Id *id) {
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    const int all = file >= 0 && read(file, id->bytes, sizeof id->bytes) == sizeof id->bytes;
    if (file >= 0) close(file);
    record("\"call\": \"ncclGetUniqueId\"");
    return all ? fails("ncclGetUniqueId") : 2;
}

Result ncclCommInitRankConfig(struct Comm **made, int ranks, struct Id id, int rank, const struct Config *config) {
    struct Comm *comm = calloc(1, sizeof *comm);
    if (!comm || config->size < sizeof *config || config->magic != 0xcafebeef || config->blocking != 0) return INVALID_ARGUMENT;
    comm->rank = rank;
    comm->ranks = ranks;
    /* All bytes count: ranks that got half of an identifier do not meet. */
    for (size_t at = 0; at < sizeof id.bytes; at++) comm->id = comm->id * 31 + id.bytes[at];
    record("\"call\": \"ncclCommInitRankConfig\", \"id\": %u, \"rank\": %d, \"ranks\": %d", comm->id, rank, ranks);
    *made = comm;
    const Result code = fails("ncclCommInitRankConfig");
    return code ? code : IN_PROGRESS;
}

Result ncclCommGetAsyncError(struct Comm *comm, Result *state) {
    *state = comm->looks++ == 0 || milliseconds() < comm->done ? IN_PROGRESS : SUCCESS;
    return SUCCESS;
}

Result ncclCommAbort(struct Comm *comm) {
    record("\"call\": \"ncclCommAbort\", \"id\": %u, \"rank\": %d, \"ranks\": %d", comm->id, comm->rank, comm->ranks);
    return SUCCESS;
}

Result ncclGroupStart(void) { record("\"call\": \"ncclGroupStart\""); return fails("ncclGroupStart"); }
Result ncclGroupEnd(void) { record("\"call\": \"ncclGroupEnd\""); return fails("ncclGroupEnd"); }

Result ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, struct Comm *comm, void *stream) {
    /* Only sums are asked for. */
    return operation ? INVALID_ARGUMENT : collective("ncclAllReduce", comm, count, type, -1, from, to, stream);
}

Result ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, struct Comm *comm, void *stream) {
    return operation ? INVALID_ARGUMENT : collective("ncclReduceScatter", comm, count, type, -1, from, to, stream);
}

Result ncclAllGather(const void *from, void *to, size_t count, int type, struct Comm *comm, void *stream) {
    return collective("ncclAllGather", comm, count, type, -1, from, to, stream);
}

Result ncclSend(const void *from, size_t count, int type, int peer, struct Comm *comm, void *stream) {
    return collective("ncclSend", comm, count, type, peer, from, NULL, stream);
}

Result ncclRecv(void *to, size_t count, int type, int peer, struct Comm *comm, void *stream) {
    return collective("ncclRecv", comm, count, type, peer, NULL, to, stream);
}
