/* A driver in host memory, as much of it as the shim and its device need. Work is queued with cuFakeWork and stays
 * unfinished until cuFakeFinish, so tests decide what is complete. A call with a destroyed stream aborts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, DEINITIALIZED = 4, INVALID_CONTEXT = 201, NOT_FOUND = 500,
       NOT_READY = 600, CAPTURE_IMPLICIT = 906 };
enum { STREAMS = 64, ITEMS = 65536, PAGE = 2 << 20, PAGES = 32 };
#define TOTAL ((size_t)PAGES * PAGE)

/* How far each stream has to be. */
typedef struct { int at[STREAMS]; } Points;
typedef struct { int is_wait, finished; Points points; } Item;
typedef struct { int blocking, destroyed, capturing, items, done; void *context; Item *item[ITEMS]; } Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Stream streams[STREAMS] = {{.blocking = 1}};
static int stream_count = 1, gone, device_allocations, synchronizations;
static size_t used;
static char primary, other_context;
static int primary_uses;
static __thread void *current;
static __thread int per_thread;
static void *allocated[1024];

#define EXPORT __attribute__((visibility("default")))
#define ALIVE if (gone) return DEINITIALIZED

static Stream *find(void *handle) {
    if (handle == 0 || handle == (void *)1) return &streams[0];
    if (handle == (void *)2) {
        if (!per_thread) {
            per_thread = stream_count++;
            streams[per_thread].blocking = 1;
            streams[per_thread].context = &primary;
        }
        return &streams[per_thread];
    }
    Stream *stream = handle;
    if (stream->destroyed) { fprintf(stderr, "fake driver: a destroyed stream is used\n"); abort(); }
    return stream;
}

static int passed(const Points *points);
static int progress(Stream *stream) {
    while (stream->done < stream->items) {
        Item *item = stream->item[stream->done];
        if (!(item->is_wait ? passed(&item->points) : item->finished)) break;
        stream->done++;
    }
    return stream->done;
}
static int passed(const Points *points) {
    for (int i = 0; i < stream_count; i++)
        if (points->at[i] > 0 && progress(&streams[i]) < points->at[i]) return 0;
    return 1;
}
/* The legacy stream comes after all streams that are not non-blocking. */
static Points now(Stream *stream) {
    Points points = {{0}};
    for (int i = 0; i < stream_count; i++)
        if (&streams[i] == stream || (stream == &streams[0] && streams[i].blocking)) points.at[i] = streams[i].items;
    return points;
}

static void push(Stream *stream, Item item) {
    if (stream->items == ITEMS) abort();
    stream->item[stream->items] = malloc(sizeof item);
    *stream->item[stream->items++] = item;
}

static void deinitialise(void) { gone = 1; }
EXPORT int cuInit(unsigned flags) {
    static int done;
    if (!done++) atexit(deinitialise);
    return flags ? INVALID_VALUE : SUCCESS;
}
EXPORT int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
EXPORT int cuGetErrorName(int error, const char **name) { *name = error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_FAKE"; return SUCCESS; }
EXPORT int cuGetErrorString(int error, const char **text) { (void)error; *text = "an error of the fake driver"; return SUCCESS; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID_VALUE : SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
EXPORT int cuDeviceGetName(char *name, int bytes, int device) { (void)device; snprintf(name, bytes, "fake GPU"); return SUCCESS; }
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, device + 1, 16); return SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)attribute; (void)device; *value = 1; return SUCCESS; }
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; ALIVE; primary_uses++; *context = &primary; return SUCCESS; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; ALIVE; primary_uses--; return SUCCESS; }
EXPORT int cuDevicePrimaryCtxReset_v2(int device) { (void)device; ALIVE; used = 0; return SUCCESS; }
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { (void)device; *flags = 0; *active = primary_uses > 0; return SUCCESS; }
EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device) { (void)flags; (void)device; *context = current = &other_context; return SUCCESS; }
EXPORT int cuCtxDestroy_v2(void *context) { if (current == context) current = 0; return SUCCESS; }
EXPORT int cuCtxGetCurrent(void **context) { ALIVE; *context = current; return SUCCESS; }
EXPORT int cuCtxSetCurrent(void *context) { ALIVE; current = context; return SUCCESS; }
EXPORT int cuCtxGetDevice(int *device) { ALIVE; *device = 0; return current ? SUCCESS : INVALID_CONTEXT; }
EXPORT int cuCtxSynchronize(void) { ALIVE; synchronizations++; return SUCCESS; }

