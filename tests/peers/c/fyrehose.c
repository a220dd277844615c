/* fyrehose, from its document alone:
 *   fyrehose publish tcp|udp HOST PORT MESSAGE...
 *   fyrehose subscribe tcp|udp HOST PORT COUNT LOSE
 *   fyrehose serve LOSE
 * A subscriber prints "ready", then "SEQUENCE DATA" in order. LOSE n throws away each n-th DELIVER when it first comes,
 * as a bad network would; what is missing is requested. The backbone (serve, UDP) loses what it sends in the same way.
 */
#include "peer.h"

enum { DELIVER = 0x01, PUSH = 0x02, REQUEST = 0x04, KEEPALIVE = 0x10, KEEPALIVE_ACK = 0x20 };
enum { LONGEST = 65535, MOST = 4096, CLIENTS = 16 };

static struct {
    int size;
    char *data;
    int seen;
} messages[MOST]; /* by their distance from the first one */

static uint8_t own[6]; /* ADDR and PORT of this socket */

static int push(uint8_t *into, const char *data, size_t size) {
    into[0] = PUSH;
    put(into + 1, size, 2);
    memcpy(into + 3, data, size);
    return (int)size + 3;
}

static void keepalive(int sock) {
    uint8_t packet[7] = {KEEPALIVE};
    memcpy(packet + 1, own, 6);
    send_all(sock, packet, sizeof packet);
}

static void request(int sock, uint64_t first, uint64_t last) {
    uint8_t packet[19] = {REQUEST};
    memcpy(packet + 1, own, 6);
    put(packet + 7, first, 6);
    put(packet + 13, last, 6);
    send_all(sock, packet, sizeof packet);
}

/* One packet: a datagram, or as much of a stream as its type and LENGTH say. */
static int receive(int sock, int stream, uint8_t *packet) {
    if (!stream) return (int)recv(sock, packet, LONGEST, 0);
    must_take(sock, packet, 1);
    if (packet[0] == KEEPALIVE_ACK) {
        must_take(sock, packet + 1, 6);
        return 7;
    }
    must_take(sock, packet + 1, 8);
    int size = (int)get(packet + 1, 2);
    must_take(sock, packet + 9, (size_t)size);
    return 9 + size;
}

static void subscribe(int sock, int stream, int count, int lose) {
    static uint8_t packet[LONGEST + 1];
    struct sockaddr_in here;
    socklen_t length = sizeof here;
    uint64_t first = 0, next = 0, newest = 0;
    int seen = 0, ready = 0;
    int64_t beat = 0, repair = 0;
    getsockname(sock, (struct sockaddr *)&here, &length);
    memcpy(own, &here.sin_addr, 4);
    memcpy(own + 4, &here.sin_port, 2);
    while (count > 0) {
        int64_t now = milliseconds();
        if (now >= beat) {
            keepalive(sock);
            beat = now + 1000;
        }
        if (next <= newest && next > 0 && now >= repair) {
            uint64_t last = next;
            while (last < newest && !messages[last + 1 - first].data) last++;
            request(sock, next, last);
            repair = now + 100;
        }
        struct pollfd wait = {.fd = sock, .events = POLLIN};
        if (poll(&wait, 1, 50) == 0) continue;
        int size = receive(sock, stream, packet);
        if (packet[0] == KEEPALIVE_ACK) {
            if (size != 7 || memcmp(packet + 1, own, 6) != 0) die("no ACK of ours");
            if (!ready++) say("ready");
            continue;
        }
        if (packet[0] != DELIVER || size != 9 + (int)get(packet + 1, 2)) die("no whole DELIVER");
        uint64_t sequence = get(packet + 3, 6);
        if (first == 0) first = next = sequence;
        if (sequence < next || sequence - first >= MOST) continue;
        if (sequence > newest) newest = sequence;
        uint64_t at = sequence - first;
        if (!messages[at].seen++ && ++seen > 1 && lose > 0 && seen % lose == 0) continue;
        if (messages[at].data) continue;
        messages[at].size = size - 9;
        messages[at].data = memcpy(malloc((size_t)size), packet + 9, (size_t)size - 9);
        while (count > 0 && next - first < MOST && messages[next - first].data) {
            printf("%llu %.*s\n", (unsigned long long)next, messages[next - first].size, messages[next - first].data);
            next++;
            count--;
        }
        fflush(stdout);
    }
}

