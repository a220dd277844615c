/* The tube over TCP, from its document alone, without any compression:
 *   tube talk HOST PORT MESSAGE...
 *   tube serve
 * A client sends each message whole and in fragments of three bytes, and prints what comes back. A server sends every
 * message back, and says so ("plain N"). Either throws away what comes compressed, as not supported ("refused N").
 */
#include "peer.h"

enum { PING = 16, PONG = 17, NOT_SUPPORTED = 8, WANTED = 1000, LONGEST = 1 << 20 };

static uint8_t message[LONGEST + 1];

static void send_number(int sock, int32_t value) {
    uint8_t bytes[5];
    int size = 0;
    uint32_t left = ((uint32_t)value << 1) ^ (uint32_t)(value >> 31);
    for (; left > 0x7f; left >>= 7) bytes[size++] = (uint8_t)(left | 0x80);
    bytes[size++] = (uint8_t)left;
    send_all(sock, bytes, (size_t)size);
}

static int read_number(int sock, int32_t *value) {
    uint32_t found = 0;
    for (int at = 0; at < 5; at++) {
        uint8_t byte;
        if (!take(sock, &byte, 1)) return 0;
        found |= (uint32_t)(byte & 0x7f) << (7 * at);
        if (byte < 0x80) {
            *value = (int32_t)((found >> 1) ^ (~(found & 1) + 1));
            return 1;
        }
    }
    die("a number of more than five bytes");
    return 0;
}

static void send_message(int sock, const uint8_t *data, int32_t size, int32_t most) {
    int32_t count = size == 0 ? 1 : (size + most - 1) / most;
    uint8_t head = count < 8 ? (uint8_t)count : 0;
    send_all(sock, &head, 1);
    if (!head) send_number(sock, count);
    for (int32_t at = 0; count-- > 0; at += most) {
        int32_t length = size - at < most ? size - at : most;
        send_number(sock, length);
        send_all(sock, data + at, (size_t)length);
    }
}

/* The next message's size, -1 at the end, -2 for a Pong; what is compressed is refused on the way. */
static int32_t hear(int sock) {
    for (;;) {
        uint8_t head, answer;
        int32_t count, length, size = 0;
        if (!take(sock, &head, 1)) return -1;
        int code = head >> 3;
        if (code == PING) {
            answer = PONG << 3;
            send_all(sock, &answer, 1);
        }
        if (code == PONG) return -2;
        if (code >= 8) continue;
        count = head & 7;
        if (!count && !read_number(sock, &count)) return -1;
        for (; count > 0; count--) {
            if (!read_number(sock, &length)) return -1;
            if (length < 0 || length > WANTED || size + length > LONGEST) die("a fragment that is too long");
            must_take(sock, message + size, (size_t)length);
            size += length;
        }
        if (code == 0) return size;
        printf("refused %d\n", size);
        fflush(stdout);
        answer = (uint8_t)((NOT_SUPPORTED + code) << 3);
        send_all(sock, &answer, 1);
    }
}

int main(int count, char **words) {
    int32_t theirs, size;
    signal(SIGCHLD, SIG_IGN);
    if (count == 2 && strcmp(words[1], "serve") == 0) {
        int listener = bound(SOCK_STREAM);
        for (;;) {
            int sock = accept(listener, NULL, NULL);
            if (fork() > 0) {
                close(sock);
                continue;
            }
            if (!read_number(sock, &theirs)) exit(1);
            send_number(sock, WANTED);
            while ((size = hear(sock)) != -1) {
                if (size < 0) continue;
                printf("plain %d\n", size);
                fflush(stdout);
                send_message(sock, message, size, theirs);
            }
            exit(0);
        }
    }
    if (count < 5) return 2;
    int sock = dial(words[2], words[3], SOCK_STREAM);
    send_number(sock, WANTED);
    if (!read_number(sock, &theirs)) die("no fragment size");
    for (int at = 4; at < count; at++) {
        int32_t sizes[] = {theirs, 3};
        for (int each = 0; each < 2; each++) {
            send_message(sock, (uint8_t *)words[at], (int32_t)strlen(words[at]), sizes[each]);
            if ((size = hear(sock)) < 0) die("no answer");
            message[size] = 0;
            say((char *)message);
        }
    }
    uint8_t ping = PING << 3;
    send_all(sock, &ping, 1);
    if (hear(sock) != -2) die("no Pong");
    say("pong");
    finish(sock);
    return 0;
}