static int make(void **out, unsigned flags) {
    ALIVE;
    pthread_mutex_lock(&lock);
    Stream *stream = &streams[stream_count++];
    stream->blocking = !(flags & 1);
    stream->context = current;
    *out = stream;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
EXPORT int cuStreamCreate(void **out, unsigned flags) { return make(out, flags); }
EXPORT int cuStreamCreateWithPriority(void **out, unsigned flags, int priority) { (void)priority; return make(out, flags); }
EXPORT int cuStreamDestroy_v2(void *handle) { ALIVE; find(handle)->destroyed = 1; return SUCCESS; }
EXPORT int cuStreamGetId(void *handle, uint64_t *id) { ALIVE; pthread_mutex_lock(&lock); *id = 100 + (find(handle) - streams); pthread_mutex_unlock(&lock); return SUCCESS; }
EXPORT int cuStreamSynchronize(void *handle) { ALIVE; pthread_mutex_lock(&lock); progress(find(handle)); pthread_mutex_unlock(&lock); return SUCCESS; }
EXPORT int cuStreamGetCtx(void *handle, void **context) { ALIVE; Stream *stream = find(handle); *context = stream == &streams[0] ? current : stream->context; return SUCCESS; }
EXPORT int cuStreamIsCapturing(void *handle, int *status) {
    ALIVE;
    Stream *stream = find(handle);
    *status = stream->capturing;
    for (int i = 1; i < stream_count && stream == &streams[0]; i++)
        if (streams[i].capturing && streams[i].blocking) return CAPTURE_IMPLICIT;
    return SUCCESS;
}
#ifndef OLD
EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int current_mode;
    int before = current_mode;
    ALIVE;
    current_mode = *mode;
    *mode = before;
    return SUCCESS;
}
#endif
EXPORT int cuStreamBeginCapture_v2(void *handle, int mode) { (void)mode; find(handle)->capturing = 1; return SUCCESS; }
EXPORT int cuStreamEndCapture(void *handle, void **graph) { *graph = 0; find(handle)->capturing = 0; return SUCCESS; }
EXPORT int cuStreamWaitEvent(void *handle, Points *event, unsigned flags) {
    (void)flags; ALIVE;
    pthread_mutex_lock(&lock);
    push(find(handle), (Item){.is_wait = 1, .points = *event});
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

EXPORT int cuEventCreate(Points **event, unsigned flags) { (void)flags; ALIVE; *event = calloc(1, sizeof **event); return SUCCESS; }
EXPORT int cuEventDestroy_v2(Points *event) { ALIVE; free(event); return SUCCESS; }
EXPORT int cuEventRecord(Points *event, void *handle) { ALIVE; pthread_mutex_lock(&lock); *event = now(find(handle)); pthread_mutex_unlock(&lock); return SUCCESS; }
EXPORT int cuEventQuery(Points *event) { ALIVE; pthread_mutex_lock(&lock); int done = passed(event); pthread_mutex_unlock(&lock); return done ? SUCCESS : NOT_READY; }
EXPORT int cuEventSynchronize(Points *event) { return cuEventQuery(event); }

EXPORT int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option) { (void)properties; (void)option; *bytes = PAGE; return SUCCESS; }
EXPORT int cuMemGetInfo_v2(size_t *available, size_t *total) { ALIVE; *available = TOTAL - used; *total = TOTAL; return SUCCESS; }
EXPORT int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, uint64_t flags) {
    (void)alignment; (void)hint; (void)flags; ALIVE;
    char *start = mmap(0, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    *address = ((uint64_t)start + PAGE - 1) / PAGE * PAGE;
    return SUCCESS;
}
EXPORT int cuMemAddressFree(uint64_t address, size_t bytes) { (void)address; (void)bytes; ALIVE; return SUCCESS; }
EXPORT int cuMemCreate(uint64_t *handle, size_t bytes, const void *properties, uint64_t flags) {
    (void)properties; (void)flags; ALIVE;
    if (used + bytes > TOTAL) return OUT_OF_MEMORY;
    used += bytes;
    *handle = bytes;
    return SUCCESS;
}
EXPORT int cuMemRelease(uint64_t handle) { ALIVE; used -= handle; return SUCCESS; }
EXPORT int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags) {
    (void)offset; (void)handle; (void)flags; ALIVE;
    return mprotect((void *)address, bytes, PROT_READ | PROT_WRITE) ? INVALID_VALUE : SUCCESS;
}
EXPORT int cuMemUnmap(uint64_t address, size_t bytes) { ALIVE; return mprotect((void *)address, bytes, PROT_NONE) ? INVALID_VALUE : SUCCESS; }
EXPORT int cuMemSetAccess(uint64_t address, size_t bytes, const void *access, size_t count) { (void)address; (void)bytes; (void)access; (void)count; ALIVE; return SUCCESS; }

