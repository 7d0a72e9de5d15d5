/* A stand-in for the CUDA driver, for machines without a GPU: the program's CUDA backend opens its device, has NVRTC compile every
   kernel, and launches and copies. Nothing is computed, and copies to the host give zeros. Each call that costs time on a GPU is counted.

   cc -shared -fPIC -o libcuda.so driver.c, without a soname: NVRTC asks a library named `libcuda.so.1` for tables that are not here.

   STAND_IN_COUNTS   the file to which a process that opened the device appends its counts as it ends: one line of JSON
   STAND_IN_OUT_OF_MEMORY_AFTER
                     bytes of device memory after which a process gets no more, whatever it gives back [default: none]
   STAND_IN_SM       the compute capability [default: 80]
   STAND_IN_DEVICES  the number of devices [default: 1]
   STAND_IN_LOG      the file to which launches, copies, events, waits and allocations are appended as they are asked for: one line of
                     JSON each, with process and thread
   STAND_IN_MEMORY   the memory of a device in GiB [default: 80]

   A kernel that takes 64-bit indices is counted under its name with `_u64` behind it.

   Device memory is a range of addresses without anything behind them: whoever follows a device pointer on the host crashes, as on a GPU. */

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int Result;
typedef uint64_t Pointer;
enum { DONE = 0, INVALID = 1, NO_MEMORY = 2 };

/* The memory that the device says it has: as much as an A100 of 80 GB, unless told otherwise. */
static size_t memory(void) {
    const char *text = getenv("STAND_IN_MEMORY");
    return (size_t)(text ? atoi(text) : 80) << 30;
}

/* ---------------------------------------------------------------------------------------------------------------- counts */

/* How often each of something happened: a kernel by its name, a copy by its bytes. */
struct Tally {
    const char *name;
    struct { char key[160]; long times; } entries[1024];
    int used;
    long times, bytes;
};

static struct Tally launches = {.name = "launches"}, uploads = {.name = "uploads"}, downloads = {.name = "downloads"},
                    moves = {.name = "moves"};
static long kernels, allocations, host_allocations, synchronisations;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void count(long *counter) { __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED); }

static void tally(struct Tally *tally, const char *key, size_t bytes) {
    pthread_mutex_lock(&counting);
    tally->times++;
    tally->bytes += (long)bytes;
    int at = 0;
    while (at < tally->used && strncmp(tally->entries[at].key, key, sizeof tally->entries[at].key - 1) != 0) at++;
    /* What finds no room is in the sums alone. */
    if (at < (int)(sizeof tally->entries / sizeof *tally->entries)) {
        if (at == tally->used) {
            snprintf(tally->entries[at].key, sizeof tally->entries[at].key, "%s", key);
            tally->used++;
        }
        tally->entries[at].times++;
    }
    pthread_mutex_unlock(&counting);
}

static void copy(struct Tally *direction, size_t bytes) {
    char key[24];
    snprintf(key, sizeof key, "%zu", bytes);
    tally(direction, key, bytes);
}

/* `"launches": 3, "launches_bytes": 0, "launches_by": {"name": 3}`. Names of kernels are identifiers. */
static void write_tally(FILE *out, const struct Tally *tally) {
    fprintf(out, "\"%s\": %ld, \"%s_bytes\": %ld, \"%s_by\": {", tally->name, tally->times, tally->name, tally->bytes, tally->name);
    for (int at = 0; at < tally->used; at++)
        fprintf(out, "%s\"%s\": %ld", at ? ", " : "", tally->entries[at].key, tally->entries[at].times);
    fprintf(out, "}, ");
}

static int opened;

/* The device that was opened last: a rank opens one. */
static int opened_device;

__attribute__((destructor)) static void at_end(void) {
    const char *path = getenv("STAND_IN_COUNTS");
    char *line = NULL;
    size_t length = 0;
    if (!path || !opened) return;
    FILE *out = open_memstream(&line, &length);
    if (!out) return;
    fprintf(out, "{\"process\": %d, \"device\": %d, ", (int)getpid(), opened_device);
    write_tally(out, &launches);
    write_tally(out, &uploads);
    write_tally(out, &downloads);
    write_tally(out, &moves);
    fprintf(out, "\"kernels\": %ld, \"allocations\": %ld, \"host_allocations\": %ld, \"synchronisations\": %ld}\n", kernels, allocations,
            host_allocations, synchronisations);
    fclose(out);
    /* In one write, because several processes may end at once. */
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0 && write(file, line, length) != (ssize_t)length) perror(path);
    if (file >= 0) close(file);
    free(line);
}

/* ------------------------------------------------------------------------------------------------------------------- log */

static int log_file = -1;
static void open_log(void) {
    const char *path = getenv("STAND_IN_LOG");
    if (path && (log_file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)) < 0) perror(path);
}

