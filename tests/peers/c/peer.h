/* What the peers share: connections, whole reads and writes, big-endian numbers. POSIX only, no libraries. */
#ifndef PEER_H
#define PEER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline void say(const char *text) {
    printf("%s\n", text);
    fflush(stdout);
}

static inline void put(uint8_t *to, uint64_t value, int size) {
    for (int at = 0; at < size; at++) to[at] = (uint8_t)(value >> (8 * (size - 1 - at)));
}

static inline uint64_t get(const uint8_t *from, int size) {
    uint64_t value = 0;
    for (int at = 0; at < size; at++) value = value << 8 | from[at];
    return value;
}

static inline struct sockaddr_in place(const char *host, const char *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, host, &at.sin_addr) != 1) die("address");
    return at;
}

static inline int dial(const char *host, const char *port, int kind) {
    struct sockaddr_in at = place(host, port);
    int sock = socket(AF_INET, kind, 0), on = 1;
    if (sock < 0 || connect(sock, (struct sockaddr *)&at, sizeof at) < 0) die("connect");
    if (kind == SOCK_STREAM) setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return sock;
}

/* A socket on a free port of this machine; prints the port. */
static inline int bound(int kind) {
    struct sockaddr_in at = place("127.0.0.1", "0");
    socklen_t size = sizeof at;
    int sock = socket(AF_INET, kind, 0);
    if (sock < 0 || bind(sock, (struct sockaddr *)&at, sizeof at) < 0) die("bind");
    if (kind == SOCK_STREAM && listen(sock, 8) < 0) die("listen");
    getsockname(sock, (struct sockaddr *)&at, &size);
    printf("port %d\n", ntohs(at.sin_port));
    fflush(stdout);
    return sock;
}

static inline void send_all(int sock, const void *data, size_t size) {
    const uint8_t *at = data;
    while (size > 0) {
        ssize_t sent = send(sock, at, size, MSG_NOSIGNAL);
        if (sent < 0) die("send");
        at += sent;
        size -= (size_t)sent;
    }
}

/* Read exactly so many bytes; 0 if the connection ends before them. */
static inline int take(int sock, void *into, size_t size) {
    uint8_t *at = into;
    while (size > 0) {
        ssize_t came = recv(sock, at, size, 0);
        if (came <= 0) return 0;
        at += came;
        size -= (size_t)came;
    }
    return 1;
}

static inline void must_take(int sock, void *into, size_t size) {
    if (!take(sock, into, size)) {
        fprintf(stderr, "the connection ended\n");
        exit(1);
    }
}

/* Say that nothing more follows, and wait until the other side has ended too. */
static inline void finish(int sock) {
    char rest[4096];
    shutdown(sock, SHUT_WR);
    while (recv(sock, rest, sizeof rest, 0) > 0) {
    }
    close(sock);
}

static inline int64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