EXPORT int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    ALIVE;
    if (!bytes || !out) return INVALID_VALUE;
    for (int i = 0; i < 1024; i++)
        if (!allocated[i]) { *out = (uint64_t)(allocated[i] = malloc(bytes)); device_allocations++; return SUCCESS; }
    return OUT_OF_MEMORY;
}
EXPORT int cuMemFree_v2(uint64_t address) {
    ALIVE;
    if (!address) return SUCCESS;
    for (int i = 0; i < 1024; i++)
        if (allocated[i] == (void *)address) { free(allocated[i]); allocated[i] = 0; return SUCCESS; }
    return INVALID_VALUE;
}
EXPORT int cuMemAllocPitch_v2(uint64_t *out, size_t *pitch, size_t width, size_t height, unsigned element) { (void)element; *pitch = width; return cuMemAlloc_v2(out, width * height); }
EXPORT int cuMemAllocAsync(uint64_t *out, size_t bytes, void *stream) { find(stream); return cuMemAlloc_v2(out, bytes); }
EXPORT int cuMemAllocAsync_ptsz(uint64_t *out, size_t bytes, void *stream) { find(stream); return cuMemAlloc_v2(out, bytes); }
EXPORT int cuMemAllocFromPoolAsync(uint64_t *out, size_t bytes, void *pool, void *stream) { (void)pool; find(stream); return cuMemAlloc_v2(out, bytes); }
EXPORT int cuMemFreeAsync(uint64_t address, void *stream) { find(stream); return cuMemFree_v2(address); }
EXPORT int cuMemFreeAsync_ptsz(uint64_t address, void *stream) { find(stream); return cuMemFree_v2(address); }
EXPORT int cuDeviceGetMemPool(void **pool, int device) { (void)device; *pool = (void *)7; return SUCCESS; }
EXPORT int cuDeviceGetDefaultMemPool(void **pool, int device) { (void)device; *pool = (void *)7; return SUCCESS; }
EXPORT int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address) { (void)base; (void)bytes; (void)address; return NOT_FOUND; }

static void *own(const char *name, const char *suffix) {
    char whole[128];
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    return dlsym(dlopen("libfake.so", RTLD_NOW), whole);
}
EXPORT int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
    (void)version;
    void *found = flags & 2 ? own(name, "_ptsz") : 0;
    if (!found) found = own(name, "_v2");
    if (!found) found = own(name, "");
    *out = found;
    if (status) *status = !found;
    return found ? SUCCESS : NOT_FOUND;
}
EXPORT int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) { return cuGetProcAddress_v2(name, out, version, flags, 0); }

/* What no real driver has. */
EXPORT int cuFakeWork(void *handle) {
    pthread_mutex_lock(&lock);
    push(find(handle), (Item){0});
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
/* Finishes the work of all streams. */
EXPORT int cuFakeFinish(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < stream_count; i++)
        for (int j = 0; j < streams[i].items; j++) streams[i].item[j]->finished = 1;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
/* A stream that nobody in front of the driver hears of. */
EXPORT int cuFakeStream(void **out, unsigned flags) { return make(out, flags); }
EXPORT int cuFakeAllocations(void) { return device_allocations; }
EXPORT int cuFakeSynchronizations(void) { return synchronizations; }