static int is_logged(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_log);
    return log_file >= 0;
}

/* Appends a call and what follows it, in one write, so that lines of several threads and processes stay whole. */
static void say(const char *call, const char *format, ...) {
    char line[4096];
    va_list arguments;
    if (!is_logged()) return;
    int used = snprintf(line, sizeof line, "{\"process\": %d, \"thread\": %ld, \"call\": \"%s\"", (int)getpid(),
                        (long)syscall(SYS_gettid), call);
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 2, format, arguments);
    va_end(arguments);
    if (used > (int)sizeof line - 3) used = (int)sizeof line - 3;
    used += snprintf(line + used, 3, "}\n");
    if (write(log_file, line, (size_t)used) != used) perror("STAND_IN_LOG");
}

static void say_wait(const char *call, const void *stream, const void *event) {
    say(call, ", \"stream\": %zu, \"event\": %zu", (size_t)stream, (size_t)event);
}

static void say_memory(const char *call, Pointer pointer, size_t bytes, const void *stream) {
    say(call, ", \"pointers\": [%zu], \"bytes\": %zu, \"stream\": %zu", (size_t)pointer, bytes, (size_t)stream);
}

static void say_copy(const char *call, Pointer to, Pointer from, size_t bytes, const void *stream) {
    say(call, ", \"to\": %zu, \"from\": %zu, \"bytes\": %zu, \"stream\": %zu", (size_t)to, (size_t)from, bytes, (size_t)stream);
}

/* What NVRTC made of a module, and which parameters of a function are addresses: bit 0 is the first parameter. */
static struct Image { const void *module; char *text; struct Image *next; } *images;
static struct Function { const void *function; uint64_t addresses; struct Function *next; } *functions;

static void keep_image(const void *module, const char *text) {
    struct Image *image = is_logged() ? malloc(sizeof *image) : NULL;
    if (!image) return;
    pthread_mutex_lock(&counting);
    *image = (struct Image){module, strdup(text), images};
    images = image;
    pthread_mutex_unlock(&counting);
}

/* The parameters of `.entry NAME(.param .u64 .ptr .align 1 NAME_param_0, .param .align 8 .b8 NAME_param_1[16])` that are addresses. */
static uint64_t addresses_of(const char *text, const char *name) {
    const size_t length = strlen(name);
    uint64_t addresses = 0;
    for (const char *at = text; at && (at = strstr(at, ".entry ")) != NULL;) {
        at += strlen(".entry ");
        if (strncmp(at, name, length) != 0 || at[length] != '(') continue;
        const char *end = strchr(at, ')');
        for (int index = 0; index < 64 && (at = strstr(at, ".param ")) != NULL && at < end; index++) {
            at += strlen(".param ");
            if (strncmp(at, ".u64", 4) == 0) addresses |= (uint64_t)1 << index;
        }
        break;
    }
    return addresses;
}

static void keep_function(const void *function, const void *module, const char *name) {
    struct Function *kept = is_logged() ? malloc(sizeof *kept) : NULL;
    if (!kept) return;
    pthread_mutex_lock(&counting);
    const struct Image *image = images;
    while (image && image->module != module) image = image->next;
    *kept = (struct Function){function, image ? addresses_of(image->text, name) : 0, functions};
    functions = kept;
    pthread_mutex_unlock(&counting);
}

static void say_launch(const void *function, const void *stream, void **arguments) {
    char pointers[1024] = "";
    int used = 0;
    if (!is_logged()) return;
    pthread_mutex_lock(&counting);
    const struct Function *kept = functions;
    while (kept && kept->function != function) kept = kept->next;
    pthread_mutex_unlock(&counting);
    for (int index = 0; kept && index < 64 && used < (int)sizeof pointers - 24; index++)
        if (kept->addresses >> index & 1)
            used += snprintf(pointers + used, sizeof pointers - (size_t)used, "%s%zu", used ? ", " : "",
                             (size_t)*(const Pointer *)arguments[index]);
    say("cuLaunchKernel", ", \"kernel\": \"%.200s\", \"stream\": %zu, \"pointers\": [%s]", (const char *)function, (size_t)stream,
        pointers);
}

/* ---------------------------------------------------------------------------------------------------------------- device */

static int capability(void) {
    const char *text = getenv("STAND_IN_SM");
    return text ? atoi(text) : 80;
}

static int devices(void) {
    const char *text = getenv("STAND_IN_DEVICES");
    return text ? atoi(text) : 1;
}

