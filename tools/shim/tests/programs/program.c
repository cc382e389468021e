/* A CUDA program that opens the driver as programs do and runs the one case that is named. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t Pointer;
typedef void *Stream;
#define MIB ((size_t)1 << 20)
/* The fake GPU has 64 MiB: two of these do not fit. */
#define LARGE (40 * MIB)
#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); exit(1); } } while (0)
#define OK(call) CHECK((call) == 0)

static void *library;
static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found) { fprintf(stderr, "%s is not found\n", name); exit(1); }
    return found;
}
#define CALL(name, ...) ((int (*)())find(#name))(__VA_ARGS__)
#define alloc(out, bytes) ((int (*)(Pointer *, size_t))find("cuMemAlloc_v2"))(out, bytes)
#define release(pointer) ((int (*)(Pointer))find("cuMemFree_v2"))(pointer)
#define alloc_on(out, bytes, stream) ((int (*)(Pointer *, size_t, Stream))find("cuMemAllocAsync"))(out, bytes, stream)
#define release_on(pointer, stream) ((int (*)(Pointer, Stream))find("cuMemFreeAsync"))(pointer, stream)
#define work(stream) OK(((int (*)(Stream))find("cuFakeWork"))(stream))
#define finish() OK(CALL(cuFakeFinish))
#define forwarded() CALL(cuFakeAllocations)

static Stream create(unsigned flags) {
    Stream stream = 0;
    OK(((int (*)(Stream *, unsigned))find("cuStreamCreate"))(&stream, flags));
    return stream;
}
static void begin(void) {
    void *context;
    OK(CALL(cuInit, 0));
    OK(((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context, 0));
    OK(((int (*)(void *))find("cuCtxSetCurrent"))(context));
}
static void in_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    OK(pthread_create(&thread, 0, body, argument));
    OK(pthread_join(thread, 0));
}
static void *use_own_stream(void *context) {
    OK(((int (*)(void *))find("cuCtxSetCurrent"))(context));
    work((Stream)2);
    return 0;
}
static void *context(void) {
    void *context = 0;
    OK(((int (*)(void **))find("cuCtxGetCurrent"))(&context));
    return context;
}

/* A freed block that is still used is not given out; afterwards it is. */
static void held_until_finished(Pointer pointer) {
    Pointer next = 0;
    OK(release(pointer));
    CHECK(alloc(&next, LARGE) == 2);
    finish();
    OK(alloc(&next, LARGE));
    OK(release(next));
}

