/* SPP, from its document alone:
 *   spp watch HOST PORT SERVICE COUNT
 *   spp serve SERVICE MESSAGE...
 * A watcher waits for the service's offer, subscribes, and prints each message about it. A server offers one service,
 * and sends its messages to whoever subscribes: the object first, then the changes.
 */
#include "peer.h"

enum { OFFER = 1, SUBSCRIBE = 1, UNSUBSCRIBE = 2, INFO = 16, LONGEST = 1 << 20 };

static uint8_t data[LONGEST];

static void send_packet(int sock, uint32_t msgtype, const char *one, const char *two) {
    uint8_t head[8];
    const char *strings[] = {one, two};
    uint32_t length = 0;
    for (int at = 0; at < 2; at++) length += strings[at] ? 4 + (uint32_t)strlen(strings[at]) : 0;
    put(head, msgtype, 4);
    put(head + 4, length, 4);
    send_all(sock, head, 8);
    for (int at = 0; at < 2; at++) {
        if (!strings[at]) continue;
        put(head, strlen(strings[at]), 4);
        send_all(sock, head, 4);
        send_all(sock, strings[at], strlen(strings[at]));
    }
}

/* The next packet into data, ended by a zero; -1 at the end of the connection. */
static int64_t next_packet(int sock, uint32_t *length) {
    uint8_t head[8];
    if (!take(sock, head, 8)) return -1;
    *length = (uint32_t)get(head + 4, 4);
    if (*length >= LONGEST) die("a packet that is too long");
    must_take(sock, data, *length);
    data[*length] = 0;
    return (int64_t)get(head, 4);
}

static int about(const char *service) {
    size_t length = strlen(service);
    return get(data, 4) == length && memcmp(data + 4, service, length) == 0;
}

static void watch(int sock, const char *service, int left) {
    uint32_t length;
    /* Of another application: "should be ignored by the protocol". */
    send_packet(sock, 0, "test", NULL);
    send_packet(sock, 33, "anna", "cat8dog9!");
    while (left > 0) {
        int64_t msgtype = next_packet(sock, &length);
        if (msgtype < 0) die("the end");
        if (msgtype == OFFER && about(service)) send_packet(sock, SUBSCRIBE, service, NULL);
        if (msgtype == INFO && about(service)) {
            say((char *)data + 4 + strlen(service) + 4);
            left--;
        }
    }
    send_packet(sock, UNSUBSCRIBE, service, NULL);
    finish(sock);
}

static void serve(const char *service, char **messages) {
    int listener = bound(SOCK_STREAM);
    for (;;) {
        uint32_t length;
        int64_t msgtype;
        int sock = accept(listener, NULL, NULL);
        if (fork() > 0) {
            close(sock);
            continue;
        }
        send_packet(sock, 0, "test", NULL);
        send_packet(sock, OFFER, service, NULL);
        send_packet(sock, 40, "of another application", NULL);
        while ((msgtype = next_packet(sock, &length)) >= 0) {
            if (msgtype != SUBSCRIBE || !about(service)) continue;
            for (char **message = messages; *message; message++) {
                send_packet(sock, INFO, "nobody asked", "x");
                send_packet(sock, INFO, service, *message);
            }
        }
        exit(0);
    }
}

int main(int count, char **words) {
    signal(SIGCHLD, SIG_IGN);
    if (count >= 4 && strcmp(words[1], "serve") == 0) serve(words[2], words + 3);
    if (count != 6) return 2;
    watch(dial(words[2], words[3], SOCK_STREAM), words[4], atoi(words[5]));
    return 0;
}