Result cuInit(unsigned flags) { return DONE; }
Result cuDriverGetVersion(int *version) { *version = 13000; return DONE; }
Result cuDeviceGetCount(int *count) { *count = devices(); return DONE; }
Result cuDeviceGet(int *device, int index) { *device = index; return index < devices() ? DONE : INVALID; }
Result cuDeviceGetName(char *name, int room, int device) { snprintf(name, (size_t)room, "stand-in sm_%d", capability()); return DONE; }
/* An address that no device of this machine has: its memory is asked from `nvidia-smi`. */
Result cuDeviceGetPCIBusId(char *address, int room, int device) { snprintf(address, (size_t)room, "00ff:ee:%02x.0", device); return DONE; }
Result cuDeviceGetUuid(void *id, int device) { memset(id, device + 1, 16); return DONE; }
Result cuDeviceGetUuid_v2(void *id, int device) { return cuDeviceGetUuid(id, device); }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = memory(); return DONE; }
Result cuMemGetInfo_v2(size_t *available, size_t *all) { *available = *all = memory(); return DONE; }

Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    const int sm = capability(), is_hopper = sm >= 90;
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;            /* threads of a block, and of it along x and y */
    case 4: *value = 64; break;                              /* along z */
    case 5: *value = 2147483647; break;                      /* blocks of a grid along x */
    case 6: case 7: *value = 65535; break;                   /* along y and z */
    case 8: *value = 49152; break;                           /* shared memory of a block */
    case 10: *value = 32; break;                             /* threads of a warp */
    case 12: *value = 65536; break;                          /* registers of a block */
    case 13: *value = 1410000; break;                        /* kHz */
    case 16: *value = is_hopper ? 132 : 108; break;          /* multiprocessors */
    case 75: *value = sm / 10; break;                        /* compute capability */
    case 76: *value = sm % 10; break;
    case 81: *value = is_hopper ? 233472 : 167936; break;    /* shared memory of a multiprocessor */
    case 97: *value = is_hopper ? 232448 : 166912; break;    /* shared memory that a block may ask for */
    default: *value = 1;                                     /* whether the device can do something: it can */
    }
    return DONE;
}

static __thread void *current;
Result cuDevicePrimaryCtxRetain(void **context, int device) {
    opened = 1;
    opened_device = device;
    *context = &opened;
    return DONE;
}
Result cuDevicePrimaryCtxRelease_v2(int device) { return DONE; }
Result cuCtxSetCurrent(void *context) { current = context; return DONE; }
Result cuCtxGetCurrent(void **context) { *context = current; return DONE; }
Result cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return DONE; }
Result cuCtxSynchronize(void) { say_wait("cuCtxSynchronize", NULL, NULL); count(&synchronisations); return DONE; }

/* ---------------------------------------------------------------------------------------------------------------- memory */

/* Whether a process that asks for so much has had all that it gets. */
static int is_exhausted(size_t bytes) {
    static size_t given;
    const char *text = getenv("STAND_IN_OUT_OF_MEMORY_AFTER");
    return text && __atomic_add_fetch(&given, bytes, __ATOMIC_RELAXED) > strtoull(text, NULL, 10);
}

static Result allocate(Pointer *pointer, size_t bytes) {
    if (is_exhausted(bytes)) return NO_MEMORY;
    static Pointer next = (Pointer)1 << 62;
    const size_t whole = (bytes + 511) & ~(size_t)511;
    if (bytes == 0) return INVALID;
    if (bytes > memory()) return NO_MEMORY;
    *pointer = __atomic_fetch_add(&next, whole, __ATOMIC_RELAXED);
    count(&allocations);
    return DONE;
}

Result cuMemAllocAsync(Pointer *pointer, size_t bytes, void *stream) {
    const Result result = allocate(pointer, bytes);
    if (result == DONE) say_memory("cuMemAlloc", *pointer, bytes, stream);
    return result;
}

Result cuMemAlloc_v2(Pointer *pointer, size_t bytes) { return cuMemAllocAsync(pointer, bytes, NULL); }
Result cuMemFreeAsync(Pointer pointer, void *stream) { say_memory("cuMemFree", pointer, 0, stream); return DONE; }
Result cuMemFree_v2(Pointer pointer) { return cuMemFreeAsync(pointer, NULL); }
Result cuMemAllocHost_v2(void **pointer, size_t bytes) {
    count(&host_allocations);
    return posix_memalign(pointer, 512, bytes ? bytes : 1) ? NO_MEMORY : DONE;
}
Result cuMemFreeHost(void *pointer) { free(pointer); return DONE; }

Result cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t bytes, void *stream) {
    say_copy("upload", to, 0, bytes, stream);
    copy(&uploads, bytes);
    return DONE;
}

Result cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t bytes, void *stream) {
    say_copy("download", 0, from, bytes, stream);
    memset(to, 0, bytes);
    copy(&downloads, bytes);
    return DONE;
}

Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void *stream) {
    say_copy("move", to, from, bytes, stream);
    copy(&moves, bytes);
    return DONE;
}

