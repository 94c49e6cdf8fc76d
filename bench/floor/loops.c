// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// What does a second event loop cost a server that does nothing but answer? It answers each request of an "add" on PyTorch's wire with the
// same number, from one thread or several that share nothing: each has an epoll descriptor of its own and its own connections.
//
//     gcc -O2 -o loops bench/floor/loops.c -lpthread && ./loops 29555 2 &
//     storebench -addr 127.0.0.1:29555 -proto pt26 -mode tput -op add -clients 64 -dur 1s
//
// /proc/PID/stat has the processor time that it used.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 256, ROOM = 64 << 10, SET = 1 };

// Of a client's hello only the ping is answered, with the number that its last four bytes are.
static char greeted[1 << 16]; // by descriptor

// answer serves what is there, and reports whether the connection lives.
static int answer(int fd, char *buf) {
	ssize_t n = recv(fd, buf, ROOM, MSG_DONTWAIT);
	if (n <= 0) return 0;
	if (!greeted[fd]) {
		greeted[fd] = 1;
		return n >= 5 && send(fd, buf + n - 4, 4, MSG_NOSIGNAL) == 4;
	}
	return send(fd, "\0\0\0\0\0\0\0\0", buf[0] == SET ? 1 : 8, MSG_NOSIGNAL) > 0; // a confirmed set is answered with a byte
}

static void *loop(void *arg) {
	int poll = *(int *)arg, ready = 0;
	char *buf = malloc(ROOM);
	struct epoll_event events[EVENTS];
	for (;;) {
		int served = ready;
		ready = epoll_wait(poll, events, EVENTS, 0);
		if (ready == 0 && served > 1) { // as the loops of cohort's store do
			sched_yield();
			ready = epoll_wait(poll, events, EVENTS, 0);
		}
		if (ready == 0) ready = epoll_wait(poll, events, EVENTS, -1);
		for (int i = 0; i < ready; i++)
			if (!answer(events[i].data.fd, buf)) close(events[i].data.fd);
	}
	return NULL;
}

int main(int argc, char **argv) {
	int port = argc > 1 ? atoi(argv[1]) : 29555, threads = argc > 2 ? atoi(argv[2]) : 1, on = 1;
	int polls[64], listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1024)) {
		perror("loops");
		return 1;
	}
	for (int i = 0; i < threads; i++) {
		pthread_t t;
		polls[i] = epoll_create1(0);
		pthread_create(&t, NULL, loop, &polls[i]);
	}
	for (int next = 0;; next = (next + 1) % threads) {
		int fd = accept(listener, NULL, NULL);
		if (fd < 0 || fd >= (int)sizeof greeted) return 1;
		greeted[fd] = 0;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
		epoll_ctl(polls[next], EPOLL_CTL_ADD, fd, &e);
	}
}