/* A backbone that knows clients by the ADDR and PORT they state, and by nothing else. */
static void serve(int lose) {
    static uint8_t datagram[LONGEST + 1], packet[LONGEST + 1];
    struct sockaddr_in clients[CLIENTS];
    int count = 0, subscribed = 0, sent = 0, sock = bound(SOCK_DGRAM);
    for (;;) {
        ssize_t size = recv(sock, datagram, sizeof datagram, 0);
        if (size < 1) continue;
        struct sockaddr_in stated = {.sin_family = AF_INET};
        memcpy(&stated.sin_addr, datagram + 1, 4);
        memcpy(&stated.sin_port, datagram + 5, 2);
        uint64_t first = 1, last = 0;
        if (datagram[0] == KEEPALIVE && size == 7) {
            int known = 0;
            for (int at = 0; at < subscribed; at++) known |= memcmp(&clients[at], &stated, sizeof stated) == 0;
            if (!known && subscribed < CLIENTS) clients[subscribed++] = stated;
            datagram[0] = KEEPALIVE_ACK;
            sendto(sock, datagram, 7, 0, (struct sockaddr *)&stated, sizeof stated);
        } else if (datagram[0] == REQUEST && size == 19) {
            first = get(datagram + 7, 6);
            last = get(datagram + 13, 6);
            if (first < 1) first = 1;
            if (last > (uint64_t)count) last = (uint64_t)count;
        } else if (datagram[0] == PUSH) {
            first = (uint64_t)count + 1;
            for (ssize_t at = 0; at < size && count < MOST;) {
                size_t length = get(datagram + at + 1, 2);
                messages[count].size = (int)length;
                messages[count++].data = memcpy(malloc(length + 1), datagram + at + 3, length);
                at += 3 + (ssize_t)length;
            }
            last = (uint64_t)count;
        }
        for (uint64_t sequence = first; sequence <= last; sequence++) {
            int length = messages[sequence - 1].size;
            packet[0] = DELIVER;
            put(packet + 1, (uint64_t)length, 2);
            put(packet + 3, sequence, 6);
            memcpy(packet + 9, messages[sequence - 1].data, (size_t)length);
            if (datagram[0] == REQUEST) {
                sendto(sock, packet, 9 + (size_t)length, 0, (struct sockaddr *)&stated, sizeof stated);
                continue;
            }
            for (int at = 0; at < subscribed; at++) {
                if (lose > 0 && ++sent % lose == 0) continue;
                sendto(sock, packet, 9 + (size_t)length, 0, (struct sockaddr *)&clients[at], sizeof clients[at]);
            }
        }
    }
}

int main(int count, char **words) {
    static uint8_t packet[LONGEST];
    if (count >= 3 && strcmp(words[1], "serve") == 0) serve(atoi(words[2]));
    if (count < 6 || (strcmp(words[1], "subscribe") == 0 && count < 7)) return 2;
    int stream = strcmp(words[2], "tcp") == 0;
    int sock = dial(words[3], words[4], stream ? SOCK_STREAM : SOCK_DGRAM);
    if (strcmp(words[1], "subscribe") == 0) {
        subscribe(sock, stream, atoi(words[5]), atoi(words[6]));
        return 0;
    }
    for (int at = 5; at < count; at++) send_all(sock, packet, (size_t)push(packet, words[at], strlen(words[at])));
    if (stream) finish(sock);
    return 0;
}