Result cuMemcpyHtoD_v2(Pointer to, const void *from, size_t bytes) { return cuMemcpyHtoDAsync_v2(to, from, bytes, NULL); }
Result cuMemcpyDtoH_v2(void *to, Pointer from, size_t bytes) { return cuMemcpyDtoHAsync_v2(to, from, bytes, NULL); }
Result cuMemsetD8_v2(Pointer to, unsigned char value, size_t bytes) { return DONE; }
Result cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, void *stream) { return DONE; }

/* CUDA_MEMCPY2D: `kind` is 1 for memory of the host. */
struct Side { size_t x, y; int kind; void *host; Pointer device; void *array; size_t pitch; };
struct Copy2D { struct Side from, to; size_t width, height; };

Result cuMemcpy2DAsync_v2(const struct Copy2D *rows, void *stream) {
    const size_t bytes = rows->width * rows->height;
    say_copy(rows->to.kind == 1 ? "download" : rows->from.kind == 1 ? "upload" : "move", rows->to.kind == 1 ? 0 : rows->to.device,
             rows->from.kind == 1 ? 0 : rows->from.device, bytes, stream);
    if (rows->to.kind != 1) {
        copy(rows->from.kind == 1 ? &uploads : &moves, bytes);
        return DONE;
    }
    for (size_t row = 0; row < rows->height; row++)
        memset((char *)rows->to.host + (rows->to.y + row) * rows->to.pitch + rows->to.x, 0, rows->width);
    copy(&downloads, bytes);
    return DONE;
}

/* ------------------------------------------------------------------------------------------------- streams, events, kernels */

static void *handle(void) {
    static intptr_t next = 16;
    return (void *)__atomic_add_fetch(&next, 16, __ATOMIC_RELAXED);
}

Result cuStreamCreate(void **stream, unsigned flags) { *stream = handle(); return DONE; }
Result cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) { *stream = handle(); return DONE; }
Result cuStreamDestroy_v2(void *stream) { return DONE; }
Result cuStreamSynchronize(void *stream) { say_wait("cuStreamSynchronize", stream, NULL); count(&synchronisations); return DONE; }
Result cuStreamWaitEvent(void *stream, void *event, unsigned flags) { say_wait("cuStreamWaitEvent", stream, event); return DONE; }
Result cuStreamQuery(void *stream) { return DONE; }
Result cuEventCreate(void **event, unsigned flags) { *event = handle(); return DONE; }
Result cuEventDestroy_v2(void *event) { return DONE; }
Result cuEventRecord(void *event, void *stream) { say_wait("cuEventRecord", stream, event); return DONE; }
Result cuEventSynchronize(void *event) { say_wait("cuEventSynchronize", NULL, event); count(&synchronisations); return DONE; }
Result cuEventQuery(void *event) { say_wait("cuEventQuery", NULL, event); return DONE; }
/* As if everything between two events took a millisecond. */
Result cuEventElapsedTime(float *milliseconds, void *from, void *to) { *milliseconds = 1.0f; return DONE; }
Result cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) { return cuEventElapsedTime(milliseconds, from, to); }

/* Whether the kernel of this PTX takes 64-bit indices: then its last parameter, a structure of lengths and indices, is aligned to them. */
static int is_wide(const char *ptx) {
    const char *entry = strstr(ptx, ".entry "), *end = entry ? strchr(entry, ')') : NULL, *wide = entry ? strstr(entry, ".align 8 .b8") : NULL;
    return wide && end && wide < end;
}

/* The lowest bit of a module says whether its kernel is wide. */
Result cuModuleLoadData(void **module, const void *image) {
    count(&kernels);
    *module = (char *)handle() + is_wide(image);
    keep_image(*module, image);
    return DONE;
}

Result cuModuleUnload(void *module) { return DONE; }
/* A function is its name. */
Result cuModuleGetFunction(void **function, void *module, const char *name) {
    char named[160];
    snprintf(named, sizeof named, "%s%s", name, (intptr_t)module & 1 ? "_u64" : "");
    if ((*function = strdup(named)) == NULL) return NO_MEMORY;
    keep_function(*function, module, name);
    return DONE;
}

Result cuFuncSetAttribute(void *function, int attribute, int value) { return DONE; }
Result cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                      void *stream, void **arguments, void **more) {
    say_launch(function, stream, arguments);
    tally(&launches, function, 0);
    return DONE;
}
Result cuTensorMapEncodeTiled(void *map) { memset(map, 0, 128); return DONE; }
Result cuTensorMapEncodeIm2col(void *map) { memset(map, 0, 128); return DONE; }

Result cuGetErrorName(int error, const char **text) { *text = "STAND_IN_ERROR"; return DONE; }
Result cuGetErrorString(int error, const char **text) { *text = "the stand-in driver refused this"; return DONE; }