static void basics(void) {
    Pointer pointer = 0, base = 0, pitched = 0;
    size_t bytes = 0, available = 0, total = 0, available_after = 0, pitch = 0;
    OK(alloc(&pointer, 3 * MIB));
    memset((void *)pointer, 7, 3 * MIB);
    OK(((int (*)(Pointer *, size_t *, Pointer))find("cuMemGetAddressRange_v2"))(&base, &bytes, pointer + MIB));
    CHECK(base == pointer && bytes == 3 * MIB);
    CHECK(((int (*)(Pointer *, size_t *, Pointer))find("cuMemGetAddressRange_v2"))(&base, &bytes, pointer + 3 * MIB) == 500);
    OK(((int (*)(size_t *, size_t *))find("cuMemGetInfo_v2"))(&available, &total));
    CHECK(total == 64 * MIB && available <= 61 * MIB);
    OK(release(pointer));
    OK(((int (*)(size_t *, size_t *))find("cuMemGetInfo_v2"))(&available_after, &total));
    CHECK(available_after >= available + 3 * MIB);
    CHECK(release(pointer) == 1); /* the driver has never heard of it */
    CHECK(alloc(&pointer, 0) == 1 && alloc(0, 1) == 1);
    OK(release(0));
    CHECK(forwarded() == 0);
    OK(((int (*)(Pointer *, size_t *, size_t, size_t, unsigned))find("cuMemAllocPitch_v2"))(&pitched, &pitch, 64, 64, 4));
    CHECK(forwarded() == 1);
    OK(release(pitched));
    CHECK(alloc(&pointer, 100 * MIB) == 2);
}
static void synchronous(void) {
    Pointer pointer = 0;
    Stream known = create(1), hidden = 0;
    OK(alloc(&pointer, LARGE));
    work(known);
    held_until_finished(pointer);
    OK(alloc(&pointer, LARGE));
    OK(((int (*)(Stream *, unsigned))find("cuFakeStream"))(&hidden, 0));
    work(hidden); /* nobody has told of it, and it is a blocking one */
    held_until_finished(pointer);
    OK(alloc(&pointer, LARGE));
    in_thread(use_own_stream, context());
    held_until_finished(pointer);
    CHECK(forwarded() == 0);
}
static void destroyed(void) {
    Pointer pointer = 0;
    Stream stream = create(1);
    OK(alloc(&pointer, LARGE));
    work(stream);
    OK(((int (*)(Stream))find("cuStreamDestroy_v2"))(stream));
    held_until_finished(pointer);
    /* A block may outlive its stream. */
    stream = create(1);
    OK(alloc_on(&pointer, LARGE, stream));
    work(stream);
    OK(((int (*)(Stream))find("cuStreamDestroy_v2"))(stream));
    held_until_finished(pointer);
}
static void ordered(void) {
    Pointer first = 0, second = 0;
    Stream a = create(1), b = create(1);
    OK(alloc_on(&first, LARGE, a));
    work(a);
    OK(release_on(first, a));
    OK(alloc_on(&second, LARGE, a));
    CHECK(first == second); /* in the order of the stream, unfinished as it is */
    OK(release_on(second, a));
    CHECK(alloc_on(&second, LARGE, b) == 2);
    finish();
    OK(alloc_on(&second, LARGE, b));
    work(a);
    OK(release_on(second, a));
    CHECK(alloc_on(&second, LARGE, b) == 2); /* freed where it is still used */
    finish();
    OK(alloc_on(&second, LARGE, b));
    OK(release_on(second, b));
    CHECK(((int (*)(Pointer *, size_t, void *, Stream))find("cuMemAllocFromPoolAsync"))(&first, MIB, (void *)7, a) == 0);
    OK(release_on(first, a));
    CHECK(forwarded() == 0);
    CHECK(((int (*)(Pointer *, size_t, void *, Stream))find("cuMemAllocFromPoolAsync"))(&first, MIB, (void *)8, a) == 0);
    CHECK(forwarded() == 1);
    OK(release_on(first, a));
}
static Pointer theirs;
static void *alloc_on_own_stream(void *context) {
    OK(((int (*)(void *))find("cuCtxSetCurrent"))(context));
    OK(alloc_on(&theirs, LARGE, (Stream)2));
    work((Stream)2);
    return 0;
}
static void per_thread(void) {
    Pointer first = 0, second = 0;
    OK(((int (*)(Pointer *, size_t, Stream))find("cuMemAllocAsync_ptsz"))(&first, LARGE, 0));
    work((Stream)2);
    OK(((int (*)(Pointer, Stream))find("cuMemFreeAsync_ptsz"))(first, 0));
    OK(alloc_on(&second, LARGE, (Stream)2));
    CHECK(first == second);
    OK(release_on(second, (Stream)2));
    CHECK(alloc(&second, LARGE) == 2);
    finish();
    OK(alloc(&second, LARGE));
    OK(release(second));
    /* Freed by another thread than the one whose stream it is. */
    in_thread(alloc_on_own_stream, context());
    held_until_finished(theirs);
    /* Their stream is asked about from here. */
    Stream stream = create(1);
    in_thread(alloc_on_own_stream, context());
    OK(release_on(theirs, stream));
    CHECK(alloc_on(&second, LARGE, stream) == 2);
    finish();
    OK(alloc_on(&second, LARGE, stream));
    OK(release_on(second, stream));
    CHECK(forwarded() == 0);
}
static int look_up(const char *name, void **out, int version, uint64_t flags) {
    int status = 9;
    return ((int (*)(const char *, void **, int, uint64_t, int *))find("cuGetProcAddress_v2"))(name, out, version, flags, &status);
}
static void looked_up(void) {
    void *found = 0, *real = dlopen("libfake.so", RTLD_NOW);
    OK(look_up("cuMemAlloc", &found, 12000, 0));
    CHECK(found == find("cuMemAlloc_v2") && found != dlsym(real, "cuMemAlloc_v2"));
    OK(look_up("cuMemFreeAsync", &found, 12000, 2));
    CHECK(found == find("cuMemFreeAsync_ptsz") && found != dlsym(real, "cuMemFreeAsync_ptsz"));
    OK(look_up("cuStreamDestroy", &found, 12000, 0));
    CHECK(found != dlsym(real, "cuStreamDestroy_v2"));
    OK(look_up("cuGetProcAddress", &found, 12000, 0));
    CHECK(found == find("cuGetProcAddress_v2"));
    OK(look_up("cuCtxGetCurrent", &found, 12000, 0));
    CHECK(found == dlsym(real, "cuCtxGetCurrent"));
    OK(look_up("cuMemAlloc", &found, 2000, 0)); /* made for a driver before addresses had 64 bits */
    CHECK(found == dlsym(real, "cuMemAlloc_v2"));
    CHECK(look_up("cuNothing", &found, 12000, 0) == 500 && found == 0);
}
/* As the runtime library does: by the file's name. */
static void by_file_name(void) {
    void *found = 0, *driver = dlopen("libcuda.so.1", RTLD_NOW), *real = dlopen("libfake.so", RTLD_NOW);
    CHECK(driver && real && driver != real);
    int (*ask)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    OK(ask("cuMemAlloc", &found, 12000, 0, 0));
    CHECK(found == find("cuMemAlloc_v2") && found != dlsym(real, "cuMemAlloc_v2"));
    CHECK(dlopen("libnothing.so", RTLD_NOW) == 0 && dlopen(0, RTLD_NOW) != 0);
    CHECK(dlsym(dlopen("libm.so.6", RTLD_NOW), "cos") != 0);
}
static void capture(void) {
    Pointer ours = 0, graphs = 0;
    void *graph;
    Stream stream = create(1), other = create(1);
    OK(alloc_on(&ours, MIB, other));
    OK(((int (*)(Stream, int))find("cuStreamBeginCapture_v2"))(stream, 0));
    OK(alloc_on(&graphs, MIB, stream));
    CHECK(forwarded() == 1); /* it belongs to the graph */
    OK(release_on(graphs, stream));
    CHECK(release_on(ours, stream) == 1);
    OK(release_on(ours, other));
    OK(((int (*)(Stream, void **))find("cuStreamEndCapture"))(stream, &graph));
    /* Fences are left alone during a capture, but for a stream that goes away. */
    OK(alloc_on(&ours, LARGE, other));
    work(other);
    OK(((int (*)(Stream, int))find("cuStreamBeginCapture_v2"))(stream, 0));
    OK(((int (*)(Stream))find("cuStreamDestroy_v2"))(other));
    OK(((int (*)(Stream, void **))find("cuStreamEndCapture"))(stream, &graph));
    held_until_finished(ours);
    CHECK(CALL(cuFakeSynchronizations) == 0);
}
static void other_context(void) {
    Pointer ours = 0, others = 0;
    void *other, *before = context();
    OK(alloc(&ours, MIB));
    OK(((int (*)(void **, unsigned, int))find("cuCtxCreate_v2"))(&other, 0, 0));
    OK(alloc(&others, MIB));
    CHECK(forwarded() == 1);
    OK(release(others));
    OK(release(ours));
    CHECK(context() == other); /* a free leaves the current context alone */
    OK(((int (*)(void *))find("cuCtxDestroy_v2"))(other));
    OK(((int (*)(void *))find("cuCtxSetCurrent"))(before));
}
/* A non-blocking stream that nobody has told of and that cannot be followed: frees wait for everything. */
static void untracked(void) {
    Pointer pointer = 0;
    void *other, *before = context();
    Stream foreign = 0;
    OK(((int (*)(void **, unsigned, int))find("cuCtxCreate_v2"))(&other, 0, 0));
    OK(((int (*)(Stream *, unsigned))find("cuFakeStream"))(&foreign, 1));
    OK(((int (*)(void *))find("cuCtxSetCurrent"))(before));
    OK(alloc(&pointer, MIB));
    OK(release(pointer));
    int so_far = CALL(cuFakeSynchronizations);
    OK(alloc(&pointer, MIB));
    OK(release_on(pointer, foreign));
    CHECK(CALL(cuFakeSynchronizations) == so_far + 1);
}
static void off(void) {
    Pointer pointer = 0;
    OK(alloc(&pointer, MIB));
    CHECK(forwarded() == 1);
    OK(release(pointer));
}
static void signalled(void) {
    Pointer pointer = 0;
    char file[4096];
    struct stat found;
    OK(alloc(&pointer, MIB));
    snprintf(file, sizeof file, "%s/snapshot.pickle", getenv("HIGHWATER_SHIM_OUT"));
    CHECK(stat(file, &found) != 0);
    OK(raise(SIGUSR1));
    for (int tries = 0; tries < 10000 && stat(file, &found) != 0; tries++) usleep(1000);
    OK(stat(file, &found));
    _exit(0); /* the files are those of the signal */
}
static void forked(void) {
    Pointer ours = 0, childs = 0;
    int status = 0;
    OK(alloc(&ours, MIB));
    pid_t child = fork();
    if (child == 0) {
        OK(alloc(&childs, MIB));
        CHECK(forwarded() == 1);
        OK(release(childs));
        OK(release(ours));
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(release(ours));
}
/* A reset takes all memory away, whoever has it. */
static void reset(void) {
    Pointer before = 0, after = 0;
    OK(alloc(&before, LARGE));
    OK(((int (*)(int))find("cuDevicePrimaryCtxReset_v2"))(0));
    CHECK(release(before) == 1);
    OK(alloc(&after, LARGE));
    OK(release(after));
    CHECK(forwarded() == 0);
}
/* Blocks of several threads never overlap. */
static void *churn(void *context) {
    static _Atomic int threads;
    int tag = ++threads;
    Stream stream, own[3];
    OK(((int (*)(void *))find("cuCtxSetCurrent"))(context));
    stream = create(tag % 2);
    own[0] = stream; own[1] = (Stream)2; own[2] = 0;
    Pointer blocks[8] = {0};
    size_t sizes[8] = {0};
    for (int i = 0; i < 2000; i++) {
        int at = i % 8;
        if (blocks[at]) {
            for (size_t byte = 0; byte < sizes[at]; byte++) CHECK(((char *)blocks[at])[byte] == tag);
            if (i % 3) OK(release_on(blocks[at], own[i % 2])); else OK(release(blocks[at]));
        }
        sizes[at] = 1 + (size_t)(i * 7919) % 20000;
        if (i % 5) OK(alloc_on(&blocks[at], sizes[at], own[i % 3])); else OK(alloc(&blocks[at], sizes[at]));
        memset((void *)blocks[at], tag, sizes[at]);
    }
    for (int at = 0; at < 8; at++) OK(release(blocks[at]));
    OK(((int (*)(Stream))find("cuStreamDestroy_v2"))(stream));
    return 0;
}
static void threads(void) {
    pthread_t all[4];
    for (int i = 0; i < 4; i++) OK(pthread_create(&all[i], 0, churn, context()));
    for (int i = 0; i < 4; i++) OK(pthread_join(all[i], 0));
    CHECK(forwarded() == 0);
}
static Pointer kept, kept_on;
static void last(void) {
    Pointer pointer = 0;
    CHECK(alloc(&pointer, MIB) == 4); /* the driver is gone */
    OK(release(kept));
    OK(release_on(kept_on, 0));
}
static void late(void) {
    OK(alloc(&kept, MIB));
    OK(alloc_on(&kept_on, MIB, 0));
}

int main(int count, char **arguments) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"basics", basics}, {"synchronous", synchronous}, {"destroyed", destroyed}, {"ordered", ordered},
        {"per_thread", per_thread}, {"looked_up", looked_up}, {"by_file_name", by_file_name}, {"capture", capture}, {"other_context", other_context},
        {"untracked", untracked}, {"off", off}, {"signalled", signalled}, {"forked", forked}, {"late", late},
        {"reset", reset}, {"threads", threads},
    };
    CHECK(count == 2);
    alarm(120); /* whatever hangs fails */
    CHECK((library = dlopen("libcuda.so", RTLD_NOW)) != 0);
    if (strcmp(arguments[1], "late") == 0) OK(atexit(last));
    begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i].name, arguments[1]) == 0) { cases[i].run(); return 0; }
    fprintf(stderr, "no case %s\n", arguments[1]);
    return 1;
}
