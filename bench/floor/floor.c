// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// How fast can ranks meet at all beside threads that compute? Each rank is a process that counts up a word in shared memory and waits until
// all others have done so; nothing else happens. It goes through ways of waiting and of placing the ranks that need no privilege.
//
//     gcc -O2 -o floor bench/floor/floor.c -lpthread && ./floor 4      # 4 ranks, one computing thread in each
//     ./floor 4 0                                                      # without them
//
// It prints the mean and the median of three turns of a second for each way, in microseconds.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, TURNS = 3, OPERATIONS = 10000000 };

typedef struct {
	const char *name;
	int spin;   // for so many us before anything else
	int yields; // so many before it sleeps
	int slice;  // time slice of the rank in us, 0 is the kernel's own
	int place;  // 0 as the kernel likes, 1 spread over the cores, 2 all on the first core
} way;

static const way ways[] = {
	{"sleep", 0, 0, 0, 0},
	{"spin 5 us, sleep", 5, 0, 0, 0},
	{"spin 50 us, sleep", 50, 0, 0, 0},
	{"10 yields, sleep", 0, 10, 0, 0},
	{"sleep, slices of 100 us", 0, 0, 100, 0},
	{"10 yields, sleep, slices of 100 us", 0, 10, 100, 0},
	{"sleep, pinned in turn", 0, 0, 0, 1},
	{"spin 50 us, sleep, pinned in turn", 50, 0, 0, 1},
	{"sleep, slices of 100 us, pinned in turn", 0, 0, 100, 1},
	{"sleep, all pinned to one core", 0, 0, 0, 2},
	{"sleep, slices of 100 us, all pinned to one core", 0, 0, 100, 2},
};

typedef struct {
	_Alignas(128) _Atomic uint32_t step;
	_Alignas(128) _Atomic uint32_t bell;
	_Atomic int asleep;
} rank_state;

typedef struct {
	rank_state ranks[MOST];
	_Atomic uint32_t last; // the step that ends the turn
	double mean, median;
} segment;

static segment *seg;
static int ranks;

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void *compute(void *unused) {
	for (volatile double d = 1;;) d = d * 1.0000001 + 1e-9;
	return unused;
}

static int all_at(uint32_t step) {
	for (int i = 0; i < ranks; i++)
		if ((int32_t)(atomic_load_explicit(&seg->ranks[i].step, memory_order_acquire) - step) < 0) return 0;
	return 1;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static int spin(const way *w, uint32_t step) {
	for (uint64_t end = now() + w->spin * 1000ull; now() < end;)
		for (int i = 0; i < 16; i++) {
			if (all_at(step)) return 1;
			relax();
		}
	return all_at(step);
}

static void await(const way *w, int me, uint32_t step) {
	if (spin(w, step)) return;
	for (int i = 0; i < w->yields; i++) {
		sched_yield();
		if (all_at(step)) return;
	}
	rank_state *r = &seg->ranks[me];
	do {
		uint32_t rung = atomic_load(&r->bell);
		atomic_store(&r->asleep, 1);
		if (!all_at(step)) syscall(SYS_futex, &r->bell, FUTEX_WAIT, rung, 0, 0, 0);
		atomic_store(&r->asleep, 0);
	} while (!spin(w, step));
}

static void take(int me, uint32_t step) {
	atomic_store(&seg->ranks[me].step, step);
	for (int i = 0; i < ranks; i++) {
		rank_state *r = &seg->ranks[i];
		if (i == me || !atomic_load(&r->asleep) || !all_at(step)) continue;
		atomic_store(&r->asleep, 0);
		atomic_fetch_add(&r->bell, 1);
		syscall(SYS_futex, &r->bell, FUTEX_WAKE, 1, 0, 0, 0);
	}
}

static int by_size(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void settle(const way *w, int me) {
	if (w->place) {
		cpu_set_t one;
		CPU_ZERO(&one);
		CPU_SET(w->place == 2 ? 0 : me % (int)sysconf(_SC_NPROCESSORS_ONLN), &one);
		if (sched_setaffinity(0, sizeof one, &one)) perror("sched_setaffinity");
	}
	if (w->slice) {
		struct {
			uint32_t size, policy;
			uint64_t flags;
			int32_t nice;
			uint32_t priority;
			uint64_t runtime, deadline, period;
		} attr = {.size = sizeof attr, .runtime = w->slice * 1000ull};
		if (syscall(SYS_sched_setattr, 0, &attr, 0)) perror("sched_setattr");
	}
}

static void run(const way *w, int me, int busy) {
	for (int i = 0; i < busy; i++) {
		pthread_t t;
		pthread_create(&t, 0, compute, 0);
	}
	settle(w, me);
	double *took = malloc(OPERATIONS * sizeof *took);
	uint64_t began = now(), stop = began + 1000000000;
	int n = 0;
	for (uint32_t step = 1; n < OPERATIONS; step++) {
		uint64_t start = now();
		if (me == 0 && start > stop) atomic_store(&seg->last, step);
		take(me, step);
		await(w, me, step);
		took[n++] = (now() - start) / 1e3;
		uint32_t last = atomic_load(&seg->last);
		if (last && step >= last) break;
	}
	if (me == 0) {
		seg->mean = (now() - began) / 1e3 / n;
		qsort(took, n, sizeof *took, by_size);
		seg->median = took[n / 2];
	}
	_exit(0);
}

int main(int argc, char **argv) {
	ranks = argc > 1 ? atoi(argv[1]) : 2;
	int busy = argc > 2 ? atoi(argv[2]) : 1;
	if (ranks < 2 || ranks > MOST || busy < 0) {
		fprintf(stderr, "usage: floor RANKS [COMPUTING-THREADS], with 2 to %d ranks\n", MOST);
		return 2;
	}
	int n = sizeof ways / sizeof *ways;
	double mean[n][TURNS], median[n][TURNS];
	for (int turn = 0; turn < TURNS; turn++)
		for (int i = 0; i < n; i++) {
			seg = mmap(0, sizeof *seg, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
			for (int me = 0; me < ranks; me++)
				if (fork() == 0) run(&ways[i], me, busy);
			while (wait(0) > 0) {}
			mean[i][turn] = seg->mean, median[i][turn] = seg->median;
			munmap(seg, sizeof *seg);
		}
	printf("| %d ranks, %d computing threads in each | mean | median |\n|---|---|---|\n", ranks, busy);
	for (int i = 0; i < n; i++) {
		qsort(mean[i], TURNS, sizeof(double), by_size);
		qsort(median[i], TURNS, sizeof(double), by_size);
		printf("| %s | %.1f | %.1f |\n", ways[i].name, mean[i][TURNS / 2], median[i][TURNS / 2]);
	}
}
